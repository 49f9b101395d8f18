// Examples to take, by kind.

import { element } from "./dom.js";

const KINDS = {
  known: ["Known", "Ordinary inputs of the classes it was trained on."],
  ambiguous: ["Ambiguous", "Known, but between classes."],
  unknown: ["Unknown", "Nothing like what it was trained on."],
};

export function gallery(examples, take) {
  return Object.entries(KINDS).map(([kind, [title, meaning]]) => {
    const own = examples.filter((example) => example.kind === kind);
    const hint = own.length ? meaning : "None at hand: start the service with --examples DATA.";
    const buttons = own.map(({ input }, place) => {
      const picture = typeof input === "string" ? `data:image/png;base64,${input}` : null;
      const face = picture ? element("img", { src: picture, alt: "" }) : input.map((value) => Number(value.toPrecision(3))).join(", ");
      const attributes = { type: "button", onclick: () => take(input, picture) };
      if (picture) attributes["aria-label"] = `${title} example ${place + 1}`;
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
