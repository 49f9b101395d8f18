// Starts the page: asks what is served, and shows the panels and examples that fit it.

import { getExamples, getModel, hasToken, TokenNeeded, useToken } from "./api.js";
import { Predictor } from "./answers.js";
import { byId, element, percent, showError } from "./dom.js";
import { drawingPanel, uploadPanel } from "./images.js";
import { PlaneMap, TableForm } from "./tables.js";
import { watchTraffic } from "./traffic.js";

const MAX_DRAWN = 64; // pixels per side

const KINDS = {
  known: ["Known", "Ordinary inputs of the classes it was trained on."],
  ambiguous: ["Ambiguous", "Known, but between classes."],
  unknown: ["Unknown", "Unlike anything it was trained on."],
};

async function start() {
  let model, examples;
  try {
    [model, examples] = await Promise.all([getModel(), getExamples()]);
  } catch (error) {
    if (error instanceof TokenNeeded) askForToken();
    if (!(error instanceof TokenNeeded) || hasToken()) showError(error);
    return;
  }
  byId("token-form").hidden = true;
  showError(null);
  document.title = `${model.name} – besnn`;
  byId("facts").textContent = facts(model);
  byId("main").hidden = false;
  const predictor = new Predictor(model, watchTraffic());
  const take = model.kind === "images" ? imagePanels(model, predictor) : tablePanels(model, predictor);
  byId("gallery").replaceChildren(...gallery(examples, take));
}

function facts({ name, method, members, kind, input_shape: shape, class_names: classes, calibration }) {
  const inputs = kind === "images" ? `${shape[2]}×${shape[1]} images` : `${shape[0]} columns`;
  const count = members === 1 ? "1 member" : `${members} members`;
  const confidence = calibration.delta === null ? "" : ` with probability ${percent(1 - calibration.delta, 0)}`;
  return (
    `${name}: ${method}, ${count}, ${inputs}, ${classes.length} classes. ` +
    `It flags at most ${percent(calibration.alpha)} of known inputs as unknown${confidence}.`
  );
}

function imagePanels(model, predictor) {
  const [channels, height, width] = model.input_shape;
  byId("panels").append(uploadPanel(predictor));
  if (channels === 1 && Math.max(height, width) <= MAX_DRAWN) {
    byId("panels").append(drawingPanel(predictor, model.input_shape));
  }
  return (input, picture) => predictor.predict(input, { picture });
}

function tablePanels(model, predictor) {
  let plane = null;
  const form = new TableForm(model, (row) => (plane ? plane.move(row, true) : predictor.predict(row)));
  if (model.input_shape[0] === 2) {
    plane = new PlaneMap(model, (point, final) => {
      form.row = point;
      predictor.predict(point, { final });
    });
    byId("panels").append(plane.node);
    plane.load();
  }
  byId("panels").append(form.node);
  return (row) => {
    form.row = row;
    plane ? plane.move(row, true) : predictor.predict(row);
  };
}

function gallery(examples, take) {
  return Object.entries(KINDS).map(([kind, [title, meaning]]) => {
    const own = examples.filter((example) => example.kind === kind);
    const hint = own.length ? meaning : "None available: start the service with --examples DATA.";
    const buttons = own.map(({ input }, index) => {
      const picture = typeof input === "string" ? `data:image/png;base64,${input}` : null;
      const face = picture ? element("img", { src: picture, alt: "" }) : input.map((value) => Number(value.toPrecision(3))).join(", ");
      const attributes = { type: "button", onclick: () => take(input, picture) };
      if (picture) attributes["aria-label"] = `${title} example ${index + 1}`;
      return element("li", {}, element("button", attributes, face));
    });
    const name = `gallery-${kind}`;
    return element(
      "div",
      {},
      element("h3", { id: name }, title),
      element("p", { class: "hint" }, hint),
      element("ul", { class: "tiles", "aria-labelledby": name }, ...buttons),
    );
  });
}

function askForToken() {
  const form = byId("token-form");
  form.hidden = false;
  byId("token").focus();
  form.onsubmit = (event) => {
    event.preventDefault();
    useToken(byId("token").value);
    start();
  };
}

start();
