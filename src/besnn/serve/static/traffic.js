// Recent inputs of all clients, and the evidence that they have changed.

import { getDrift } from "./api.js";
import { byId, element, percent, svgElement } from "./dom.js";

const INTERVAL = 3000; // milliseconds
const WIDTH = 400;
const HEIGHT = 90;

export function watchTraffic() {
  let timer;
  const look = async () => {
    clearTimeout(timer);
    try {
      show(await getDrift());
    } catch {
      byId("alarm").textContent = "The service does not answer.";
    }
    timer = setTimeout(look, INTERVAL);
  };
  look();
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : look()));
  return look;
}

function show(drift) {
  const alarm = byId("alarm");
  alarm.className = drift.alarm ? "raised" : "";
  const words = alarmWords(drift);
  if (alarm.textContent !== words) alarm.textContent = words;
  byId("traffic").replaceChildren(
    element("p", {}, rateWords(drift)),
    element("h3", {}, "How ordinary each input was (p-value)"),
    ordinaryChart(drift.recent),
    element("h3", {}, "Evidence that inputs have changed"),
    evidenceChart(drift),
  );
}

function alarmWords({ alarm, alarm_step: step, alarm_level: level }) {
  const bound = `The probability of ever raising a false alarm is at most ${percent(1 / level)}.`;
  if (alarm) return `Drift alarm at input ${step}: the inputs are no longer like those it was calibrated on. ${bound}`;
  return `No drift alarm. ${bound}`;
}

function rateWords({ steps, ood_rate: rate, ood_rate_interval: [low, high], window }) {
  if (!steps) return "No inputs yet.";
  const inputs = steps === 1 ? "1 input" : `${steps} inputs`;
  const recent = steps > window ? `of the last ${window} ` : "";
  return `${inputs}; ${percent(rate)} ${recent}unknown (95 % interval ${percent(low)} to ${percent(high)}).`;
}

const across = (index, count) => (count < 2 ? WIDTH / 2 : (WIDTH * index) / (count - 1));

function ordinaryChart(recent) {
  const unknown = recent.filter(({ is_ood: strange }) => strange).length;
  const points = recent.map(({ p_value: p, is_ood: strange }, index) => {
    const [x, y] = [across(index, recent.length), HEIGHT * (1 - p)];
    if (!strange) return svgElement("circle", { class: "known-fill", cx: x, cy: y, r: 2.5 });
    return svgElement("path", { class: "unknown-fill", d: `M${x - 4} ${y + 3} h8 l-4 -8 z` });
  });
  const label = `${recent.length} inputs, ${unknown} of them unknown`;
  return chart(label, ["1", "0"], ...points);
}

function evidenceChart({ recent, alarm_level: level }) {
  const values = recent.map(({ log_martingale: log }) => log / Math.LN10);
  const limit = Math.log10(level);
  const [low, high] = [Math.min(-1, ...values), Math.max(limit + 1, ...values)];
  const down = (value) => (HEIGHT * (high - value)) / (high - low);
  const line = values.map((value, index) => `${index ? "L" : "M"}${across(index, values.length)} ${down(value)}`).join(" ");
  const last = values.length ? values.at(-1).toFixed(2) : "none";
  return chart(
    `Evidence on a logarithmic scale: now 10 to the ${last}, alarm at ${level}`,
    [powerOfTen(high), powerOfTen(low)],
    svgElement("line", { class: "threshold", x1: 0, x2: WIDTH, y1: down(limit), y2: down(limit) }),
    svgElement("text", { x: 4, y: down(limit) - 4 }, `alarm at ${level}`),
    svgElement("path", { class: "evidence", d: `${line || "M0 0"} h0` }), // a single input is a dot
  );
}

const powerOfTen = (exponent) => `10${exponent.toFixed(0).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit])}`;

function chart(label, [top, bottom], ...marks) {
  return svgElement(
    "svg",
    { viewBox: `-52 -10 ${WIDTH + 60} ${HEIGHT + 20}`, role: "img", "aria-label": label },
    svgElement("line", { class: "axis", x1: 0, x2: 0, y1: 0, y2: HEIGHT }),
    svgElement("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }),
    svgElement("text", { x: -6, y: 8, "text-anchor": "end" }, top),
    svgElement("text", { x: -6, y: HEIGHT, "text-anchor": "end" }, bottom),
    ...marks,
  );
}
