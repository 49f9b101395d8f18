"""The ablations: the gradient penalty's weight, the entropy term with either estimator or without it, and mirror images.

The paper's third, tempered against plain softmax over N, needs no runs: each of Table 3's records holds both scores.
"""

from collections.abc import Iterable, Sequence

from besnn.recipe.methods import BESNNConfig
from experiments.benchmarks import benchmark_of
from experiments.runs import Run, reproduction_recipe

GRADIENT_WEIGHTS = (0.0, 0.1, 0.5, 1.0)
ESTIMATORS = ("kl", "kpn")
PAPER_ENTROPY_WEIGHT = 1.0


def ablation_runs(in_name: str, seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """Every setting with every seed; settings that come to the same recipe are one run, under both their names.

    >>> [run.variant for run in ablation_runs("fashion-mnist", seeds=[0])][:3]
    ['gradient weight 0.0', 'gradient weight 0.1, no entropy term', 'gradient weight 0.5']
    """
    base = reproduction_recipe(in_name, "be-snn", 0, overrides).method
    assert isinstance(base, BESNNConfig)
    entropy_weight = base.entropy_weight or PAPER_ENTROPY_WEIGHT
    settings = {f"gradient weight {weight}": [f"method.gradient_weight={weight}"] for weight in GRADIENT_WEIGHTS}
    settings["no entropy term"] = ["method.entropy_weight=0"]
    settings |= {
        f"entropy by {name}": [f"method.estimator={name}", f"method.entropy_weight={entropy_weight}"] for name in ESTIMATORS
    }
    if base.mirror:
        settings["no mirror images"] = ["method.mirror=false"]
    runs = []
    for seed in seeds:
        recipes = {name: reproduction_recipe(in_name, "be-snn", seed, [*overrides, *own]) for name, own in settings.items()}
        for name, recipe in recipes.items():
            alike = [other for other in recipes if recipes[other] == recipe]
            if name == alike[0]:
                runs.append(Run("ablations", recipe, benchmark_of(in_name).unknown, ", ".join(alike)))
    return runs
