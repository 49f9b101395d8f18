const fields = [...document.querySelectorAll("input[data-group]")];
const result = document.getElementById("names");
const save = document.getElementById("save");

function update() {
  const lines = fields.map(({ dataset, value }) => {
    const similar = Number(document.getElementById(`similar-${dataset.group}`)?.value ?? 0);
    return `  ${dataset.group}: {size: ${dataset.size}, similar: ${similar}, nearest_class: ${JSON.stringify(dataset.nearest)}, name: ${JSON.stringify(value.trim())}}`;
  });
  result.value = ["groups:", ...lines, ""].join("\n");
  URL.revokeObjectURL(save.href);
  save.href = URL.createObjectURL(new Blob([result.value], { type: "application/yaml" }));
}

document.querySelectorAll(".name input").forEach((field) => field.addEventListener("input", update));
document.querySelectorAll("button[data-name]").forEach((button) =>
  button.addEventListener("click", () => {
    document.getElementById(button.dataset.field).value = button.dataset.name;
    update();
  }),
);
update();
