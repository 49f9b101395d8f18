"""The report: one self-contained HTML file that shows how far a detector can be trusted.

Styles are inline, figures are embedded, and a content security policy forbids anything else. All text that comes from outside
(class names, file names, provenance) is escaped by the template engine.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

from besnn.evaluation.checks import IntArray
from besnn.evaluation.classification import calibration_bins, confusion_matrix
from besnn.evaluation.plots import (
    confusion_heat_map,
    image_grid,
    precision_recall_curves,
    reliability_diagram,
    roc_curves,
    score_histograms,
)
from besnn.evaluation.result import Evaluation, ScoredSet, method_name, percent
from besnn.evaluation.style import as_data_uri
from besnn.storage.files import whole_file

_SHOWN_FEATURES = 6
_EXPLAINED = 2  # of each set
Explain = Callable[[npt.NDArray[Any], Sequence[str]], list[dict[str, object]]]
_TEMPLATES = Environment(
    loader=PackageLoader("besnn.evaluation"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters["percent"] = percent


@dataclass(frozen=True, eq=False)
class Examples:
    """Some inputs of one set, images ``[k, c, h, w]`` or table rows ``[k, d]``, with facts about each."""

    heading: str
    inputs: npt.NDArray[Any]
    facts: list[dict[str, str]]


def write_report(evaluation: Evaluation, path: str | os.PathLike[str], explain: Explain | None = None) -> Path:
    """Write the report to a file, atomically; return the path."""
    page = render_report(evaluation, explain)
    with whole_file(path) as partial:
        partial.write_text(page, encoding="utf-8")
    return Path(path)


def render_report(evaluation: Evaluation, explain: Explain | None = None) -> str:
    """Render the report as HTML; `explain` says why the likeliest mistakes were made, see `explained.card`."""
    extremes = list(extreme_examples(evaluation))
    return render_page(
        "report.html.j2",
        evaluation=evaluation,
        method=method_name(evaluation.method),
        metrics=evaluation.metrics(),
        score_names=sorted(evaluation.known.scores, key=lambda name: (name != evaluation.default_score, name)),
        sentences=evaluation.summary(),
        pictures=_pictures(evaluation),
        examples=[_shown(examples, evaluation) for examples in extremes],
        reasons=[] if explain is None else [reason for each in extremes for reason in _reasons(each, explain)],
        provenance=list(_flattened(evaluation.provenance)),
    )


def _reasons(examples: Examples, explain: Explain) -> list[dict[str, object]]:
    some = examples.facts[:_EXPLAINED]
    return explain(examples.inputs[: len(some)], [fact["input"] for fact in some])


def render_page(template: str, **context: object) -> str:
    """Render a template of ``templates/``."""
    return _TEMPLATES.get_template(template).render(**context)


def _pictures(evaluation: Evaluation) -> dict[str, dict[str, str]]:
    known = evaluation.known.scores[evaluation.default_score]
    unknown = {name: answers.scores[evaluation.default_score] for name, answers in evaluation.unknown.items()}
    sets, tau = ", ".join(unknown), evaluation.threshold
    predictions = evaluation.labels, evaluation.known.probabilities
    histograms = score_histograms(known, unknown, tau, evaluation.default_score)
    confusion = confusion_heat_map(confusion_matrix(*predictions), evaluation.class_names)
    precision_recall = precision_recall_curves(known, unknown)
    reliability = reliability_diagram(calibration_bins(*predictions))
    return {
        "roc": _picture(roc_curves(known, unknown), f"ROC curves of known inputs against {sets}"),
        "precision_recall": _picture(precision_recall, f"Precision-recall curves of known inputs against {sets}"),
        "histograms": _picture(histograms, f"Histograms of the score of known inputs and of {sets}, with τ = {tau:.3g}"),
        "reliability": _picture(reliability, "Reliability diagram: accuracy of known inputs by confidence"),
        "confusion": _picture(confusion, "Confusion matrix: true class against predicted class"),
    }


def _picture(figure: Figure, alt: str) -> dict[str, str]:
    return {"address": as_data_uri(figure), "alt": alt}


def _shown(examples: Examples, evaluation: Evaluation) -> dict[str, object]:
    if examples.inputs.ndim == 4:
        captions = [_caption(fact) for fact in examples.facts]
        alt = f"{examples.heading}: " + "; ".join(", ".join(lines) for lines in captions)
        grid = image_grid(examples.inputs, ["\n".join(lines) for lines in captions])
        return {"heading": examples.heading, "picture": _picture(grid, alt), "listing": None}
    return {"heading": examples.heading, "picture": None, "listing": _listing(examples, evaluation)}


def _caption(fact: Mapping[str, str]) -> list[str]:
    true_class = [fact["true class"]] if "true class" in fact else []
    mistaken = [] if true_class == [fact["predicted class"]] else [f"predicted: {fact['predicted class']}"]
    return [fact["input"], *true_class, *mistaken, f"{fact['score']}, {fact['decision']}"]


def _listing(examples: Examples, evaluation: Evaluation) -> dict[str, object]:
    width = examples.inputs.shape[1]
    features = evaluation.feature_names or [f"feature {index}" for index in range(width)]
    more = [f"… {width - _SHOWN_FEATURES} more"] if width > _SHOWN_FEATURES else []
    rows = [
        [*fact.values(), *(f"{value:.4g}" for value in values[:_SHOWN_FEATURES]), *("" for _ in more)]
        for fact, values in zip(examples.facts, examples.inputs, strict=True)
    ]
    return {"header": [*examples.facts[0], *features[:_SHOWN_FEATURES], *more], "rows": rows}


def _flattened(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested provenance into (dotted name, text) rows."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            yield f"{prefix}{name}", ", ".join(map(str, value))
        else:
            yield f"{prefix}{name}", str(value)


def extreme_examples(evaluation: Evaluation, count: int = 12) -> Iterator[Examples]:
    """Yield the most unusual known inputs, then the most ordinary ones of each unknown set; skip sets without inputs."""
    known = evaluation.known
    if known.inputs is not None:
        chosen = np.argsort(-known.scores[evaluation.default_score], kind="stable")[:count]
        labelled = [
            {"input": fact["input"], "true class": evaluation.class_names[evaluation.labels[row]], **fact}
            for row, fact in zip(chosen, _facts(evaluation, known, chosen), strict=True)
        ]
        yield Examples(f"The most unusual known inputs ({evaluation.known_name})", known.inputs[chosen], labelled)
    for name, answers in evaluation.unknown.items():
        if answers.inputs is not None:
            chosen = np.argsort(answers.scores[evaluation.default_score], kind="stable")[:count]
            facts = _facts(evaluation, answers, chosen)
            yield Examples(f"The most ordinary unknown inputs ({name})", answers.inputs[chosen], facts)


def _facts(evaluation: Evaluation, answers: ScoredSet, rows: IntArray) -> list[dict[str, str]]:
    scores, predictions = answers.scores[evaluation.default_score], answers.predictions
    return [
        {
            "input": answers.name_of(row),
            "predicted class": evaluation.class_names[predictions[row]],
            "score": f"{scores[row]:.3g}",
            "p-value": f"{answers.p_values[row]:.2g}",
            "decision": "unknown" if answers.is_ood[row] else "unsure" if answers.unsure[row] else "known",
        }
        for row in rows
    ]
