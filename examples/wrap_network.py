"""Wrap a trained network: a calibrated detector without training.

The network stays as it is. besnn finds its layers, chooses a score on held-out images, and sets the threshold.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import besnn

digits = load_digits()
pixels = (digits.images[:, None] * 255 / 16).astype(np.uint8)
known = np.flatnonzero(digits.target < 8)
train, held_out, test = known[:800], known[800:1100], known[1100:]

# Your own network, trained in your own way.
torch.manual_seed(0)
network = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 8))
optimiser = torch.optim.Adam(network.parameters())
for _ in range(6):
    for rows in torch.randperm(len(train)).split(32):
        images, labels = torch.from_numpy(pixels[train[rows]]) / 255, torch.from_numpy(digits.target[train[rows]])
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimiser.step()

detector = besnn.wrap(network.eval(), pixels[train], digits.target[train], alpha=0.05, held_out=pixels[held_out])
scores = {"known digits": detector.score(pixels[test]), "eights and nines": detector.score(pixels[digits.target >= 8])}
print(f"score: {detector.scoring.name}, layers: {detector.layer}")
print({name: f"{(values > detector.threshold.threshold).mean():.0%} flagged" for name, values in scores.items()})

plt.hist(list(scores.values()), bins=30, label=list(scores))
plt.axvline(detector.threshold.threshold, color="black", label="threshold")
plt.xlabel(f"score ({detector.scoring.name})")
plt.legend()
plt.savefig("wrap_network.png", dpi=80, bbox_inches="tight")
