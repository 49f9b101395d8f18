// Input panels for tables: a form with one number per column and, for two columns, a map with a point to drag.

import { predict } from "./api.js";
import { element, showError } from "./dom.js";

const WIDTH = 640;
const HEIGHT = 480;
const REACH = 4; // standard deviations to each side
const CELLS = [96, 72];
const HUES = [213, 28, 140, 285, 55, 340, 180, 250, 100, 0];

export class TableForm {
  constructor(model, onSubmit) {
    const names = model.feature_names.length ? model.feature_names : model.mean.map((_, index) => `column ${index + 1}`);
    this.fields = names.map((name, index) =>
      element("input", { type: "number", step: "any", required: true, value: rounded(model.mean[index]), "aria-label": name }),
    );
    const labels = names.map((name, index) => element("label", {}, name, this.fields[index]));
    this.node = element(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          onSubmit(this.row);
        },
      },
      element("div", { class: "fields" }, ...labels),
      element("button", {}, "Predict"),
    );
  }

  get row() {
    return this.fields.map((field) => Number(field.value));
  }

  set row(values) {
    this.fields.forEach((field, index) => (field.value = rounded(values[index])));
  }
}

const rounded = (value) => Number(value.toPrecision(5));

// Shows the class and how ordinary each point of the plane is.
export class PlaneMap {
  constructor(model, onPoint) {
    this.model = model;
    this.onPoint = onPoint;
    this.point = [...model.mean];
    this.picture = null;
    this.canvas = element("canvas", {
      width: WIDTH,
      height: HEIGHT,
      tabindex: 0,
      role: "application",
      "aria-busy": "true",
      "aria-label": "Map of the model’s confidence. Arrow keys move the point; the numbers below show where it is.",
    });
    this.node = element(
      "div",
      { class: "plane" },
      this.canvas,
      element("p", { class: "hint" }, "Click, or drag the point. The colour shows the class: the paler, the stranger. Hatched: unknown."),
    );
    this.listen();
    this.draw();
  }

  listen() {
    const at = (event) => this.toData(event.offsetX / this.canvas.clientWidth, event.offsetY / this.canvas.clientHeight);
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.move(at(event), false);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.canvas.hasPointerCapture(event.pointerId)) this.move(at(event), false);
    });
    this.canvas.addEventListener("pointerup", (event) => this.move(at(event), true));
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!step) return;
      event.preventDefault();
      this.move(this.point.map((value, axis) => value + 0.1 * step[axis] * this.model.std[axis]), true);
    });
  }

  move(point, final) {
    this.point = point;
    this.draw();
    this.onPoint(point, final);
  }

  toData(right, down) {
    const [mean, std] = [this.model.mean, this.model.std];
    return [mean[0] + REACH * std[0] * (2 * right - 1), mean[1] + REACH * std[1] * (1 - 2 * down)];
  }

  toCanvas([x, y]) {
    const [mean, std] = [this.model.mean, this.model.std];
    return [(WIDTH * ((x - mean[0]) / std[0] / REACH + 1)) / 2, (HEIGHT * (1 - (y - mean[1]) / std[1] / REACH)) / 2];
  }

  async load() {
    const [columns, rows] = CELLS;
    const points = [];
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        points.push(this.toData((column + 0.5) / columns, (row + 0.5) / rows));
      }
    }
    const predictions = [];
    try {
      for (let start = 0; start < points.length; start += this.model.max_rows) {
        const part = points.slice(start, start + this.model.max_rows);
        predictions.push(...(await predict(part, { members: false, observe: false })));
      }
    } catch (error) {
      showError(error);
      return;
    }
    this.picture = paint(predictions, this.model.class_names);
    this.draw();
    this.canvas.removeAttribute("aria-busy");
  }

  draw() {
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, WIDTH, HEIGHT);
    if (this.picture) context.drawImage(this.picture, 0, 0, WIDTH, HEIGHT);
    const [x, y] = this.toCanvas(this.point);
    context.beginPath();
    context.arc(x, y, 11, 0, 2 * Math.PI);
    context.fillStyle = "white";
    context.fill();
    context.lineWidth = 5;
    context.strokeStyle = "black";
    context.stroke();
  }
}

function paint(predictions, classNames) {
  const [columns, rows] = CELLS;
  const scale = 8;
  const canvas = element("canvas", { width: columns * scale, height: rows * scale });
  const context = canvas.getContext("2d");
  predictions.forEach(({ label, p_value: pValue, is_ood: unknown }, index) => {
    const [x, y] = [scale * (index % columns), scale * Math.floor(index / columns)];
    const hue = HUES[classNames.indexOf(label) % HUES.length];
    context.fillStyle = unknown ? `hsl(${hue} 10% 82%)` : `hsl(${hue} 65% ${Math.round(80 - 32 * Math.sqrt(pValue))}%)`;
    context.fillRect(x, y, scale, scale);
    if (unknown) {
      context.strokeStyle = "hsl(220 8% 62%)";
      context.beginPath();
      context.moveTo(x, y + scale);
      context.lineTo(x + scale, y);
      context.stroke();
    }
  });
  return canvas;
}
