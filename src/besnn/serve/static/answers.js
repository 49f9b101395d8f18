// From an input to its answer: the request, the verdict in words and pictures, and the list of earlier inputs.

import { predict, predictFiles, TokenNeeded } from "./api.js";
import { offerReasons } from "./reasons.js";
import { byId, element, percent, showError, svgElement } from "./dom.js";

const MAX_CLASSES = 10;
const MAX_HISTORY = 24;
const MAX_LABELS = 3; // of a label set, in the verdict
const GAUGE = { width: 400, top: 20, height: 24 };

// Sends inputs to the service. While one request is pending, only the newest input behind it is kept.
export class Predictor {
  constructor(model, onTraffic) {
    this.model = model;
    this.onTraffic = onTraffic;
    this.waiting = null;
    this.busy = false;
  }

  // `final` inputs count as traffic; intermediate ones (during a stroke or a drag) do not.
  predict(input, { final = true, picture = null } = {}) {
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
        this.show([prediction], picture ? [picture] : [], observe, [{ input }]);
      });
    }
    this.busy = false;
  }

  predictFiles(files) {
    return this.attempt(async () => {
      const observe = byId("observe").checked;
      const predictions = await predictFiles(files, { observe });
      const sources = files.map((file) => ({ file }));
      this.show(predictions, files.map((file) => URL.createObjectURL(file)), observe, sources);
    });
  }

  async attempt(action) {
    try {
      await action();
      showError(null);
    } catch (error) {
      if (error instanceof TokenNeeded) location.reload();
      showError(error);
    }
  }

  show(predictions, pictures, observed, sources) {
    showAnswer(this.model, predictions.at(-1), sources.at(-1));
    pictures.forEach((picture, index) => this.remember(picture, predictions[index], sources[index]));
    if (observed) this.onTraffic();
  }

  remember(picture, prediction, source) {
    const list = byId("history");
    const button = element(
      "button",
      { type: "button", class: prediction.decision, onclick: () => showAnswer(this.model, prediction, source) },
      element("img", { src: picture, alt: "" }),
      verdict(prediction),
    );
    list.prepend(element("li", {}, button));
    while (list.children.length > MAX_HISTORY) {
      const oldest = list.lastChild.querySelector("img").src;
      if (oldest.startsWith("blob:")) URL.revokeObjectURL(oldest);
      list.lastChild.remove();
    }
    byId("history-block").hidden = false;
  }
}

function showAnswer(model, prediction, source) {
  const title = byId("verdict");
  title.textContent = verdict(prediction);
  title.className = prediction.decision;
  const own = model.calibration.by_class?.[model.class_names.indexOf(prediction.label)] ?? model.calibration;
  byId("words").textContent = `${strangeness(prediction.p_value, own.inputs)}. ${meaning(prediction, model.calibration)}`;
  byId("gauge").replaceChildren(gauge({ ...model.calibration, ...own }, prediction.score));
  const shown = ranked(prediction, model.class_names).slice(0, MAX_CLASSES);
  byId("probabilities").replaceChildren(...shown.map(({ name, share }) => bar(name, share)));
  byId("agreement").textContent = agreement(prediction.members);
  byId("members").replaceChildren(
    ...prediction.members.map(({ label, probability }, index) => bar(`Member ${index + 1}: ${label}`, probability)),
  );
  byId("opinions").hidden = false;
  offerReasons(model, prediction, source);
}

function verdict({ decision, label, label_set: labels }) {
  if (decision === "unknown") return "I don’t know this";
  if (decision === "known") return label;
  if (labels.length === 1) return `${label}, perhaps`;
  if (labels.length > MAX_LABELS) return `One of ${labels.length}: ${labels.slice(0, MAX_LABELS).join(", ")} …`;
  return `${labels.slice(0, -1).join(", ")} or ${labels.at(-1)}`;
}

// What the decision means, with what was promised about it.
function meaning({ decision, label }, { labels }) {
  if (decision === "unknown") return `If it had to choose: ${label}.`;
  if (!labels) return "";
  if (decision === "unsure") return `Unsure: known, but its label is not clear. ${inSet(labels)}`;
  if (labels.max_error === null) return inSet(labels);
  return `At most ${percent(labels.max_error)} of the labels it is sure of are wrong, with probability ${percent(1 - labels.delta, 0)}.`;
}

const inSet = ({ alpha }) => `Its label set holds the true class in at least ${percent(1 - alpha, 0)} of all accepted inputs.`;

function ranked({ probabilities }, classNames) {
  const classes = probabilities.map((share, index) => ({ name: classNames[index], share }));
  return classes.sort((one, other) => other.share - one.share);
}

// The p-value in words; p = (1 + number of calibration inputs that are at least as strange) / (1 + number of them).
function strangeness(pValue, inputs) {
  const stranger = Math.round(pValue * (inputs + 1)) - 1;
  if (stranger === 0) return `Stranger than all ${inputs} calibration inputs`;
  if (stranger === inputs) return `At least as ordinary as all ${inputs} calibration inputs`;
  return `Stranger than ${pValue > 0.5 ? "only " : ""}${percent(1 - pValue)} of known inputs`;
}

function agreement(members) {
  const labels = new Set(members.map(({ label }) => label));
  if (members.length === 1) return "There is only one member.";
  return labels.size === 1 ? `All ${members.length} agree.` : `They disagree: ${[...labels].join(", ")}.`;
}

function bar(text, share) {
  const filled = element("div", { class: "bar" });
  filled.style.width = `${100 * share}%`;
  return element(
    "li",
    {},
    element("span", { class: "name" }, text),
    element("div", { class: "track", "aria-hidden": "true" }, filled),
    element("span", { class: "share" }, percent(share)),
  );
}

// The score on a scale of the calibration scores, with the threshold τ marked.
function gauge({ quantiles, threshold }, score) {
  const { width, top, height } = GAUGE;
  const low = quantiles[0];
  const high = Math.max(quantiles.at(-1), threshold + 0.4 * (threshold - low));
  const across = (value) => (width * (Math.min(Math.max(value, low), high) - low)) / (high - low);
  const [needle, edge] = [across(score), across(threshold)];
  const [shown, limit] = [score, threshold].map((value) => value.toPrecision(4));
  const words = `Score ${shown}${score > high ? ", off the scale" : ""}; unknown above τ = ${limit}.`;
  const tick = (x) => svgElement("line", { class: "tick", x1: x, x2: x, y1: top + 14, y2: top + height });
  const scale = svgElement(
    "svg",
    { viewBox: `-8 0 ${width + 16} 62`, "aria-hidden": "true" },
    svgElement("rect", { class: "known-zone", x: 0, y: top, width: edge, height }),
    svgElement("rect", { class: "unknown-zone", x: edge, y: top, width: width - edge, height }),
    ...quantiles.map((value) => tick(across(value))),
    svgElement("line", { class: "threshold", x1: edge, x2: edge, y1: top - 3, y2: top + height + 4 }),
    svgElement("text", { x: edge, y: top - 6, "text-anchor": "middle" }, "τ"),
    svgElement("path", { class: "needle", d: `M${needle - 8} ${top + height + 14} h16 l-8 -${height + 8} z` }),
  );
  const ends = element("div", { class: "ends", "aria-hidden": "true" }, element("span", {}, "ordinary"), element("span", {}, "strange"));
  return element("figure", {}, scale, ends, element("figcaption", {}, words));
}
