"""Your own images: a folder with one sub-folder per class.

Here the folder is made of handwritten digits from 0 to 7. `besnn train images/` does the same from the command line.
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from besnn import fit_detector
from besnn.data import ImageSpec, load
from besnn.training import load_recipe

digits, folder = load_digits(), Path(mkdtemp())
pixels = (digits.images * 255 / 16).astype(np.uint8)
for number, (image, label) in enumerate(zip(pixels[:1200], digits.target[:1200], strict=True)):
    if label < 8:
        (folder / str(label)).mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / str(label) / f"{number}.png")

recipe = load_recipe("digits", ["training.epochs=15"])
detector = fit_detector(recipe, load(folder, image=ImageSpec((8, 8), channels=1))).detector

strange = pixels[digits.target >= 8][:, None]
answers = detector.predict(strange)
print(f"flagged of eights and nines: {answers.is_ood.mean():.0%}")

figure, axes = plt.subplots(2, 8, figsize=(9, 3))
for axis, image, label, p in zip(axes.flat, strange, answers.labels, answers.p_value, strict=False):
    axis.imshow(image[0], cmap="gray")
    axis.set_title(f"{label}?  p = {p:.2f}", fontsize=8, color="red" if p <= 0.05 else "black")
    axis.axis("off")
figure.suptitle("Digits that it never saw; red: flagged")
figure.savefig("own_images.png", dpi=80, bbox_inches="tight")
