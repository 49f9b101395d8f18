"""The entropy regulariser: a class's generated features must be as spread as the data's features of that class."""

import torch
from torch import Tensor

from besnn.checks import check_labels
from besnn.errors import InputError
from besnn.objective.batches import gather_rows
from besnn.objective.entropy import Estimator, check_estimator, grouped_entropy


def entropy_regulariser(
    features: Tensor,
    labels: Tensor,
    class_features: Tensor,
    k: int = 3,
    estimator: Estimator = "kl",
    match_counts: bool = False,
    per_dimension: bool = True,
) -> Tensor:
    """Σ_c max(0, Ĥ(Φ(x) | y = c) − Ĥ(E_c)) / d, over the classes of which the batch holds more than k inputs.

    The data's entropy is a threshold: no gradient passes to `features`. Where processes share a batch, it is that of the whole
    batch in each of them: the entropy of a part is another one, for its bias depends on the number of points.

    Args:
        features: Φ(x), `[members, batch, d]`.
        labels: y, integers `[batch]`, or `[members, batch]` where members see inputs of their own.
        class_features: E, `[members, classes, samples, d]`, samples > k.
        k: which neighbour the entropy estimates use.
        estimator: `"kl"` or `"kpn"`, see `knn_entropy`.
        match_counts: estimate both entropies of a class from equally many points, as many as both sides have: the estimators'
            bias depends on the count, and equal biases cancel in the difference.
        per_dimension: measure entropies in nats per dimension. In nats they grow with d, and a weight of 1 that suits two
            dimensions drowns the classification loss in hundreds.

    Returns:
        `[members]`.

    >>> generator = torch.Generator().manual_seed(0)
    >>> features, labels = torch.randn(1, 8, 2, generator=generator), torch.zeros(8, dtype=torch.int64)
    >>> narrow = 0.1 * torch.randn(1, 2, 16, 2, generator=generator)
    >>> entropy_regulariser(features, labels, narrow) > 0, entropy_regulariser(features, labels, 100 * narrow)
    (tensor([True]), tensor([0.]))
    """
    check_estimator(k, estimator)
    _check_shapes(features, class_features, k)
    classes, samples = class_features.shape[1:3]
    check_labels(labels, num_classes=classes, batch=features.shape[1], members=features.shape[0])
    features, labels = gather_rows(features, dim=1), gather_rows(labels, dim=-1)
    sample_groups = torch.zeros(samples, dtype=torch.int64, device=labels.device)
    if match_counts:
        labels, sample_groups = _match_counts(labels, classes, samples)
    threshold, valid = grouped_entropy(features, labels, classes, k, estimator)
    entropy, _ = grouped_entropy(class_features, sample_groups, 1, k, estimator)
    shortfall = torch.where(valid, (threshold - entropy[..., 0]).relu(), 0.0).sum(-1)
    return shortfall / features.shape[-1] if per_dimension else shortfall


def _match_counts(labels: Tensor, classes: int, samples: int) -> tuple[Tensor, Tensor]:
    """Groups, −1 for points left out, under which class c has min(its count in the batch, samples) points on both sides.

    Returns:
        Groups of the data, as `labels`, and of the class features, `[classes, samples]` or `[members, classes, samples]`.
    """
    belongs = labels[..., None] == torch.arange(classes, device=labels.device)
    rank = torch.where(belongs, belongs.cumsum(-2) - 1, 0).sum(-1)
    sample = torch.arange(samples, device=labels.device)
    return torch.where(rank < samples, labels, -1), torch.where(sample < belongs.sum(-2)[..., None], 0, -1)


def _check_shapes(features: Tensor, class_features: Tensor, k: int) -> None:
    if features.ndim != 3 or class_features.ndim != 4:
        raise InputError(
            f"features {list(features.shape)} and class features {list(class_features.shape)}: "
            "expected [members, batch, d] and [members, classes, samples, d]"
        )
    if (features.shape[0], features.shape[-1]) != (class_features.shape[0], class_features.shape[-1]):
        raise InputError(
            f"features {list(features.shape)} and class features {list(class_features.shape)} differ in members or "
            "dimensions: take both from one model"
        )
    if class_features.shape[2] <= k:
        raise InputError(
            f"samples={class_features.shape[2]} class features are too few for k={k}: draw at least {k + 1} or lower k"
        )
