"""Why was this flagged? The places that make an image strange, and the known images that it resembles.

A detector knows the digits from 0 to 7 and explains eights and nines. The service's page shows the same.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from besnn import fit_detector
from besnn.data import Dataset
from besnn.training import load_recipe

digits = load_digits()
pixels = (digits.images * 255 / 16).astype(np.uint8)[:, None]
known = digits.target < 8
training = Dataset(pixels[known], digits.target[known], tuple("01234567"), "digits")
detector = fit_detector(load_recipe("digits", ["training.epochs=15"]), training).detector

strange = pixels[~known]
strange = strange[np.argsort(detector.predict(strange).p_value)[:4]]
why = detector.explain(strange, neighbours=3)

figure, axes = plt.subplots(4, 5, figsize=(7, 6))
for row, image, heat, neighbours in zip(axes, strange, why.heat_maps, why.neighbours, strict=True):
    row[0].imshow(image[0], cmap="gray")
    row[1].imshow(heat, cmap="magma")
    for axis, example in zip(row[2:], neighbours, strict=True):
        axis.imshow(detector.examples.inputs[example, 0], cmap="gray")
        axis.set_title(detector.class_names[detector.examples.labels[example]], fontsize=8)
for axis in axes.flat:
    axis.axis("off")
figure.suptitle("Flagged; where it is strange; the nearest known images, with their classes")
figure.savefig("why_flagged.png", dpi=80, bbox_inches="tight")

for part, surprise in why.surprise.items():
    print(f"{part}: one known input in {np.exp(surprise[0]):,.0f} is as strange as the first image")
