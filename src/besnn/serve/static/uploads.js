// Images from files: chosen, dropped or pasted.

import { element } from "./dom.js";

const TYPES = "image/png,image/jpeg,image/webp";

export function uploadPanel(asker) {
  const give = (files) => {
    const images = [...files].filter((file) => file.type.startsWith("image/"));
    if (images.length) asker.askFiles(images);
  };
  const chooser = element("input", {
    id: "files",
    type: "file",
    multiple: true,
    accept: TYPES,
    onchange: () => {
      give(chooser.files);
      chooser.value = "";
    },
  });
  const zone = element(
    "label",
    { class: "drop", for: "files" },
    chooser,
    element("strong", {}, "Choose images"),
    ", drop them here, or paste one",
    element("div", { class: "hint" }, "PNG, JPEG or WebP"),
  );
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    give(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => give(event.clipboardData?.files ?? []));
  return zone;
}
