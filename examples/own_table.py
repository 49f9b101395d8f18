"""Your own table: flag rows of a class that was never seen.

Three kinds of wine, thirteen measurements. The classifier learns two kinds; the third kind is new to it.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_wine

from besnn import BESNNClassifier

X, y = load_wine(return_X_y=True)
known = y < 2
train = known.nonzero()[0][::2]
test = known.nonzero()[0][1::2]

classifier = BESNNClassifier(random_state=0).fit(X[train], y[train])
print(f"accuracy on new rows of known kinds: {classifier.score(X[test], y[test]):.2f}")
print(f"flagged of the kinds it knows: {classifier.is_ood(X[test], alpha=0.1).mean():.0%}")
print(f"flagged of the kind it does not: {classifier.is_ood(X[~known], alpha=0.1).mean():.0%}")

plt.hist([classifier.ood_score(X[test]), classifier.ood_score(X[~known])], bins=25, label=["known kinds", "the unknown kind"])
plt.xlabel("score: higher is stranger")
plt.ylabel("rows")
plt.legend()
plt.savefig("own_table.png", dpi=80, bbox_inches="tight")
