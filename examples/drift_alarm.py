"""A drift alarm on a stream that you can watch for as long as you like.

The monitor bets that the stream is unlike the calibration data. The probability of ever raising a false alarm is at most 1 %.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from besnn import BESNNClassifier
from besnn.detection import DriftMonitor

digits = load_digits()
images = digits.images[:, None] / 16
known, new = np.flatnonzero(digits.target < 8), np.flatnonzero(digits.target >= 8)
reader = BESNNClassifier(hidden=(16, 32), epochs=8, random_state=0).fit(images[known[:700]], digits.target[known[:700]])

monitor = DriftMonitor.from_calibration(reader.ood_score(images[known[700:1000]]), ood_threshold=np.inf)
rng = np.random.default_rng(0)
ordinary = rng.choice(known[1000:], 600)
changed = np.where(rng.random(400) < 0.3, rng.choice(new, 400), rng.choice(known[1000:], 400))  # three in ten are new
evidence = monitor.update(reader.ood_score(images[np.concatenate([ordinary, changed])]))
print(f"alarm: {monitor.status().alarm}, {int(np.argmax(evidence > np.log(100))) - 600} inputs after the change")

plt.plot(evidence / np.log(10))
plt.axhline(2, color="red", linestyle="dashed", label="alarm: false with probability 1 % at most")
plt.axvline(600, color="grey", linestyle="dotted", label="eights and nines begin to appear")
plt.xlabel("inputs")
plt.ylabel("evidence, in powers of ten")
plt.legend()
plt.savefig("drift_alarm.png", dpi=80, bbox_inches="tight")
