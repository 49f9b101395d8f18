"""Scores: functions from a model's evidence `[members, batch, classes]` to `[batch]`, higher = more out-of-distribution.

They are grouped by kind of evidence: squared distances d̄ ≥ 0 to the classes (BE-SNN, DUQ), logits (softmax networks and their
ensembles), and log-likelihoods log p(x | c) (Gaussian classifier). Infinite evidence never gives NaN. A new score is one
function and one entry in `SCORES`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from besnn.checks import check_distances
from besnn.errors import InputError

Score = Callable[[Tensor], Tensor]
"""From evidence `[members, batch, classes]` to one number per input, `[batch]`. See `besnn.detection.tempered_entropy`."""


def tempered_entropy(distances: Tensor) -> Tensor:
    """Compute the paper's score, the entropy of mean_n softmax(ξ_n) with ξ_n = −d̄_n · exp(−min_c d̄_n), in [0, log C].

    Far from every class the tempering takes ξ to 0, so the score goes to log C smoothly; near one class it goes to 0.

    >>> near, between, far = [0.0, 9.0], [1.0, 1.0], [800.0, 900.0]
    >>> tempered_entropy(torch.tensor([[near, between, far]]))
    tensor([0.0012, 0.6931, 0.6931])
    """
    distances = _finite(distances)
    nearest = distances.amin(dim=-1, keepdim=True)
    return _entropy((-distances * torch.exp(-nearest)).softmax(dim=-1).mean(dim=0))


def softmax_entropy(distances: Tensor) -> Tensor:
    """Compute the entropy of mean_n softmax(−d̄_n), the paper's score without its tempering, in [0, log C].

    >>> softmax_entropy(torch.tensor([[[0.0, 9.0], [9.0, 9.0]]]))
    tensor([0.0012, 0.6931])
    """
    return predictive_entropy(-_finite(distances))


def kernel_confidence(distances: Tensor) -> Tensor:
    """Compute minus the largest kernel, −max_c mean_n exp(−d̄_n), the score of DUQ, in [−1, 0].

    >>> kernel_confidence(torch.tensor([[[0.0, 9.0], [4.0, 9.0]]]))
    tensor([-1.0000, -0.0183])
    """
    return -torch.exp(-_finite(distances)).mean(dim=0).amax(dim=-1)


def smallest_distance(distances: Tensor) -> Tensor:
    """Compute the distance to the nearest class, min_c mean_n d̄_n; unlike the kernel it tells far from very far.

    >>> smallest_distance(torch.tensor([[[0.0, 9.0], [9.0, 9.0]]]))
    tensor([0., 9.])
    """
    return _finite(distances).mean(dim=0).amin(dim=-1)


def mutual_information(distances: Tensor) -> Tensor:
    """Compute the disagreement of the members, as `logit_mutual_information` with p_n = softmax(−d̄_n).

    >>> agree, disagree = [[0.0, 99.0], [0.0, 99.0]], [[0.0, 99.0], [99.0, 0.0]]
    >>> mutual_information(torch.tensor([agree, disagree]).transpose(0, 1))
    tensor([0.0000, 0.6931])
    """
    # Tempered, the softmax is uniform far from the data in every member, so that they would seem to agree.
    return logit_mutual_information(-_finite(distances))


def predictive_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy of the mean predictive distribution, mean_n softmax(logits_n), in [0, log C].

    Log-likelihoods serve too, with equal class priors.

    >>> predictive_entropy(torch.tensor([[[9.0, 0.0], [0.0, 0.0]]]))
    tensor([0.0012, 0.6931])
    """
    return _entropy(_finite(logits).softmax(dim=-1).mean(dim=0))


def max_softmax_probability(logits: Tensor) -> Tensor:
    """Compute minus the largest mean probability, −max_c mean_n softmax(logits_n) (Hendrycks & Gimpel 2017).

    >>> max_softmax_probability(torch.tensor([[[9.0, 0.0], [0.0, 0.0]]]))
    tensor([-0.9999, -0.5000])
    """
    return -_finite(logits).softmax(dim=-1).mean(dim=0).amax(dim=-1)


def max_logit(logits: Tensor) -> Tensor:
    """Compute minus the largest logit, −max_c logits_n, averaged over the members (Hendrycks et al. 2022).

    >>> max_logit(torch.tensor([[[9.0, 0.0], [1.0, 1.0]]]))
    tensor([-9., -1.])
    """
    return -_finite(logits).amax(dim=-1).mean(dim=0)


def generalised_entropy(logits: Tensor) -> Tensor:
    """Compute Σ_c (p_c (1 − p_c))^0.1 over the 100 largest of p = mean_n softmax(logits_n) (GEN, Liu et al. 2023).

    The small exponent makes it sensitive to probabilities near 0 and 1, which the entropy hardly sees.

    >>> generalised_entropy(torch.tensor([[[9.0, 0.0], [0.0, 0.0]]]))
    tensor([0.8131, 1.7411])
    """
    ordered = _finite(logits).softmax(dim=-1).mean(dim=0).sort(dim=-1, descending=True).values
    others = ordered[..., 1:]
    # 1 - p of the largest as the sum of the others: the difference would cancel
    complements = torch.cat([others.sum(dim=-1, keepdim=True), 1 - others], dim=-1)
    return (ordered * complements)[..., :100].pow(0.1).sum(dim=-1)


def energy(logits: Tensor) -> Tensor:
    """Compute the free energy −logsumexp_c(logits_n), averaged over the members (Liu et al. 2020).

    >>> energy(torch.tensor([[[9.0, 0.0], [0.0, 0.0]]]))
    tensor([-9.0001, -0.6931])
    """
    return -_finite(logits).logsumexp(dim=-1).mean(dim=0)


def logit_mutual_information(logits: Tensor) -> Tensor:
    """Compute the disagreement of the members, H(mean_n p_n) − mean_n H(p_n) with p_n = softmax(logits_n), in [0, log N].

    >>> logit_mutual_information(torch.tensor([[[9.0, 0.0], [9.0, 0.0]], [[9.0, 0.0], [0.0, 9.0]]]))
    tensor([0.0000, 0.6919])
    """
    probabilities = _finite(logits).softmax(dim=-1)
    return (_entropy(probabilities.mean(dim=0)) - _entropy(probabilities).mean(dim=0)).clamp_min(0.0)


def negative_log_likelihood(log_likelihoods: Tensor) -> Tensor:
    """Compute minus the log-likelihood of the predicted class, −max_c log mean_n p_n(x | c).

    >>> negative_log_likelihood(torch.tensor([[[-1.0, -9.0], [-9.0, -9.0]]]))
    tensor([1., 9.])
    """
    mixture = _finite(log_likelihoods).logsumexp(dim=0) - math.log(log_likelihoods.shape[0])
    return -mixture.amax(dim=-1)


SCORES: dict[str, dict[str, Score]] = {
    "distances": {
        "tempered-entropy": tempered_entropy,
        "softmax-entropy": softmax_entropy,
        "kernel-confidence": kernel_confidence,
        "smallest-distance": smallest_distance,
        "mutual-information": mutual_information,
    },
    "logits": {
        "predictive-entropy": predictive_entropy,
        "max-softmax-probability": max_softmax_probability,
        "max-logit": max_logit,
        "energy": energy,
        "generalised-entropy": generalised_entropy,
        "mutual-information": logit_mutual_information,
    },
    "log-likelihoods": {
        "negative-log-likelihood": negative_log_likelihood,
        "predictive-entropy": predictive_entropy,
    },
}
"""The scores by name, for each kind of evidence. See `besnn.detection.scores_for`."""


def scores_for(kind: str) -> dict[str, Score]:
    """Return the scores for a kind of evidence, `{name: function(evidence) -> [batch]}`.

    >>> sorted(scores_for("logits"))
    ['energy', 'generalised-entropy', 'max-logit', 'max-softmax-probability', 'mutual-information', 'predictive-entropy']
    """
    if kind not in SCORES:
        raise InputError(f"unknown kind of evidence {kind!r}: use one of {', '.join(map(repr, SCORES))}")
    return dict(SCORES[kind])


def _finite(evidence: Tensor) -> Tensor:
    """Return evidence in float32 or better, with ±inf replaced by the largest finite number: inf − inf would be NaN."""
    check_distances(evidence)
    evidence = evidence.to(torch.promote_types(evidence.dtype, torch.float32))
    limit = torch.finfo(evidence.dtype).max
    return evidence.clamp(-limit, limit)


def _entropy(probabilities: Tensor) -> Tensor:
    """Compute −Σ p log p over the last axis, with 0 log 0 = 0; clamped because rounding can leave [0, log C]."""
    tiny = torch.finfo(probabilities.dtype).tiny
    entropy = -(probabilities * probabilities.clamp_min(tiny).log()).sum(dim=-1)
    return entropy.clamp(0.0, math.log(probabilities.shape[-1]))
