"""A score of your own: one function and one line in a registry.

It then has a name everywhere: in recipes, evaluations, model files and exported graphs.
"""

import matplotlib.pyplot as plt

from besnn import fit_detector
from besnn.data import made_up_outliers, two_moons
from besnn.detection import SCORES
from besnn.evaluation import ood_metrics
from besnn.training import load_recipe


def distance_ratio(distances):
    """The distance to the nearest class over that to the second nearest: 1 halfway between two classes."""
    nearest, second = distances.mean(dim=0).topk(2, dim=-1, largest=False).values.unbind(dim=-1)
    return nearest / second


SCORES["distances"]["distance-ratio"] = distance_ratio

detector = fit_detector(load_recipe("two-moons", ["training.epochs=60"]), two_moons(1000)).detector
known = two_moons(500, seed=1).inputs
kinds = made_up_outliers(known)
names = ("distance-ratio", "tempered-entropy", "smallest-distance")
aurocs = {
    name: [ood_metrics(detector.score(known, name), detector.score(kind, name))["auroc"] for kind in kinds.values()]
    for name in names
}
print({name: [f"{value:.2f}" for value in values] for name, values in aurocs.items()})

for place, (name, values) in enumerate(aurocs.items()):
    plt.bar([kind + 0.25 * place for kind in range(len(kinds))], values, width=0.25, label=name)
plt.xticks(range(len(kinds)), list(kinds), rotation=30, ha="right")
plt.ylabel("AUROC on made-up outliers")
plt.legend()
plt.savefig("own_score.png", dpi=80, bbox_inches="tight")
