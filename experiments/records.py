"""The records of runs, as the tables need them: read from ``results/<experiment>/<run>.json``."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from besnn.errors import DataError
from besnn.evaluation.metrics import OODMetrics
from experiments.paper import Spread


@dataclass(frozen=True, order=True)
class Setting:
    """What is averaged over seeds: one method in one setting of one experiment.

    ``variant`` says in a few words what tells settings apart that share the rest: the two sides of an ablation, the
    hardware of a timing.
    """

    experiment: str
    in_name: str
    method: str
    members: int
    variant: str = ""


@dataclass(frozen=True)
class Record:
    """One run, for the fields that tables show; a timing has no accuracy and no scores."""

    setting: Setting
    seed: int
    parameters: int
    seconds: float
    accuracy: float = float("nan")
    default_score: str = ""
    scores: Mapping[str, Mapping[str, OODMetrics]] = field(default_factory=dict)


def load_records(folder: str | os.PathLike[str]) -> list[Record]:
    """All records under a folder, ordered by setting and seed.

    A seed counted twice would make the spread look smaller than it is, so two records of one setting and seed are an
    error.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: give the one that holds <experiment>/<run>.json")
    records = [_read(path) for path in sorted(root.glob("*/*.json")) if path.parent.name != "bench"]  # timings, not runs
    for (setting, seed), count in Counter((record.setting, record.seed) for record in records).items():
        if count > 1:
            raise DataError(
                f"{count} records of seed {seed} for {setting}: remove all but one, or name them apart by 'variant'"
            )
    return sorted(records, key=lambda record: (record.setting, record.seed))


def parse_record(fields: Mapping[str, Any]) -> Record:
    """A record from its JSON fields; what the tables don't show is ignored.

    >>> subject = {"experiment": "table2", "method": "softmax", "in": "fashion-mnist", "members": 1, "seed": 0}
    >>> parse_record(subject | {"parameters": 1_152_778, "seconds": 0.0014}).seconds
    0.0014
    """
    setting = Setting(
        experiment=str(fields["experiment"]),
        in_name=str(fields["in"]),
        method=str(fields["method"]),
        members=int(fields["members"]),
        variant=str(fields.get("variant", "")),
    )
    scores = fields.get("scores", {})
    return Record(
        setting=setting,
        seed=int(fields["seed"]),
        parameters=int(fields["parameters"]),
        seconds=float(fields["seconds"]),
        accuracy=float(fields["accuracy"]) if scores else float("nan"),
        default_score=str(fields["default_score"]) if scores else "",
        scores=scores,
    )


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation over seeds.

    >>> spread([1.0, 3.0])
    Spread(mean=2.0, sd=1.4142135623730951)
    """
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


def _read(path: Path) -> Record:
    try:
        return parse_record(json.loads(path.read_text(encoding="utf-8")))
    except KeyError as error:
        raise DataError(f"{path} is not a record: the field {error} is missing") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a record: {error}") from None
