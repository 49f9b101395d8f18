"""A reported network as a detector again: from the weights that a run kept, checked against the run's record."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from besnn.data import load
from besnn.detector import Detector
from besnn.errors import BesnnError, InputError
from besnn.evaluation import ood_metrics
from besnn.training.choose_score import fit_scoring
from besnn.training.record import provenance, read_record, write_record
from besnn.training.split import split_data
from experiments.comparison import Row
from experiments.detection import accuracy_of, official_test_set
from experiments.rendering import Table
from experiments.runs import Run, Workspace, is_recorded

DETECTOR = "detector"
TOLERANCE = 0.002
"""How far a figure may be from its record: kinds of machines round differently, and a few of 10,000 inputs change sides."""


@dataclass(frozen=True)
class Comparison:
    """A figure of a record and the same found again."""

    name: str
    recorded: float
    found: float

    @property
    def agrees(self) -> bool:
        """Whether they are the same but for rounding."""
        return abs(self.recorded - self.found) <= TOLERANCE


def keep_weights(detector: Detector, path: Path) -> None:
    """Writes a detector without its densities, which are many times the size of a network and can be fitted again."""
    network = Detector(
        detector.model, detector.preprocessing, detector.class_names, detector.recipe, provenance=detector.provenance
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    network.save(path)


def rebuild(run: Run, workspace: Workspace) -> Detector:
    """The detector of a recorded run: its kept weights, and the score that its recipe names fitted to the training set."""
    path = workspace.weights(run)
    if not is_recorded(run, workspace):
        raise InputError(f"there is no record {workspace.record(run)}: run it first (python -m experiments {run.experiment})")
    if not path.exists():
        raise InputError(f"there are no weights {path}: remove the record and run it again with --keep-weights")
    detector = Detector.load(path)
    training = load(run.recipe.data.source, split="train", data_dir=workspace.data_dir)
    parts = split_data(training, run.recipe.data, run.recipe.training.seed)
    fit_scoring(detector, run.recipe.score, parts.training, parts.validation)
    return detector


def compare(detector: Detector, run: Run, workspace: Workspace) -> Iterator[Comparison]:
    """Accuracy, and AUROC of the paper's score and the one that decides, against the record."""
    record: dict[str, Any] = read_record(workspace.record(run))
    known = official_test_set(run.in_name, run, workspace).align_classes(detector.class_names)
    yield Comparison("accuracy", record["accuracy"], accuracy_of(detector, known))
    names = dict.fromkeys((detector.model.default_score, record["default_score"]))
    in_scores = {name: detector.score(known.inputs, name) for name in names}
    for set_name in run.unknown:
        unknown = official_test_set(set_name, run, workspace)
        for name in names:
            auroc = ood_metrics(in_scores[name], detector.score(unknown.inputs, name))["auroc"]
            yield Comparison(f"AUROC of {name} on {set_name}", record["scores"][name][set_name]["auroc"], auroc)


def note_down(comparisons: Sequence[Comparison], run: Run, workspace: Workspace) -> Path:
    """Writes what was compared, and on what machine the figures were found again, beside the other records."""
    there = read_record(workspace.record(run))["provenance"]
    sets = [official_test_set(name, run, workspace) for name in (run.in_name, *run.unknown)]
    hashes = {file: digest for each in sets for file, digest in each.hashes.items()}
    fields = {
        "run": workspace.record(run).relative_to(workspace.results).as_posix(),
        "recorded_on": there["hardware"],
        "figures": [asdict(each) for each in comparisons],
        "provenance": provenance(hashes),
    }
    path = workspace.results / f"{DETECTOR}.json"
    write_record(path, fields)
    return path


def detector_table(results: Path) -> Table:
    """A detector's figures where it was trained, and where it was made again of its weights."""
    path = results / f"{DETECTOR}.json"
    nothing: dict[str, Any] = {"figures": [], "recorded_on": "", "provenance": {"hardware": ""}}
    fields = read_record(path) if path.exists() else nothing
    rows = [Row((each["name"], f"{each['recorded']:.4f}", f"{each['found']:.4f}")) for each in fields["figures"]]
    header = ("Figure", f"In its record, {fields['recorded_on']}", f"Made again, {fields['provenance']['hardware']}")
    note = "Trained networks score in bfloat16 on a GPU and in float32 on a CPU."
    return Table("The trained detector again", header, 1, rows, note)


def check(comparisons: Sequence[Comparison]) -> None:
    """Refuses a detector whose figures are not those of its record."""
    if wrong := [each for each in comparisons if not each.agrees]:
        first = wrong[0]
        raise BesnnError(
            f"{first.name} is {first.found:.4f}, but {first.recorded:.4f} in the record: the weights are not its own"
        )
