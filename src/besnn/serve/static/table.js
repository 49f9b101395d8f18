// A form of numbers, one a column.

import { element } from "./dom.js";

export class TableForm {
  constructor(model, onChange) {
    const names = model.feature_names.length ? model.feature_names : model.mean.map((_, place) => `column ${place + 1}`);
    this.fields = names.map((name, place) =>
      element("input", { type: "number", step: "any", required: true, value: rounded(model.mean[place]), "aria-label": name }),
    );
    const labels = names.map((name, place) => element("label", {}, name, this.fields[place]));
    const form = element(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          onChange(this.row);
        },
      },
      element("div", { class: "fields" }, ...labels),
      element("button", {}, "Ask"),
    );
    this.node = form;
  }

  get row() {
    return this.fields.map((field) => Number(field.value));
  }

  set row(values) {
    this.fields.forEach((field, place) => (field.value = rounded(values[place])));
  }
}

const rounded = (value) => Number(value.toPrecision(5));
