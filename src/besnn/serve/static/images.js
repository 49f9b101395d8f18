// Input panels for images: files that are chosen, dropped or pasted, and a drawing board for small grey images.

import { element } from "./dom.js";

const FILE_TYPES = "image/png,image/jpeg,image/webp";
const SIDE = 280; // of the board, in pixels
const THINNEST = SIDE / 11;
const STEP = SIDE / 28;

export function uploadPanel(predictor) {
  const submit = (files) => {
    const images = [...files].filter((file) => file.type.startsWith("image/"));
    if (images.length) predictor.predictFiles(images);
  };
  const chooser = element("input", {
    id: "files",
    type: "file",
    multiple: true,
    accept: FILE_TYPES,
    onchange: () => {
      submit(chooser.files);
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
    submit(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => submit(event.clipboardData?.files ?? []));
  return zone;
}

// White on black, by mouse, finger or keyboard.
export function drawingPanel(predictor, [, height, width]) {
  const board = element("canvas", {
    class: "board",
    width: SIDE,
    height: SIDE,
    tabindex: 0,
    role: "application",
    "aria-label": "Drawing board. Arrow keys move the pen; Space lowers and lifts it; Delete clears.",
  });
  const seen = element("canvas", { class: "seen", width, height, role: "img", "aria-label": "The drawing as the model sees it" });
  const ink = board.getContext("2d", { willReadFrequently: true });
  const pen = { x: SIDE / 2, y: SIDE / 2, down: false };

  const clear = () => {
    ink.fillStyle = "black";
    ink.fillRect(0, 0, SIDE, SIDE);
    showPixels(seen, averaged(ink, width, height));
  };
  const stroke = (x, y) => {
    ink.strokeStyle = "white";
    ink.lineWidth = Math.max(THINNEST, (1.4 * SIDE) / width); // more than one pixel of the model’s image
    ink.lineCap = "round";
    ink.beginPath();
    ink.moveTo(pen.x, pen.y);
    ink.lineTo(x, y);
    ink.stroke();
    Object.assign(pen, { x, y });
  };
  const submit = (final) => {
    const pixels = averaged(ink, width, height);
    showPixels(seen, pixels);
    predictor.predict([pixels], { final, picture: final ? seen.toDataURL() : null });
  };

  const at = (event) => [(event.offsetX * SIDE) / board.clientWidth, (event.offsetY * SIDE) / board.clientHeight];
  board.addEventListener("pointerdown", (event) => {
    board.setPointerCapture(event.pointerId);
    [pen.x, pen.y] = at(event);
    pen.down = true;
    stroke(...at(event));
    submit(false);
  });
  board.addEventListener("pointermove", (event) => {
    if (!board.hasPointerCapture(event.pointerId)) return;
    stroke(...at(event));
    submit(false);
  });
  const lift = () => {
    if (!pen.down) return;
    pen.down = false;
    submit(true);
  };
  board.addEventListener("pointerup", lift);
  board.addEventListener("pointercancel", lift);
  board.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === " ") pen.down ? lift() : ((pen.down = true), stroke(pen.x, pen.y), submit(false));
    else if (event.key === "Delete") clear();
    else if (move) {
      const [x, y] = [inside(pen.x + STEP * move[0]), inside(pen.y + STEP * move[1])];
      if (pen.down) stroke(x, y), submit(false);
      else Object.assign(pen, { x, y });
    } else return;
    event.preventDefault();
  });

  clear();
  return element(
    "div",
    { class: "drawing" },
    element("p", { class: "hint" }, "Or draw with the mouse, a finger, or the arrow keys and Space."),
    board,
    element(
      "div",
      {},
      element("figure", {}, seen, element("figcaption", {}, "as the model sees it")),
      element("button", { type: "button", onclick: clear }, "Clear the board"),
    ),
  );
}

const inside = (value) => Math.min(Math.max(value, 0), SIDE);

// The board scaled down to the model’s image by averaging: rows of whole numbers from 0 to 255.
function averaged(ink, width, height) {
  const { data } = ink.getImageData(0, 0, SIDE, SIDE);
  const sums = Array.from({ length: height }, () => new Array(width).fill(0));
  const counts = sums.map((row) => row.slice());
  for (let y = 0; y < SIDE; y++) {
    for (let x = 0; x < SIDE; x++) {
      const [row, column] = [Math.floor((y * height) / SIDE), Math.floor((x * width) / SIDE)];
      sums[row][column] += data[4 * (y * SIDE + x)];
      counts[row][column] += 1;
    }
  }
  return sums.map((row, y) => row.map((sum, x) => Math.round(sum / counts[y][x])));
}

function showPixels(canvas, pixels) {
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  pixels.flat().forEach((value, index) => image.data.set([value, value, value, 255], 4 * index));
  context.putImageData(image, 0, 0);
}
