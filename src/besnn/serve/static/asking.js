// From an input to an answer on the page. While one question is out, only the newest of those behind it is kept.

import { predict, predictFiles, TokenNeeded } from "./api.js";
import { showAnswer, verdict } from "./answers.js";
import { byId, element, tellTrouble } from "./dom.js";

const REMEMBERED = 24;

export class Asker {
  constructor(model, onTraffic) {
    this.model = model;
    this.onTraffic = onTraffic;
    this.waiting = null;
    this.busy = false;
  }

  // `final` inputs count as traffic; those on the way to one (a stroke, a drag) do not.
  ask(input, { final = true, picture = null } = {}) {
    if (this.waiting?.final && !final) return;
    this.waiting = { input, final, picture };
    if (!this.busy) this.work();
  }

  async work() {
    this.busy = true;
    while (this.waiting) {
      const { input, final, picture } = this.waiting;
      this.waiting = null;
      await this.attempt(async () => {
        const observe = final && byId("observe").checked;
        const [prediction] = await predict([input], { observe });
        this.settle([prediction], picture ? [picture] : [], observe);
      });
    }
    this.busy = false;
  }

  askFiles(files) {
    return this.attempt(async () => {
      const observe = byId("observe").checked;
      const predictions = await predictFiles(files, { observe });
      this.settle(predictions, files.map((file) => URL.createObjectURL(file)), observe);
    });
  }

  async attempt(question) {
    try {
      await question();
      tellTrouble(null);
    } catch (error) {
      if (error instanceof TokenNeeded) location.reload();
      tellTrouble(error);
    }
  }

  settle(predictions, pictures, observed) {
    showAnswer(this.model, predictions.at(-1));
    pictures.forEach((picture, place) => this.remember(picture, predictions[place]));
    if (observed) this.onTraffic();
  }

  remember(picture, prediction) {
    const list = byId("history");
    const text = verdict(prediction, this.model.class_names);
    const button = element(
      "button",
      { type: "button", class: prediction.is_ood ? "unknown" : "known", onclick: () => showAnswer(this.model, prediction) },
      element("img", { src: picture, alt: "" }),
      text,
    );
    list.prepend(element("li", {}, button));
    while (list.children.length > REMEMBERED) {
      const picture = list.lastChild.querySelector("img").src;
      if (picture.startsWith("blob:")) URL.revokeObjectURL(picture);
      list.lastChild.remove();
    }
    byId("history-block").hidden = false;
  }
}
