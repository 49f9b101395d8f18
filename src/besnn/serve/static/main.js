// Starts the page: asks what is served, and lays out what suits it.

import { getExamples, getModel, hasToken, TokenNeeded, useToken } from "./api.js";
import { Asker } from "./asking.js";
import { byId, percent, tellTrouble } from "./dom.js";
import { drawingPanel } from "./images.js";
import { gallery } from "./gallery.js";
import { Plane } from "./tables.js";
import { TableForm } from "./table.js";
import { watchTraffic } from "./traffic.js";
import { uploadPanel } from "./uploads.js";

const LARGEST_DRAWN = 64; // pixels a side

async function start() {
  let model, examples;
  try {
    [model, examples] = await Promise.all([getModel(), getExamples()]);
  } catch (error) {
    if (error instanceof TokenNeeded) askForToken();
    if (!(error instanceof TokenNeeded) || hasToken()) tellTrouble(error);
    return;
  }
  byId("token-form").hidden = true;
  tellTrouble(null);
  document.title = `${model.name} – besnn`;
  byId("facts").textContent = facts(model);
  byId("main").hidden = false;
  const asker = new Asker(model, watchTraffic());
  const take = model.kind === "images" ? imagePanels(model, asker) : tablePanels(model, asker);
  byId("gallery").replaceChildren(...gallery(examples, take));
}

function facts({ name, method, members, kind, input_shape: shape, class_names: classes, calibration }) {
  const inputs = kind === "images" ? `${shape[2]}×${shape[1]} images` : `tables of ${shape[0]} columns`;
  const sure = calibration.delta === null ? "" : ` with probability ${percent(1 - calibration.delta, 0)}`;
  return (
    `${name}: ${method} of ${members} members for ${inputs}, ${classes.length} classes. ` +
    `It takes at most ${percent(calibration.alpha)} of known inputs for unknown${sure}.`
  );
}

function imagePanels(model, asker) {
  const [channels, height, width] = model.input_shape;
  byId("panels").append(uploadPanel(asker));
  if (channels === 1 && Math.max(height, width) <= LARGEST_DRAWN) {
    byId("panels").append(drawingPanel(asker, model.input_shape));
  }
  return (input, picture) => asker.ask(input, { picture });
}

function tablePanels(model, asker) {
  let plane = null;
  const form = new TableForm(model, (row) => (plane ? plane.move(row, true) : asker.ask(row)));
  if (model.input_shape[0] === 2) {
    plane = new Plane(model, (point, final) => {
      form.row = point;
      asker.ask(point, { final });
    });
    byId("panels").append(plane.node);
    plane.load();
  }
  byId("panels").append(form.node);
  return (row) => {
    form.row = row;
    plane ? plane.move(row, true) : asker.ask(row);
  };
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
