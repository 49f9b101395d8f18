"""Two moons: confidence stays where the data are.

A BE-SNN learns two interleaved half-circles. Its confidence is high on them and falls with the distance, in every direction.
"""

import matplotlib.pyplot as plt
import numpy as np

from besnn import fit_detector
from besnn.data import two_moons
from besnn.training import load_recipe

moons = two_moons(1000)
detector = fit_detector(load_recipe("two-moons", ["training.epochs=60"]), moons).detector

x, y = np.meshgrid(np.linspace(-4, 5, 90), np.linspace(-4, 4, 80))
points = np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)
confidence = -detector.score(points, "kernel-confidence")

plt.contourf(x, y, confidence.reshape(x.shape), levels=20)
plt.colorbar(label="confidence")
plt.scatter(*moons.inputs[:200].T, c=moons.labels[:200], s=6, cmap="gray")
plt.title("Confidence of four members")
plt.savefig("two_moons.png", dpi=80, bbox_inches="tight")
print(f"flagged at (4, 4): {detector.predict([[4.0, 4.0]]).is_ood[0]}")
