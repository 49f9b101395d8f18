"""fDBD: an input is unusual if it is close to decision boundaries (Liu & Qin 2024)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from besnn.detection.densities.head import HeadDensity


class BoundaryDistance(HeadDensity):
    """Minus the mean distance of the features to the boundaries of the predicted class, over their distance to the mean.

    The boundary between classes c and k is |logit_c − logit_k| / ‖w_c − w_k‖ away, the mean is that of the training features.
    """

    def measure(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Compute the mean of the features, and how fast the logits of two classes move apart."""
        weight = self.tensors["weight"].to(features)
        apart = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
        return {"mean": features.mean(dim=0), "apart": torch.where(apart > 0, apart, 1.0)}

    def formula(self, features: Tensor, logits: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """Score features `[batch, d]` as `[batch]`."""
        best = logits.max(dim=1)
        distances = (best.values[:, None] - logits) / tensors["apart"][best.indices]
        reach: Tensor = (features - tensors["mean"]).norm(dim=1).clamp_min(1e-8)
        return -distances.sum(dim=1) / ((logits.shape[1] - 1) * reach)
