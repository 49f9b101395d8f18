"""Choose a false-alarm rate: it holds, on average, whatever the network has learned.

The threshold is set on held-out rows. Over many ways of holding out, the share of known rows that are flagged is α.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer

from besnn import BESNNClassifier
from besnn.detection import ConformalThreshold

X, y = load_breast_cancer(return_X_y=True)
order = np.random.default_rng(0).permutation(len(X))
classifier = BESNNClassifier(random_state=0).fit(X[order[:250]], y[order[:250]])
scores = classifier.ood_score(X[order[250:]])  # rows that the network has not seen

rng, rates = np.random.default_rng(1), {alpha: [] for alpha in (0.02, 0.05, 0.1, 0.2)}
for _ in range(500):
    shuffled = rng.permutation(scores)
    for alpha, found in rates.items():
        threshold = ConformalThreshold(shuffled[:200], alpha=alpha).threshold
        found.append(float((shuffled[200:] > threshold).mean()))
print({alpha: f"{np.mean(found):.3f}" for alpha, found in rates.items()})

plt.boxplot(list(rates.values()), positions=list(rates), widths=0.01, manage_ticks=False)
plt.plot([0, 0.22], [0, 0.22], linestyle="dotted", label="what was asked for")
plt.xlabel("α")
plt.ylabel("share of known rows that are flagged")
plt.legend()
plt.savefig("false_alarm_rate.png", dpi=80, bbox_inches="tight")
