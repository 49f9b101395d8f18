"""The report: one self-contained HTML file that says how far a detector can be trusted."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from besnn.evaluation.classification import calibration_bins, confusion_matrix
from besnn.evaluation.examples import Examples, telling_examples
from besnn.evaluation.output import whole_file
from besnn.evaluation.pages import render_page
from besnn.evaluation.plots import (
    as_data_uri,
    confusion_heat_map,
    image_grid,
    precision_recall_curves,
    reliability_diagram,
    roc_curves,
    score_histograms,
)
from besnn.evaluation.result import Evaluation
from besnn.evaluation.wording import method_name, summary

_SHOWN_FEATURES = 6


@dataclass(frozen=True)
class Picture:
    """A figure as the page shows it."""

    address: str
    alt: str


@dataclass(frozen=True)
class Listing:
    """Inputs of a table, row by row."""

    header: list[str]
    rows: list[list[str]]


def write_report(evaluation: Evaluation, path: str | os.PathLike[str]) -> Path:
    """Write `render_report` to a file, all or nothing; returns the path."""
    page = render_report(evaluation)
    with whole_file(path) as partial:
        partial.write_text(page, encoding="utf-8")
    return Path(path)


def render_report(evaluation: Evaluation) -> str:
    """The report as HTML text.

    >>> from besnn.evaluation import ScoredSet
    >>> answers = ScoredSet([[0.9, 0.1]], {"entropy": [0.3]}, p_values=[0.7], is_ood=[0])
    >>> sets = {"noise": answers}
    >>> pets = Evaluation("Pets", "duq", ["cat", "dog"], 0.05, 0.6, "entropy", "photos", answers, [0], sets)
    >>> "<h1>Pets</h1>" in render_report(pets)
    True
    """
    return render_page(
        "report.html.j2",
        evaluation=evaluation,
        method=method_name(evaluation.method),
        metrics=evaluation.metrics(),
        score_names=sorted(evaluation.known.scores, key=lambda name: (name != evaluation.default_score, name)),
        sentences=summary(evaluation),
        pictures=_pictures(evaluation),
        examples=[_shown(examples, evaluation) for examples in telling_examples(evaluation)],
        provenance=list(_flattened(evaluation.provenance)),
    )


def _pictures(evaluation: Evaluation) -> dict[str, Picture]:
    known = evaluation.known.scores[evaluation.default_score]
    unknown = {name: answers.scores[evaluation.default_score] for name, answers in evaluation.unknown.items()}
    sets = ", ".join(unknown)
    counts = confusion_matrix(evaluation.labels, evaluation.known.probabilities)
    return {
        "roc": _picture(roc_curves(known, unknown), f"ROC curves of known inputs against {sets}"),
        "precision_recall": _picture(
            precision_recall_curves(known, unknown), f"Precision-recall curves of known inputs against {sets}"
        ),
        "histograms": _picture(
            score_histograms(known, unknown, evaluation.threshold, evaluation.default_score),
            f"Histograms of the score of known inputs and of {sets}, with the threshold τ = {evaluation.threshold:.3g}",
        ),
        "reliability": _picture(
            reliability_diagram(calibration_bins(evaluation.labels, evaluation.known.probabilities)),
            "Reliability diagram: accuracy of known inputs by confidence",
        ),
        "confusion": _picture(
            confusion_heat_map(counts, evaluation.class_names), "Confusion matrix: true class against predicted class"
        ),
    }


def _picture(figure: Figure, alt: str) -> Picture:
    return Picture(as_data_uri(figure), alt)


def _shown(examples: Examples, evaluation: Evaluation) -> dict[str, object]:
    if examples.inputs.ndim == 4:
        captions = [_caption(fact) for fact in examples.facts]
        alt = f"{examples.heading}: " + "; ".join(", ".join(lines) for lines in captions)
        grid = image_grid(examples.inputs, ["\n".join(lines) for lines in captions])
        return {"heading": examples.heading, "picture": _picture(grid, alt), "listing": None}
    return {"heading": examples.heading, "picture": None, "listing": _listing(examples, evaluation)}


def _caption(fact: Mapping[str, str]) -> list[str]:
    true_class = [fact["true class"]] if "true class" in fact else []
    mistaken = [] if true_class == [fact["taken for"]] else [f"taken for {fact['taken for']}"]
    return [fact["input"], *true_class, *mistaken, f"{fact['score']}, {fact['decision']}"]


def _listing(examples: Examples, evaluation: Evaluation) -> Listing:
    width = examples.inputs.shape[1]
    features = evaluation.feature_names or [f"feature {index}" for index in range(width)]
    more = [f"… {width - _SHOWN_FEATURES} more"] if width > _SHOWN_FEATURES else []
    rows = [
        [*fact.values(), *(f"{value:.4g}" for value in values[:_SHOWN_FEATURES]), *("" for _ in more)]
        for fact, values in zip(examples.facts, examples.inputs, strict=True)
    ]
    return Listing([*examples.facts[0], *features[:_SHOWN_FEATURES], *more], rows)


def _flattened(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested provenance as (dotted name, text) rows."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{name}", ", ".join(map(str, value))
        else:
            yield f"{prefix}{name}", str(value)
