"""The trained detectors as model files: made from the weights of a recorded run, and checked against its record.

A network learned from 98 % of the training set, and its score is relative to the rest, so the false-alarm rate is calibrated
on one half of the official test set and measured on the other. The file keeps fewer training features than the run did, to be
small enough for a repository; the record of this module holds the figures of the file itself beside those of the run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.documents import Table
from besnn.checks import choose_device
from besnn.data import Dataset, load
from besnn.detector import Detector
from besnn.errors import BesnnError, InputError
from besnn.evaluation import ood_metrics
from besnn.training.choose_score import fit_scoring
from besnn.training.describe import describe
from besnn.training.examples import keep_examples
from besnn.training.fit import Fitted
from besnn.training.record import provenance, read_record, write_record
from besnn.training.split import split_data
from experiments.detection import accuracy_of, official_test_set
from experiments.runs import Run, Workspace, is_recorded

MODELS = Path("models")
STORED_ROWS = 2000
ALPHA = 0.05
TOLERANCE = 0.002
"""How far a figure may be from its record: machines round differently, and a few of 10,000 inputs change sides."""
FEWER_ROWS_TOLERANCE = 0.01
"""The same for scores of the density, which has fewer rows than the run's."""
FEWER_IMAGES = 2000
"""On a CPU, a large network takes too long for all test images: it is checked on the first ones."""


@dataclass(frozen=True)
class Shipped:
    """How a trained detector is made: from which row of Table 1, and how it becomes small enough for a repository."""

    variant: str = ""
    half: bool = False  # weights in 16 bits
    images: int | None = None  # of each test set to check it on; None for all
    score: Mapping[str, str] = field(default_factory=dict)  # changes to the row's own


SHIPPED = {
    "fashion-mnist": Shipped(),
    "cifar10": Shipped(
        "from scratch",
        half=True,
        images=FEWER_IMAGES,
        score={"layer": "trunk", "far": "trunk.stage2,trunk.stage3,method"},  # docs/hunt-cifar10.md says why
    ),
}
"""The trained detectors, by what they were trained on."""


@dataclass(frozen=True)
class Comparison:
    """A figure of a record and the same figure of the detector."""

    name: str
    recorded: float | None  # None: the record does not have this figure
    found: float
    tolerance: float = TOLERANCE

    @property
    def agrees(self) -> bool:
        """Whether they are equal up to the tolerance."""
        return self.recorded is None or abs(self.recorded - self.found) <= self.tolerance


def keep_weights(detector: Detector, path: Path) -> None:
    """Save a detector without its densities, which are many times the size of the network and can be fitted again."""
    network = Detector(
        detector.model, detector.preprocessing, detector.class_names, detector.recipe, provenance=detector.provenance
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    network.save(path)


def kept_network(run: Run, workspace: Workspace, training: Dataset) -> Fitted | None:
    """Return the network that was kept of a run of any experiment, with its score fitted anew; None if there is none.

    The recipes may differ in score and calibration: a network need not be trained again to be judged by others.
    """
    recipe = run.recipe
    for path in sorted((workspace.results / "weights").glob(f"*/{run.name}.safetensors")):
        detector = Detector.load(path)
        if detector.recipe is None:
            continue
        if detector.recipe.model_copy(update={"score": recipe.score, "calibration": recipe.calibration}) != recipe:
            continue
        split = split_data(training, recipe.data, recipe.training.seed)
        detector.to(choose_device(workspace.accelerator))
        detector.recipe = recipe
        fit_scoring(detector, recipe.score, split.training, split.validation)
        detector.provenance["measured"] = describe(detector, split)
        return Fitted(detector, [], split)
    return None


def make_detector(run: Run, workspace: Workspace, stored_rows: int = STORED_ROWS, changes: Mapping[str, str] = {}) -> Detector:
    """Return the calibrated detector of a recorded run, from its kept weights; `changes` are to the fields of its score."""
    if not is_recorded(run, workspace):
        raise InputError(f"there is no record {workspace.record(run)}: run it first (python -m experiments {run.experiment})")
    training = load(run.recipe.data.source, split="train", data_dir=workspace.data_dir)
    densities = run.recipe.score.densities[:1]
    score = run.recipe.score.model_copy(update={"stored_rows": stored_rows, "densities": densities, **changes})
    fitted = kept_network(replace(run, recipe=run.recipe.model_copy(update={"score": score})), workspace, training)
    if fitted is None:
        weights = f"there are no weights {workspace.weights(run)} of this recipe"
        raise InputError(f"{weights}: remove the record and run it again with --keep-weights")
    keep_examples(fitted.detector, fitted.split.training, run.recipe.data.examples)
    calibration, _ = halves_of_test_set(run, workspace)
    return fitted.detector.calibrate(calibration.inputs, ALPHA, labels=calibration.labels)


def halves_of_test_set(run: Run, workspace: Workspace) -> tuple[Dataset, Dataset]:
    """Return one half of the official test set to calibrate on, and the other to measure the false-alarm rate on."""
    known = official_test_set(run.in_name, run, workspace)
    order = np.random.default_rng(0).permutation(len(known))
    return known.subset(np.sort(order[: len(known) // 2])), known.subset(np.sort(order[len(known) // 2 :]))


def compare(detector: Detector, run: Run, workspace: Workspace, images: int | None = None) -> Iterator[Comparison]:
    """Yield accuracy, false-alarm rate, and AUROC of the paper's score and of the default, beside the record's.

    With fewer `images` of each test set, figures may also differ by chance.
    """
    record: dict[str, Any] = read_record(workspace.record(run))
    chance = 0.0 if images is None else 2 * images**-0.5 / 4
    known = _first(official_test_set(run.in_name, run, workspace).align_classes(detector.class_names), images)
    yield Comparison("accuracy", record["accuracy"], accuracy_of(detector, known), TOLERANCE + chance)
    _, other_half = halves_of_test_set(run, workspace)
    other_half = _first(other_half, images)
    flagged = float(detector.predict(other_half.inputs).is_ood.mean())
    four_deviations = 4 * (2 * ALPHA * (1 - ALPHA) / len(other_half)) ** 0.5  # over both halves
    yield Comparison("false-alarm rate on the half that it was not calibrated on", ALPHA, flagged, four_deviations)
    own = detector.model.default_score
    names = list(dict.fromkeys((own, record["default_score"])))
    same = detector.recipe is not None and detector.recipe.score.layer == run.recipe.score.layer
    in_scores = detector.scores(known.inputs, names)
    for set_name in run.unknown:
        out_scores = detector.scores(_first(official_test_set(set_name, run, workspace), images).inputs, names)
        for name in names:
            auroc = ood_metrics(in_scores[name], out_scores[name])["auroc"]
            recorded = record["scores"][name][set_name]["auroc"] if same or name == own else None
            tolerance = TOLERANCE if name == own else FEWER_ROWS_TOLERANCE
            yield Comparison(f"AUROC of {name} on {set_name}", recorded, auroc, tolerance + chance)


def _first(dataset: Dataset, images: int | None) -> Dataset:
    """Return as many of a set's first images; all if None."""
    return dataset if images is None else dataset.subset(np.arange(min(images, len(dataset))))


def check(comparisons: Sequence[Comparison]) -> None:
    """Refuse a detector whose figures are not those of its record."""
    if wrong := [each for each in comparisons if not each.agrees]:
        first = wrong[0]
        raise BesnnError(f"{first.name} is {first.found:.4f}, but {_shown(first)} in the record: these are other weights")


def _shown(figure: Comparison) -> str:
    return "—" if figure.recorded is None else f"{figure.recorded:.4f}"


def record_of(in_name: str, results: Path) -> Path:
    """Return the path of a trained detector's record."""
    return results / f"detector-{in_name}.json"


def write_comparisons(comparisons: Sequence[Comparison], run: Run, workspace: Workspace, images: int | None = None) -> Path:
    """Write the record of the model file: its figures beside the run's, and where they were measured."""
    sets = [official_test_set(name, run, workspace) for name in (run.in_name, *run.unknown)]
    hashes = {file: digest for each in sets for file, digest in each.hashes.items()}
    fields = {
        "run": workspace.record(run).relative_to(workspace.results).as_posix(),
        "recorded_on": read_record(workspace.record(run))["provenance"]["hardware"],
        "stored_rows": STORED_ROWS,
        "images": images,
        "alpha": ALPHA,
        "figures": [asdict(each) for each in comparisons],
        "provenance": provenance(hashes),
    }
    path = record_of(run.in_name, workspace.results)
    write_record(path, fields)
    return path


def detector_table(in_name: str, results: Path) -> Table:
    """Return the figures of a model file beside those of the run that trained its network."""
    title, path = f"The trained detector of {in_name}", record_of(in_name, results)
    if not path.exists():
        return Table(title, (), [], "")
    fields = read_record(path)
    figures = [Comparison(**each) for each in fields["figures"]]
    rows = [(each.name, _shown(each), f"{each.found:.4f}") for each in figures]
    header = ("Figure", f"In its record, {fields['recorded_on']}", f"The file, {fields['provenance']['hardware']}")
    note = (
        f"The file keeps {fields['stored_rows']:,} training features instead of 10,000. Networks score in bfloat16 on a GPU "
        "and in float32 on a CPU. Of the false-alarm rate, the first figure is the rate asked for."
    )
    if images := fields.get("images"):
        note += (
            f" The file was checked on the first {images:,} images of each set, and its weights have 16 bits. Its combined "
            "score looks at other layers than the run's."
        )
    return Table(title, header, rows, note)
