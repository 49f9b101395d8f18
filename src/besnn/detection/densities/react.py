"""ReAct: the energy after very large activations are clipped (Sun et al. 2021)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from besnn.detection.densities.head import HeadDensity

PERCENTILE = 0.9


class ReactEnergy(HeadDensity):
    """−logsumexp of the logits of features that are clipped at the 90th percentile of all training activations."""

    def measure(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Compute the percentile."""
        values = features.flatten()
        return {"largest": values.kthvalue(max(1, round(PERCENTILE * len(values)))).values}

    def formula(self, features: Tensor, logits: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """Score features `[batch, d]` as `[batch]`."""
        clipped = torch.minimum(features, tensors["largest"])
        return -(clipped @ tensors["weight"].T + tensors["bias"]).logsumexp(dim=1)
