// Elements made without HTML strings, so that no text is ever taken for markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svgElement(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;

export function showError(error) {
  const place = byId("error");
  place.textContent = error ? error.message : "";
  place.hidden = !error;
}
