"""Numbers and names as people read them: in the report's sentences and in the tables."""

from besnn.evaluation.result import Evaluation
from besnn.evaluation.scored import Rate

NO_BREAK = "\N{NO-BREAK SPACE}"
METHOD_NAMES = {
    "be-snn": "BE-SNN",
    "duq": "DUQ",
    "gaussian": "Gaussian classifier",
    "softmax": "Softmax network",
    "deep-ensemble": "Deep ensemble",
    "batch-ensemble": "BatchEnsemble",
}


def method_name(method: str) -> str:
    """A method's name for people; an unknown one stands for itself.

    >>> method_name("be-snn"), method_name("mine")
    ('BE-SNN', 'mine')
    """
    return METHOD_NAMES.get(method, method)


def percent(share: float) -> str:
    """A share in percent; never rounded up to all or down to nothing.

    >>> [percent(share).replace(NO_BREAK, " ") for share in (0.0444, 1, 0.9999, 0.0001)]
    ['4.4 %', '100 %', '> 99.9 %', '< 0.1 %']
    """
    if share in (0, 1):
        figure = f"{100 * share:.0f}"
    elif share > 0.9995:
        figure = f">{NO_BREAK}99.9"
    elif share < 0.0005:
        figure = f"<{NO_BREAK}0.1"
    else:
        figure = f"{100 * share:.1f}"
    return f"{figure}{NO_BREAK}%"


def summary(evaluation: Evaluation) -> list[str]:
    """The evaluation in plain sentences, for somebody who has never heard of AUROC.

    >>> from besnn.evaluation import ScoredSet
    >>> answers = ScoredSet([[0.9, 0.1]], {"entropy": [0.3]}, p_values=[0.7], is_ood=[0])
    >>> sets = {"noise": answers}
    >>> summary(Evaluation("Pets", "duq", ["cat", "dog"], 0.05, 0.6, "entropy", "photos", answers, [0], sets))[0]
    '“Pets” (DUQ) sorts inputs into 2 classes, and raises an alarm when an input looks like nothing it was trained for.'
    """
    hits = (evaluation.known.predictions == evaluation.labels).mean()
    n = len(evaluation.known)
    return [
        f"“{evaluation.title}” ({method_name(evaluation.method)}) sorts inputs into "
        f"{len(evaluation.class_names)} classes, and raises an alarm when an input looks like nothing it was "
        "trained for.",
        f"On {n:,} known inputs ({evaluation.known_name}) it named the right class in {percent(hits)} of cases.",
        f"It was asked to raise a false alarm on at most {100 * evaluation.alpha:g}{NO_BREAK}% of known inputs. "
        + _false_alarms(evaluation.known.flagged, evaluation.alpha),
        *(_caught(name, answers.flagged) for name, answers in evaluation.unknown.items()),
    ]


def _false_alarms(observed: Rate, alpha: float) -> str:
    counted = f"It did so on {percent(observed['rate'])} of them ({observed['flagged']:,} of {observed['n']:,}; "
    counted += f"95{NO_BREAK}% interval {percent(observed['low'])} to {percent(observed['high'])})"
    if observed["low"] > alpha:
        return counted + (
            ", more than asked and more than chance in these inputs explains: they differ from those it was "
            "calibrated on, or those were too few."
        )
    if observed["high"] < alpha:
        return counted + ", clearly fewer than asked."
    return counted + ", in line with what was asked."


def _caught(name: str, caught: Rate) -> str:
    passed = caught["n"] - caught["flagged"]
    rest = f"{passed:,} passed as known" if passed else "none passed as known"
    return f"Of {caught['n']:,} unknown inputs ({name}) it caught {percent(caught['rate'])}; {rest}."
