// The score on a scale of the known inputs' scores, with the threshold τ marked.

import { drawn, element } from "./dom.js";

const WIDTH = 400;
const TOP = 20;
const HEIGHT = 24;

export function gauge({ quantiles, threshold }, score) {
  const low = quantiles[0];
  const high = Math.max(quantiles.at(-1), threshold + 0.4 * (threshold - low));
  const place = (value) => (WIDTH * (Math.min(Math.max(value, low), high) - low)) / (high - low);
  const [needle, edge] = [place(score), place(threshold)];
  const words = `Score ${number(score)}${score > high ? ", off the scale" : ""}; unknown above τ = ${number(threshold)}.`;
  const scale = drawn(
    "svg",
    { viewBox: `-8 0 ${WIDTH + 16} 62`, "aria-hidden": "true" },
    drawn("rect", { class: "known-zone", x: 0, y: TOP, width: edge, height: HEIGHT }),
    drawn("rect", { class: "unknown-zone", x: edge, y: TOP, width: WIDTH - edge, height: HEIGHT }),
    ...quantiles.map((value) => drawn("line", { class: "tick", x1: place(value), x2: place(value), y1: TOP + 14, y2: TOP + HEIGHT })),
    drawn("line", { class: "threshold", x1: edge, x2: edge, y1: TOP - 3, y2: TOP + HEIGHT + 4 }),
    drawn("text", { x: edge, y: TOP - 6, "text-anchor": "middle" }, "τ"),
    drawn("path", { class: "needle", d: `M${needle - 8} ${TOP + HEIGHT + 14} h16 l-8 -${HEIGHT + 8} z` }),
  );
  const ends = element("div", { class: "ends", "aria-hidden": "true" }, element("span", {}, "ordinary"), element("span", {}, "strange"));
  return element("figure", {}, scale, ends, element("figcaption", {}, words));
}

const number = (value) => value.toPrecision(4);
