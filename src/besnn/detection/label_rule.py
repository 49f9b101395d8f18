"""What is said about inputs that a detector accepts: scaled probabilities, label sets, and which labels are sure enough.

Both promises are made for the inputs that the threshold accepts. They come from calibration inputs below the threshold, which,
given the threshold, are a sample of the accepted inputs. A fifth of them tunes what may be tuned; the others test it.
"""

import math
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from besnn.checks import check_choice, check_fractions
from besnn.detection.conformal import conformal_rank, least_scores
from besnn.errors import InputError

Form = Literal["least-ambiguous", "adaptive"]
FORMS: tuple[Form, ...] = get_args(Form)
DECISIONS = ("known", "unsure", "unknown")
"""What is said of an input, by code."""

LABEL_ALPHA = 0.05
RISK_DELTA = 0.1
TUNING_EVERY = 5
"""One accepted calibration input in this many fits the temperature and proposes confidences; the others decide."""

_STARTS = (0.25, 0.5, 0.75, 1.0)  # shares of inputs answered at which the tests of `max_error` start; they go on to larger ones


class LabelRule(nn.Module):
    """From log-probabilities and flags to probabilities, label sets and decisions.

    Without calibration labels it promises nothing: the set is the most probable class, and no accepted input is unsure.

    Args:
        classes: how many there are.
        temperature: T of the scaled probabilities, p^(1/T) normalised (Guo et al. 2017).
        form: of label sets, see `nonconformity`.
        alpha: the true class of an accepted input is in its set with probability ≥ 1 − alpha; None promises nothing.
        thresholds: the largest nonconformity of a class in the set, by predicted class, `[classes]`.
        max_error: the largest share of wrong labels among inputs that are `known`; None: they are those with one label.
        delta: with probability ≥ 1 − delta over the calibration data, `max_error` holds.
        confidences: by predicted class, the probability above which an input is `known`, `[classes]`.
        inputs: how many calibration inputs the promises come from.

    >>> rule = LabelRule(2, alpha=0.05, thresholds=torch.tensor([0.8, 0.8]))  # the set: classes of probability 0.2 or more
    >>> _, label_sets, _ = rule(torch.tensor([[0.7, 0.3], [0.9, 0.1]]).log(), is_ood=torch.tensor([False, False]))
    >>> label_sets.tolist()
    [[True, True], [True, False]]
    """

    thresholds: Tensor
    confidences: Tensor

    def __init__(
        self,
        classes: int,
        temperature: float = 1.0,
        form: Form = "least-ambiguous",
        alpha: float | None = None,
        thresholds: Tensor | None = None,
        max_error: float | None = None,
        delta: float | None = None,
        confidences: Tensor | None = None,
        inputs: int = 0,
    ) -> None:
        super().__init__()
        check_choice("label sets", form, FORMS)
        self.temperature, self.form, self.alpha, self.max_error, self.delta = temperature, form, alpha, max_error, delta
        self.inputs = inputs
        none = torch.full((classes,), -1.0)
        self.register_buffer("thresholds", none if thresholds is None else thresholds)
        self.register_buffer("confidences", none if confidences is None else confidences)

    def probabilities(self, log_probabilities: Tensor) -> Tensor:
        """Return the scaled probabilities `[n, classes]`."""
        if self.temperature == 1.0:
            return log_probabilities.exp()
        return scaled(log_probabilities, self.temperature)

    def forward(self, log_probabilities: Tensor, is_ood: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return probabilities and label sets `[n, classes]`, and codes of `DECISIONS` `[n]`; a flagged input has no label."""
        probabilities = self.probabilities(log_probabilities)
        confidence, top = probabilities.max(dim=1)
        sets = nonconformity(probabilities, self.form) <= self.thresholds[top][:, None]
        sets = (sets | F.one_hot(top, probabilities.shape[1]).bool()) & ~is_ood[:, None]
        unsure = sets.sum(dim=1) > 1 if self.max_error is None else confidence <= self.confidences[top]
        return probabilities, sets, torch.where(is_ood, 2, unsure.long())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the tensors and JSON-able settings that `from_state` needs."""
        names = "temperature", "form", "alpha", "max_error", "delta", "inputs"
        return {"thresholds": self.thresholds, "confidences": self.confidences}, {name: getattr(self, name) for name in names}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], settings: dict[str, Any]) -> Self:
        """Restore the rule that `state` describes."""
        thresholds, confidences = tensors["thresholds"], tensors["confidences"]
        names = "temperature", "alpha", "max_error", "delta"
        numbers = {name: None if settings[name] is None else float(settings[name]) for name in names}
        if not 0 < (numbers["temperature"] or 0) < math.inf or settings["form"] not in get_args(Form):
            raise ValueError(
                f"temperature {settings['temperature']!r} or form {settings['form']!r} of the label rule is unknown"
            )
        return cls(len(thresholds), thresholds=thresholds, confidences=confidences, **{**settings, **numbers})


def nonconformity(probabilities: Tensor, form: Form = "least-ambiguous") -> Tensor:
    """Compute how badly each class fits, `[n, classes]`, from probabilities `[n, classes]`.

    Least-ambiguous sets are the smallest on average (Sadinle et al. 2019): 1 − p. Adaptive sets are larger where classes are
    hard to tell apart (Romano et al. 2020): the probability of all classes that are more probable.

    >>> nonconformity(torch.tensor([[0.5, 0.25, 0.25]]), "adaptive")
    tensor([[0.0000, 0.5000, 0.7500]])
    """
    if form == "least-ambiguous":
        return 1 - probabilities
    ordered, order = probabilities.sort(dim=1, descending=True)
    above = ordered.cumsum(dim=1) - ordered
    return torch.zeros_like(above).scatter(1, order, above)


def scaled(log_probabilities: Tensor, temperature: float) -> Tensor:
    """Return probabilities p^(1/T), normalised over the last axis.

    >>> scaled(torch.tensor([0.8, 0.2]).log(), 2.0)
    tensor([0.6667, 0.3333])
    """
    return (log_probabilities.clamp_min(-1e6) / temperature).softmax(dim=-1)


def fit_temperature(log_probabilities: Tensor, labels: Tensor) -> float:
    """Return the temperature of the least negative log-likelihood, with a standard normal prior on its logarithm.

    The prior is what keeps a handful of rows, all of them right, from making every probability 1.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    logits = log_probabilities.double().clamp_min(-1e6)

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / math.exp(log_temperature), labels, reduction="sum")) + log_temperature**2 / 2

    return math.exp(minimize_scalar(loss, bounds=(-4.0, 4.0), method="bounded", options={"xatol": 1e-6}).x)


def answer_confidence(
    confidence: NDArray[np.float64],
    wrong: NDArray[np.bool_],
    proposals: NDArray[np.float64],
    max_error: float,
    delta: float,
) -> float | None:
    """Return the lowest λ such that of inputs with a confidence above λ at most a share `max_error` is wrong, or None.

    That holds with probability ≥ 1 − delta over the draw of `confidence` and `wrong` `[n]`, by Learn-then-Test (Angelopoulos et
    al. 2021): each λ has an exact binomial test of "the error is larger", and the tests run in fixed sequences towards more
    answers, each until it fails, from several starts that share delta. The candidates are `proposals`, confidences of other
    inputs, and 0, which answers all.

    >>> confidence = np.linspace(0, 1, 1000)
    >>> answer_confidence(confidence, confidence < 0.3, np.linspace(0, 0.99, 100), max_error=0.05, delta=0.1)
    0.28
    """
    from scipy.special import betainc  # slow to import

    candidates = np.append(np.unique(proposals)[::-1], 0.0)  # from few answers to all
    order = np.argsort(confidence)
    mistakes_above = np.append(np.cumsum(wrong[order][::-1])[::-1], 0)
    first = np.searchsorted(confidence[order], candidates, side="right")
    answered, mistakes = len(order) - first, mistakes_above[first]
    right = np.maximum(answered - mistakes, 1e-12)
    p = np.where(answered > 0, betainc(right, mistakes + 1, 1 - max_error), 1.0)  # P(Binomial(answered, ε) ≤ mistakes)
    passes = p <= delta / len(_STARTS)
    lowest = None
    for share in _STARTS:
        start = round(share * (len(candidates) - 1))
        run = int(np.argmin(np.append(passes[start:], False)))  # tests passed before the first that fails
        if run:
            lowest = max(start + run - 1, lowest or 0)
    return None if lowest is None else float(candidates[lowest])


def fit_label_rule(
    log_probabilities: Tensor,
    labels: Tensor,
    per_class: bool,
    alpha: float | None = None,
    form: Form = "least-ambiguous",
    max_error: float | None = None,
    delta: float | None = None,
) -> LabelRule:
    """Fit the rule to accepted calibration inputs: log-probabilities `[n, classes]` and labels `[n]`, in random order.

    With `per_class` the promises hold for the inputs of each predicted class. Where `alpha` is None, it is `LABEL_ALPHA` if
    there are enough inputs for it; otherwise the rule promises nothing, unless `max_error` is given.
    """
    check_choice("label sets", form, FORMS)
    classes, wanted = log_probabilities.shape[1], LABEL_ALPHA if alpha is None else alpha
    check_fractions(label_alpha=wanted, **({} if max_error is None else {"max_error": max_error}))
    tuning = torch.arange(len(labels)) % TUNING_EVERY == 0
    predicted = log_probabilities.argmax(dim=1)
    groups = [predicted == label for label in range(classes)] if per_class else [torch.ones_like(tuning)]
    if alpha is None and max_error is None and min(int((own & ~tuning).sum()) for own in groups) < least_scores(wanted):
        return LabelRule(classes)
    temperature = fit_temperature(log_probabilities[tuning], labels[tuning])
    probabilities = scaled(log_probabilities.float(), temperature)
    of_label = nonconformity(probabilities, form).gather(1, labels[:, None])[:, 0]
    thresholds = torch.tensor([_largest(of_label[own & ~tuning], wanted) for own in groups]).expand(classes).clone()
    inputs = int((~tuning).sum())
    if max_error is None:
        return LabelRule(classes, temperature, form, wanted, thresholds, inputs=inputs)
    delta = RISK_DELTA if delta is None else delta
    confidence, wrong = probabilities.amax(dim=1).double().numpy(), (predicted != labels).numpy()
    found = [
        answer_confidence(confidence[tested], wrong[tested], confidence[proposing], max_error, delta / len(groups))
        for tested, proposing in (((own & ~tuning).numpy(), (own & tuning).numpy()) for own in groups)
    ]
    if all(each is None for each in found):
        tested = f"{inputs} accepted calibration inputs, {int(wrong[~tuning.numpy()].sum())} of them with a wrong label"
        raise InputError(f"max_error={max_error} cannot be shown from {tested}: raise it, or provide more inputs")
    confidences = torch.tensor([1.0 if each is None else each for each in found]).expand(classes).clone()
    return LabelRule(classes, temperature, form, wanted, thresholds, max_error, delta, confidences, inputs)


def _largest(nonconformities: Tensor, alpha: float) -> float:
    """Return the conformal quantile of the true labels' nonconformities `[n]`."""
    try:
        rank = conformal_rank(len(nonconformities), alpha)
    except InputError:
        found = f"{len(nonconformities)} accepted calibration inputs are too few for label_alpha={alpha}"
        raise InputError(f"{found}: provide at least {least_scores(alpha)}, or raise label_alpha") from None
    return float(nonconformities.sort().values[rank - 1])
