"""Precomputed features instead of a network: a linear classifier of them, or the logits that came with them."""

import re
from collections import OrderedDict

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor, nn

from besnn.data import Dataset, require_classes

LOGITS = re.compile(r"logits?[._]?\d+")
"""The names of columns that hold logits; a list column `logits` has columns `logits.0`, `logits.1`, ..."""


class WithLogits(nn.Module):
    """Rows of features and logits: returns the logits; `features` is the layer to look at."""

    def __init__(self, features: list[int], logits: list[int]) -> None:
        super().__init__()
        self.features, self.logits = Columns(features), Columns(logits)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of rows `[batch, columns]`."""
        both = torch.cat([self.features(x), self.logits(x)], dim=1)  # an export drops a layer that nothing depends on
        return both[:, len(self.features.places) :]


class Columns(nn.Module):
    """Some columns of a table."""

    places: Tensor

    def __init__(self, places: list[int]) -> None:
        super().__init__()
        self.register_buffer("places", torch.tensor(places))

    def forward(self, x: Tensor) -> Tensor:
        """Return these columns of rows `[batch, columns]`."""
        return x[:, self.places]


def network_of(data: Dataset) -> nn.Module:
    """Return a network for rows of embeddings: their own logits if there are any, else linear discriminants of the classes.

    >>> rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    >>> network_of(Dataset(rows, np.arange(60) % 3, ("a", "b", "c"), "rows"))(torch.from_numpy(rows)).shape
    torch.Size([60, 3])
    """
    logits = [at for at, name in enumerate(data.feature_names) if LOGITS.fullmatch(name)]
    if logits:
        return WithLogits([at for at in range(len(data.feature_names)) if at not in logits], logits).eval()
    labels = require_classes(data)
    discriminant = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(data.inputs.astype(np.float64), labels)
    present, classes = discriminant.classes_, len(data.class_names)
    weight, bias = discriminant.coef_, discriminant.intercept_
    if len(present) == 2:  # one row decides between the two
        weight, bias = np.concatenate([np.zeros_like(weight), weight]), np.concatenate([[0.0], bias])
    linear = nn.Linear(data.inputs.shape[1], classes)
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.fill_(float(bias.min()) - 100.0)  # a class without rows is never predicted
        linear.weight[present] = torch.from_numpy(weight).float()
        linear.bias[present] = torch.from_numpy(bias).float()
    return nn.Sequential(OrderedDict(classifier=linear)).eval()
