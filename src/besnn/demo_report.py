"""What the demo found, in words and on one page."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from besnn.evaluation import Evaluation
from besnn.evaluation.pages import render_page
from besnn.evaluation.plane import Ring
from besnn.evaluation.plots import as_data_uri, image_grid, score_histograms
from besnn.evaluation.scored import Rate, ScoredSet
from besnn.evaluation.wording import percent

_SHOWN = 6


def moons_in_words(rings: Sequence[Ring]) -> list[str]:
    """Confidence near and far, a sentence.

    >>> moons_in_words([Ring(0, 0.1, 0.8, 50), Ring(2, 4, 0.004, 90)])
    ['Two moons: confidence is 0.80 on the moons and 0.00 where the data is 2 or more away.']
    """
    near, far = rings[0], rings[-1]
    return [
        f"Two moons: confidence is {near.mean_confidence:.2f} on the moons and {far.mean_confidence:.2f} "
        f"where the data is {far.inner:g} or more away."
    ]


def digits_in_words(evaluation: Evaluation) -> list[str]:
    """Accuracy, false alarms and what was caught, a sentence each."""
    right = float((evaluation.known.predictions == evaluation.labels).mean())
    alarms = evaluation.known.flagged
    return [
        f"Digits: of {len(evaluation.known)} {evaluation.known_name}, {percent(right)} are told right; "
        f"{percent(alarms['rate'])} raise a false alarm (asked: at most {100 * evaluation.alpha:g} %).",
        *(f"Digits: {_caught(name, answers.flagged)}." for name, answers in evaluation.unknown.items()),
    ]


def render_demo(picture: Figure, rings: Sequence[Ring], evaluation: Evaluation, seconds: float) -> str:
    """The report on both acts, one self-contained HTML page."""
    score = evaluation.default_score
    unknown_scores = {name: answers.scores[score] for name, answers in evaluation.unknown.items()}
    histograms = score_histograms(evaluation.known.scores[score], unknown_scores, evaluation.threshold, score)
    return render_page(
        "demo.html.j2",
        map=as_data_uri(picture),
        rings=rings,
        moons=moons_in_words(rings),
        metrics=evaluation.metrics(resamples=200),
        digits=digits_in_words(evaluation),
        examples=list(_examples(evaluation)),
        histograms=as_data_uri(histograms),
        seconds=seconds,
        provenance=evaluation.provenance,
    )


def _examples(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    """A caption and a picture for the first few inputs of each set."""
    for name, answers in {evaluation.known_name: evaluation.known, **evaluation.unknown}.items():
        assert answers.inputs is not None
        rows = np.linspace(0, len(answers) - 1, _SHOWN).astype(int)
        captions = [_verdict(evaluation, answers, row) for row in rows]
        yield f"{name[0].upper()}{name[1:]}", as_data_uri(image_grid(answers.inputs[rows], captions))


def _verdict(evaluation: Evaluation, answers: ScoredSet, row: int) -> str:
    decision = "unknown" if answers.is_ood[row] else f"a {evaluation.class_names[answers.predictions[row]]}"
    return f"{decision}\np = {answers.p_values[row]:.3f}"


def _caught(name: str, rate: Rate) -> str:
    return f"{percent(rate['rate'])} of {rate['n']} inputs are flagged as unknown: {name}"
