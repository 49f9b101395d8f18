"""Label sets and a limit on errors: known, unsure or unknown.

An accepted input gets a set of labels that holds the right one with a stated probability. Two labels or more mean unsure.
"""

import matplotlib.pyplot as plt
import numpy as np

from besnn import fit_detector
from besnn.data import Dataset, two_moons
from besnn.training import load_recipe


def noisy_moons(n: int, seed: int) -> Dataset:
    """Two moons that overlap."""
    return two_moons(n, noise=0.3, seed=seed)


recipe = load_recipe("two-moons", ["training.epochs=30", "data.calibration=0"])
detector = fit_detector(recipe, noisy_moons(1500, seed=0)).detector
held_out = noisy_moons(4000, seed=1)
detector.calibrate(held_out.inputs, alpha=0.05, labels=held_out.labels, label_alpha=0.05)

x, y = np.meshgrid(np.linspace(-3, 4, 110), np.linspace(-2.5, 3, 90))
decision = detector.predict(np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)).decision
codes = np.select([decision == "known", decision == "unsure"], [0, 1], 2)
plt.contourf(x, y, codes.reshape(x.shape), levels=[-0.5, 0.5, 1.5, 2.5], colors=["#9ecae1", "#fdd49e", "#dddddd"])
plt.scatter(*held_out.inputs[:300].T, c=held_out.labels[:300], s=5, cmap="coolwarm")
plt.title("blue: known, orange: unsure, grey: unknown")
plt.savefig("label_sets.png", dpi=80, bbox_inches="tight")

new = noisy_moons(5000, seed=2)
answers = detector.predict(new.inputs)
accepted = ~answers.is_ood
print(f"accepted inputs whose set holds the right label: {answers.label_sets[accepted, new.labels[accepted]].mean():.3f}")
print({name: f"{(answers.decision == name).mean():.0%}" for name in ("known", "unsure", "unknown")})
