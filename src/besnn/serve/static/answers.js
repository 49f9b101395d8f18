// What the detector says of one input, in words and pictures.

import { byId, element, percent } from "./dom.js";
import { gauge } from "./gauge.js";

const MOST_CLASSES = 10;
const CLOSE = 0.2; // two classes whose probabilities differ by less are named together

export function verdict(prediction, classNames) {
  if (prediction.is_ood) return "I don’t know this";
  const [first, second] = ranked(prediction, classNames);
  return second && first.share - second.share < CLOSE ? `${first.name} or ${second.name}` : first.name;
}

// The p-value in words; p = (1 + how many of the calibration's inputs are at least as strange) / (1 + how many there are).
function strangeness(pValue, inputs) {
  const stranger = Math.round(pValue * (inputs + 1)) - 1;
  if (stranger === 0) return `Stranger than all ${inputs} known inputs that it was compared with`;
  if (stranger === inputs) return `At least as ordinary as all ${inputs} known inputs that it was compared with`;
  return `Stranger than ${pValue > 0.5 ? "only " : ""}${percent(1 - pValue)} of known inputs`;
}

export function showAnswer(model, prediction) {
  const kind = prediction.is_ood ? "unknown" : "known";
  const title = byId("verdict");
  title.textContent = verdict(prediction, model.class_names);
  title.className = kind;
  const guess = prediction.is_ood ? ` If it had to choose: ${prediction.label}.` : "";
  byId("words").textContent = `${strangeness(prediction.p_value, model.calibration.inputs)}.${guess}`;
  byId("gauge").replaceChildren(gauge(model.calibration, prediction.score));
  const shown = ranked(prediction, model.class_names).slice(0, MOST_CLASSES);
  byId("probabilities").replaceChildren(...shown.map(({ name, share }) => bar(name, name, share)));
  byId("agreement").textContent = agreement(prediction.members);
  byId("members").replaceChildren(
    ...prediction.members.map(({ label, probability }, place) => bar(`Member ${place + 1}`, label, probability)),
  );
  byId("opinions").hidden = false;
}

function ranked({ probabilities }, classNames) {
  const classes = probabilities.map((share, place) => ({ name: classNames[place], share }));
  return classes.sort((one, other) => other.share - one.share);
}

function agreement(members) {
  const labels = new Set(members.map(({ label }) => label));
  if (members.length === 1) return "There is one member only.";
  return labels.size === 1 ? `All ${members.length} agree.` : `They disagree: ${[...labels].join(", ")}.`;
}

function bar(name, label, share) {
  const filled = element("div", { class: "bar" });
  filled.style.width = `${100 * share}%`;
  const text = name === label ? name : `${name}: ${label}`;
  return element(
    "li",
    {},
    element("span", { class: "name" }, text),
    element("div", { class: "track", "aria-hidden": "true" }, filled),
    element("span", { class: "share" }, percent(share)),
  );
}
