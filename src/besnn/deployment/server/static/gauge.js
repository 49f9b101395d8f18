// The score on a scale of the known inputs' scores, with the threshold τ marked.

import { drawn } from "./dom.js";

const WIDTH = 400;
const TOP = 18;
const HEIGHT = 22;

export function gauge(calibration, score) {
  const { quantiles, threshold } = calibration;
  const low = quantiles[0];
  const high = Math.max(quantiles.at(-1), threshold + 0.4 * (threshold - low));
  const place = (value) => (WIDTH * (Math.min(Math.max(value, low), high) - low)) / (high - low);
  const needle = place(score);
  const off = score > high ? ", off the scale" : "";
  const words = `score ${score.toPrecision(4)}${off}; unknown above τ = ${threshold.toPrecision(4)}`;
  const edge = place(threshold);
  return drawn(
    "svg",
    { viewBox: `-8 0 ${WIDTH + 16} 74`, role: "img", "aria-label": words },
    drawn("rect", { class: "known-zone", x: 0, y: TOP, width: edge, height: HEIGHT }),
    drawn("rect", { class: "unknown-zone", x: edge, y: TOP, width: WIDTH - edge, height: HEIGHT }),
    ...quantiles.map((value) => drawn("line", { class: "tick", x1: place(value), x2: place(value), y1: TOP + 12, y2: TOP + HEIGHT })),
    drawn("line", { class: "threshold", x1: edge, x2: edge, y1: TOP - 6, y2: TOP + HEIGHT + 4 }),
    drawn("text", { x: edge, y: TOP - 8, "text-anchor": "middle" }, "τ"),
    drawn("path", { class: "needle", d: `M${needle - 8} ${TOP + HEIGHT + 12} h16 l-8 -${HEIGHT + 8} z` }),
    drawn("text", { x: 0, y: 70 }, "ordinary"),
    drawn("text", { x: WIDTH / 2, y: 70, "text-anchor": "middle" }, `score ${score.toPrecision(4)}${off}`),
    drawn("text", { x: WIDTH, y: 70, "text-anchor": "end" }, "strange"),
  );
}
