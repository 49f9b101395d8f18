"""Fit all scores of a wrapped network to features that are computed once, and choose one on made-up outliers."""

import numpy as np
import torch
from torch import Tensor

from besnn.data import Dataset
from besnn.detection import CombinedScore, Density, ScoreSet, scores_for
from besnn.detection.densities import DENSITIES, HEAD_DENSITIES, DensitySettings, LayerDensity, density_kind, name_at_layer
from besnn.detection.score_set import COMBINED
from besnn.detector import Array, Detector
from besnn.errors import InputError
from besnn.training.batches import Source
from besnn.training.choose_score import made_up_aurocs
from besnn.wrapping.layers import FoundLayers

AUTO = "auto"
NEIGHBOUR, GAUSSIANS = "nearest-neighbour", ("mahalanobis", "relative-mahalanobis")
MEMORY = 64 * 2**20
MOST_ROWS = 50_000  # training inputs that are looked at
MOST_NEIGHBOURS = 10_000
FEATURE_BYTES = 2**30  # training features in memory while scores are fitted
BYTES_PER_NUMBER = 10  # of a stored neighbour, with all that makes its search fast
CHOICE_ROWS = 256  # held-out inputs that outliers are made of
K = 1
LOGITS = "energy"  # the part of `combined` that looks at the logits
BEYOND = 4.0  # the surprise −log p beyond which a layer counts, that of 1 known input in 55


def score_names() -> list[str]:
    """Return the scores that `wrap` knows.

    >>> score_names()[-4:]
    ['react', 'fdbd', 'nac', 'combined']
    """
    evidence = [name for name in scores_for("logits") if name != "mutual-information"]  # a single network agrees with itself
    return [*evidence, NEIGHBOUR, *GAUSSIANS, *HEAD_DENSITIES, COMBINED]


class ScoreFit:
    """The scores of a detector around a wrapped network, fitted to one pass over its training inputs.

    The scores of inner layers are called `nearest-neighbour at layer3`; those without a layer look at what goes into the
    classifier. `combined` adds up the energy of the logits and the nearest neighbours at all layers. A layer counts only where
    it is more surprised than `BEYOND`: early layers then detect inputs of another kind, and do not blur near outliers, whose
    textures are ordinary.
    """

    def __init__(
        self, detector: Detector, found: FoundLayers, training: Source, held_out: Array | None, memory: int = MEMORY
    ) -> None:
        self.detector, self.found, self.training, self.held_out, self.memory = detector, found, training, held_out, memory
        joined = ["+".join(found.names)] if len(found.names) > 1 else []
        self.groups = [*found.names, *joined]
        self.columns: dict[str, slice] = {}

    def choose(self, score: str) -> None:
        """Fit the scores that are needed, and let the named one decide, or the best one on made-up outliers."""
        detector, names = self.detector, score_names()
        evidence = names[: names.index(NEIGHBOUR)]
        if score in evidence:
            detector.scoring, detector.layer = ScoreSet("logits", score), None
            return
        self.fit(score)
        name = score
        if score == AUTO:
            name = self.best()
        elif score == COMBINED and detector.scoring.combined is None:
            raise InputError("score='combined' is not possible: all scores are the same for all held-out inputs")
        elif score not in detector.scoring.names:  # the network has no linear head: its last layer stands in
            name = self._at_last_layer(score)
        detector.scoring = detector.scoring.keep(name)
        self._drop_layers()

    def fit(self, score: str = AUTO) -> None:
        """Fit all densities, or those that one score needs, and their combination."""
        self.detector.layer = ",".join(self.groups)
        features, labels = self.training_features()
        kinds = {AUTO: None, COMBINED: (NEIGHBOUR,)}.get(score, (score,))
        densities: dict[str, Density] = {}
        for group, columns in self.columns.items():
            if score == COMBINED and "+" in group:
                continue
            own = features[..., columns].to(self.detector.scoring_device)
            for name, density in self._unfitted(group, own.shape[-1]).items():
                if kinds is None or density_kind(name) in kinds:
                    fitted = density.fit(own, labels)
                    densities[name] = LayerDensity(fitted, columns.start, columns.stop - columns.start)
        self.detector.scoring = ScoreSet("logits", self.detector.model.default_score, densities)
        if score in (AUTO, COMBINED):
            self.detector.scoring.combined = self._combined()

    def best(self) -> str:
        """Return the score that is best on made-up outliers, on average over their kinds; note the table in the provenance."""
        scoring, held_out = self.detector.scoring, np.asarray(self._held_out())
        names = [name for name in scoring.names if name != "mutual-information"]
        rows = np.random.default_rng(0).permutation(len(held_out))[:CHOICE_ROWS]
        kinds = ("permuted-columns",) if self.detector.preprocessing.form == "tokens" else None
        some = Dataset(held_out[np.sort(rows)], None, self.detector.class_names, "held-out inputs")
        table = made_up_aurocs(self.detector, some, names, kinds)
        self.detector.provenance["score_choice"] = table
        return max(names, key=lambda name: float(np.mean(list(table[name].values()))))

    def _held_out(self) -> Array:
        if self.held_out is None or len(self.held_out) < 2:
            raise InputError("there are too few images to choose a score by: pass a few hundred, or name a score")
        return self.held_out

    def training_features(self) -> tuple[Tensor, Tensor]:
        """Return the features of all layers `[1, n, d]` of training inputs, and their labels, from one pass."""
        training, detector = self.training, self.detector
        width = self._find_columns()
        rows = min(MOST_ROWS, max(1000, FEATURE_BYTES // (4 * width)), len(training))
        chosen = np.sort(np.random.default_rng(0).permutation(len(training))[:rows])
        features, (labels, predicted) = torch.empty(1, rows, width), torch.empty(2, rows, dtype=torch.int64)
        at = slice(0)
        for inputs, classes in training.batches(torch.from_numpy(chosen), 512):
            at = slice(at.stop, at.stop + len(inputs))
            ((evidence, features[:, at]),) = detector.outputs(inputs, detector.layer, len(inputs))
            labels[at], predicted[at] = classes, evidence[0].argmax(dim=1)
        features, labels, predicted = features[:, : at.stop], labels[: at.stop], predicted[: at.stop]
        for group, columns in self.columns.items():
            if not bool(torch.isfinite(features[..., columns]).all()):
                raise InputError(f"layer {group!r} returns NaN or infinite numbers for some images: leave it out with layers=")
        detector.provenance["accuracy"] = round(float((predicted == labels).double().mean()), 4)
        return features, labels

    def _find_columns(self) -> int:
        """Find which columns of the features belong to which group of layers; return the number of all columns."""
        detector, first = self.detector, 0
        one = torch.zeros(1, *detector.input_shape, dtype=detector.preprocessing.dtype)
        for group in self.groups:
            (_, features), *_ = detector.outputs(one, group)
            self.columns[group] = slice(first, first := first + features.shape[-1])
        return first

    def _unfitted(self, group: str, d: int) -> dict[str, Density]:
        """Return the densities of a group of layers by name, as far as they fit into the memory."""
        widths = [columns.stop - columns.start for name, columns in self.columns.items() if "+" not in name]
        numbers = d if "+" in group else sum(widths)  # `combined` keeps the neighbours of all single layers
        rows = max(1, min(MOST_NEIGHBOURS, self.memory // (BYTES_PER_NUMBER * numbers + 64 * len(widths))))
        settings = DensitySettings(min(K, rows), rows, self.found.head)
        neighbours = DENSITIES[NEIGHBOUR].from_settings(settings)
        if group != self.found.features:
            return {name_at_layer(NEIGHBOUR, group): neighbours}
        classes = self.detector.model.num_classes
        densities: dict[str, Density] = {NEIGHBOUR: neighbours}
        for count, kind in enumerate(GAUSSIANS, start=1):
            if count * 8 * d * (d + classes) <= self.memory:
                densities[kind] = DENSITIES[kind].from_settings(settings)
        if self.found.head is not None and 4 * d * (d + 2 * classes) <= self.memory:
            densities |= {kind: density.from_settings(settings) for kind, density in HEAD_DENSITIES.items()}
        return densities

    def _combined(self) -> CombinedScore | None:
        neighbours = [name for name in self.detector.scoring.densities if density_kind(name) == NEIGHBOUR and "+" not in name]
        found = self.detector.scores(self._held_out(), [LOGITS, *neighbours])
        parts = {name: torch.from_numpy(scores) for name, scores in found.items() if np.ptp(scores) > 0}
        return CombinedScore(parts, dict.fromkeys(neighbours, BEYOND)) if parts else None

    def _at_last_layer(self, score: str) -> str:
        at_layers = [name for name in self.detector.scoring.names if density_kind(name) == score and "+" not in name]
        if not at_layers:
            raise InputError(
                f"score={score!r} needs a network that ends in a linear layer, and memory for it: choose another score"
            )
        return at_layers[-1]

    def _drop_layers(self) -> None:
        """Keep only the layers that the deciding score looks at."""
        scoring, first, kept = self.detector.scoring, 0, []
        for group, columns in self.columns.items():
            width = columns.stop - columns.start
            users = [
                density
                for density in scoring.densities.values()
                if isinstance(density, LayerDensity) and (density.first, density.width) == (columns.start, width)
            ]
            for density in users:
                density.first = first
            if users:
                kept.append(group)
                first += width
        self.detector.layer = ",".join(kept) or None
        self.detector.forget_networks()
