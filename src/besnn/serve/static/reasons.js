// Why an input is not known: its nearest training examples, how strange each part of the score found it, and a heat map.

import { explain } from "./api.js";
import { byId, element, percent, showError } from "./dom.js";

const MAX_MAPPED = 64; // pixels per side of an image whose heat map is quick enough to ask for

// A button beside an answer that is not simply known; what it shows belongs to that answer alone.
export function offerReasons(model, prediction, source) {
  const place = byId("why");
  place.replaceChildren();
  if (prediction.decision === "known") return;
  const button = element("button", { type: "button" }, "Why?");
  button.addEventListener("click", async () => {
    button.disabled = true;
    button.textContent = "Looking …";
    try {
      const mapped = model.kind === "images" && Math.max(...model.input_shape.slice(1)) <= MAX_MAPPED;
      const reason = await explain(source, mapped);
      if (button.isConnected) place.replaceChildren(...reasons(model, reason, source));
      showError(null);
    } catch (error) {
      button.disabled = false;
      button.textContent = "Why?";
      showError(error);
    }
  });
  place.replaceChildren(button);
}

const few = (share) => (share < 0.0005 ? "fewer than 0.1 %" : percent(share));

function reasons(model, { neighbours, surprise, heat_map: heat }, source) {
  const parts = Object.entries(surprise).sort(([, one], [, other]) => other - one);
  const strange = parts.map(([part, value]) =>
    element("li", {}, `${part}: ${few(Math.exp(-value))} of known inputs are at least as strange`),
  );
  const nearest = neighbours.map((neighbour) => element("li", {}, example(model, neighbour, source.input)));
  const nodes = [element("h3", {}, "Why"), element("ul", { class: "reasons" }, ...strange)];
  if (heat) nodes.push(heatMap(heat));
  if (nearest.length) {
    nodes.push(element("h3", { id: "nearest-title" }, "Nearest training examples"));
    nodes.push(element("ul", { class: "tiles neighbours", "aria-labelledby": "nearest-title" }, ...nearest));
  }
  return nodes;
}

function example(model, { label, distance, input }, row) {
  const words = `${label}, distance ${distance.toPrecision(2)}`;
  if (typeof input === "string") {
    return element("figure", {}, element("img", { src: `data:image/png;base64,${input}`, alt: "" }), element("figcaption", {}, words));
  }
  const differing = input
    .map((value, index) => ({ value, index, steps: Math.abs(value - row[index]) / model.std[index] }))
    .sort((one, other) => other.steps - one.steps)
    .slice(0, 3)
    .map(({ value, index }) => `${model.feature_names[index] ?? `column ${index + 1}`} ${Number(value.toPrecision(3))}`);
  return element("figure", {}, element("figcaption", {}, `${words}: ${differing.join(", ")}`));
}

// Red where the image adds to the score.
function heatMap(heat) {
  const [height, width] = [heat.length, heat[0].length];
  const canvas = element("canvas", { class: "heat", width, height, role: "img", "aria-label": "Where the image is strange" });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  const most = Math.max(...heat.flat(), 1e-12);
  heat.flat().forEach((value, index) => pixels.data.set([230, 60, 0, Math.round(255 * Math.max(value / most, 0))], 4 * index));
  context.putImageData(pixels, 0, 0);
  return element("figure", {}, canvas, element("figcaption", {}, "Red: what makes it strange"));
}
