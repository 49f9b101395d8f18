"""Group flagged inputs by the detector's own features, and keep the groups with their names in a folder.

Only the strangest inputs of a new kind are flagged, and a network that learns the kind from these alone takes the others for
what they took them for before. So a group also comes with inputs that resemble it, flagged or not.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from besnn.detector import Array, Detector, Predictions
from besnn.errors import DataError, InputError, one_line
from besnn.storage.files import whole_file

FALSE_ALARM, JUNK = "false alarm", "junk"
"""Names that dismiss a group: known after all, or of no use."""
DIMENSIONS = 20
"""Principal components of the features that inputs are grouped by: distances in more dimensions tell little."""
NEIGHBOURS = 5
"""The distance to a group is that to so many of its inputs, or to more where known examples are few beside the inputs."""
WITHIN = 0.95
"""What resembles a group is as near to it as this share of the group's own inputs, and nearer than to what is known."""
NAMES, MEMBERS = "groups.yaml", "flagged.csv"
_HELP = f"""\
# Name each group: a class, new or known; {FALSE_ALARM!r}, if its inputs are known after all; {JUNK!r}, if they are of no use.
# Leave a name empty to decide later. So many inputs that resemble the group join it, the nearest first: lower `similar` to take
# fewer, or none. Then run the same command with --apply.
"""


@dataclass(frozen=True)
class Group:
    """Flagged inputs that resemble each other.

    Attributes:
        rows: of the inputs, the most typical first.
        nearest_class: the label that most of them would have.
        name: what a person calls the group; empty until then.
        similar: inputs in no group that resemble this one, whether they were flagged or not, the nearest first.

    >>> Group(np.array([5, 2]), nearest_class="cat", name="dog").name
    'dog'
    """

    rows: NDArray[np.int64]
    nearest_class: str
    name: str = ""
    similar: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class Triage:
    """The groups of flagged inputs by their keys, and the flagged inputs in no group (`single`; some may resemble a group).

    >>> triage = Triage({"group-1": Group(np.array([5, 2]), nearest_class="cat", name="dog")}, single=np.array([7]))
    >>> triage.classes, triage.rows_named("dog")
    (['dog'], array([2, 5]))
    """

    groups: dict[str, Group]
    single: NDArray[np.int64]

    def save(self, folder: Path, names: Sequence[str]) -> None:
        """Write the groups, whose names a person edits, and which input is in which group; `names` are those of the inputs."""
        folder.mkdir(parents=True, exist_ok=True)
        listed = {
            key: {
                "size": len(group.rows),
                "similar": len(group.similar),
                "nearest_class": group.nearest_class,
                "name": group.name,
            }
            for key, group in self.groups.items()
        }
        with whole_file(folder / NAMES) as partial:
            text = yaml.safe_dump({"groups": listed}, sort_keys=False, allow_unicode=True)
            partial.write_text(_HELP + text, encoding="utf-8")
        with whole_file(folder / MEMBERS) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["row", "input", "group", "similar"])
            for key, group in self.groups.items():
                writer.writerows([row, names[row], key, ""] for row in group.rows.tolist())
                writer.writerows([row, names[row], key, "similar"] for row in group.similar.tolist())
            writer.writerows([row, names[row], "", ""] for row in self.single.tolist())

    @classmethod
    def load(cls, folder: Path) -> "Triage":
        """Read what `save` wrote, with the names that a person gave."""
        listed = _read_names(folder / NAMES)
        found: dict[tuple[str, bool], list[int]] = {}
        try:
            with (folder / MEMBERS).open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    found.setdefault((row["group"], bool(row.get("similar"))), []).append(int(row["row"]))
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f"cannot read {folder / MEMBERS} ({one_line(error)}): group the inputs again") from None

        def rows(key: str, similar: bool = False) -> NDArray[np.int64]:
            return np.array(found.get((key, similar), []), np.int64)

        groups = {
            key: Group(
                rows(key), each["nearest_class"], str(each["name"] or "").strip(), rows(key, similar=True)[: each["similar"]]
            )
            for key, each in listed.items()
        }
        return cls(groups, rows(""))

    def rows_named(self, name: str) -> NDArray[np.int64]:
        """Return the inputs of all groups with a name, ascending; of a class, also those that resemble them."""
        own = [group for group in self.groups.values() if group.name == name]
        similar = [] if name in (FALSE_ALARM, JUNK) else [group.similar for group in own]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(group.rows for group in own), *similar]))

    @property
    def classes(self) -> list[str]:
        """The classes that groups were named after, in order."""
        names = dict.fromkeys(group.name for group in self.groups.values())
        return [name for name in names if name not in ("", FALSE_ALARM, JUNK)]


def _read_names(path: Path) -> dict[str, Any]:
    try:
        groups = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for key, group in groups.items():
            group["nearest_class"], group["name"] = str(group["nearest_class"]), group.get("name")
            if not isinstance(group["name"], str | int | float | None):
                raise InputError(f"{path}: the name of {key} is {group['name']!r}: give a text")
            if not isinstance(group.setdefault("similar", 0), int) or group["similar"] < 0:
                raise InputError(f"{path}: similar of {key} is {group['similar']!r}: give a number of inputs")
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}): run besnn triage without --apply first") from None
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not a file of groups ({one_line(error)}): change only the names in it") from None
    found: dict[str, Any] = groups
    return found


def find_groups(detector: Detector, inputs: Array, predictions: Predictions, smallest: int = 10) -> Triage:
    """Group the flagged inputs by HDBSCAN on the principal components of their features. The largest group comes first.

    >>> from besnn.model import Preprocessing, WrappedNetwork
    >>> network = WrappedNetwork(torch.nn.Identity(), num_classes=2)  # the inputs are the logits
    >>> detector = Detector(network, Preprocessing((2,), torch.zeros(2), torch.ones(2)), ["left", "right"])
    >>> known = [[step / 2, 0.0] for step in range(9, 29)]
    >>> noise = np.random.default_rng(0).normal(0, 0.01, size=(40, 2))
    >>> inputs = np.float32([[1, 1], [-1, -1]]).repeat(20, axis=0) + noise
    >>> predictions = detector.calibrate(known).predict(inputs)
    >>> [len(group.rows) for group in find_groups(detector, inputs, predictions).groups.values()]
    [20, 20]
    """
    flagged = np.flatnonzero(predictions.is_ood)
    labels, typical = _clusters(features_of(detector, inputs[flagged]), smallest)
    by_size = sorted(range(labels.max(initial=-1) + 1), key=lambda label: -int((labels == label).sum()))
    rows = {}
    for number, label in enumerate(by_size, start=1):
        own = np.flatnonzero(labels == label)
        rows[f"group-{number}"] = flagged[own[np.argsort(-typical[own], kind="stable")]]
    similar = _similar(detector, inputs, rows)
    groups = {}
    for key, own in rows.items():
        names, counts = np.unique(predictions.labels[own].astype(str), return_counts=True)
        groups[key] = Group(own, str(names[counts.argmax()]), similar=similar[key])
    return Triage(groups, flagged[labels < 0])


def _similar(detector: Detector, inputs: Array, groups: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    """Return the inputs in no group that resemble each group, the nearest first; none if the detector keeps no examples.

    What joins a group then counts as its own, until no more inputs join. So that a group is no denser than what is known, the
    nearest example is compared with the k-th nearest input of the group, for k inputs per example.
    """
    examples = detector.examples
    if examples is None or not groups:
        return {key: np.zeros(0, np.int64) for key in groups}
    parts, known_parts = [], []
    for _, part in detector.outputs(inputs, detector.layer):
        parts.append(_of_unit_length(part) / len(part) ** 0.5)
        known_parts.append(examples.nearest(part, 1).distances[:, 0])
    features, known = torch.cat(parts), torch.cat(known_parts)
    k = max(NEIGHBOURS, math.ceil(len(features) / len(examples)))
    joined = [[torch.from_numpy(own).to(features.device)] for own in groups.values()]  # by round
    nearest = [features.new_zeros(len(features), 0) for _ in groups]
    free = torch.ones_like(known, dtype=torch.bool)
    free[torch.cat([own for (own,) in joined])] = False
    reach: list[Tensor] = []
    while True:
        nearest = [_nearest(features, rounds[-1], before, k) for rounds, before in zip(joined, nearest, strict=True)]
        reach = reach or [each[own, -1].quantile(WITHIN) for each, (own,) in zip(nearest, joined, strict=True)]
        closest = torch.stack([each[:, -1] for each in nearest]).min(dim=0)
        joins = free & (closest.values < known) & (closest.values <= torch.stack(reach)[closest.indices])
        if not joins.any():
            break
        free &= ~joins
        for place, rounds in enumerate(joined):
            rows = (joins & (closest.indices == place)).nonzero()[:, 0]
            rounds.append(rows[closest.values[rows].argsort(stable=True)])
    return {key: torch.cat(rounds)[len(groups[key]) :].cpu().numpy() for key, rounds in zip(groups, joined, strict=True)}


def _nearest(features: Tensor, rows: Tensor, before: Tensor, k: int) -> Tensor:
    """Return the distances to the at most k nearest of the rows, and of those `before`, `[n, k]`, ascending."""
    found = []
    for part, old in zip(features.split(4096), before.split(4096), strict=True):
        distances = torch.cat([old, 1 - part @ features[rows].T], dim=1)
        found.append(distances.topk(min(k, distances.shape[1]), largest=False).values)
    return torch.cat(found)


def features_of(detector: Detector, inputs: Array) -> NDArray[np.float32]:
    """Return the features that the detector's densities use, `[n, members · d]`, of unit length in each member."""
    parts = [_of_unit_length(features).cpu() for _, features in detector.outputs(inputs, detector.layer)]
    return torch.cat(parts).numpy() if parts else np.zeros((0, 1), np.float32)


def _of_unit_length(features: Tensor) -> Tensor:
    return F.normalize(features.float(), dim=-1).transpose(0, 1).flatten(1)


def _clusters(features: NDArray[np.float32], smallest: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the cluster of each input, −1 for none, and how typical of it the input is."""
    if len(features) < max(smallest, 2):
        return np.full(len(features), -1), np.zeros(len(features))
    from sklearn.cluster import HDBSCAN  # slow to import
    from sklearn.decomposition import PCA

    components = PCA(min(DIMENSIONS, *features.shape), random_state=0).fit_transform(features)
    found = HDBSCAN(min_cluster_size=smallest, min_samples=min(5, smallest), copy=True).fit(components)
    return found.labels_, found.probabilities_
