const fields = [...document.querySelectorAll("input[data-group]")];
const result = document.getElementById("names");
const save = document.getElementById("save");

function update() {
  const lines = fields.map(
    ({ dataset, value }) =>
      `  ${dataset.group}: {size: ${dataset.size}, nearest_class: ${JSON.stringify(dataset.nearest)}, name: ${JSON.stringify(value.trim())}}`,
  );
  result.value = ["groups:", ...lines, ""].join("\n");
  URL.revokeObjectURL(save.href);
  save.href = URL.createObjectURL(new Blob([result.value], { type: "application/yaml" }));
}

fields.forEach((field) => field.addEventListener("input", update));
document.querySelectorAll("button[data-name]").forEach((button) =>
  button.addEventListener("click", () => {
    document.getElementById(button.dataset.field).value = button.dataset.name;
    update();
  }),
);
update();
