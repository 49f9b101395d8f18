"""ViM: an input is unusual if its features leave the subspace of the training features (Wang et al. 2022)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from besnn.detection.densities.head import HeadDensity


class VirtualLogit(HeadDensity):
    """α ‖residual‖ − logsumexp(logits), with the residual outside the principal subspace of the training features.

    The origin is where all logits are 0, −W⁺b. α makes the mean residual as large as the mean largest logit. The subspace has
    1,000 dimensions from 2,048 features on, 512 from 768 on, and otherwise half as many as there are features.
    """

    def measure(self, features: Tensor, logits: Tensor) -> dict[str, Tensor]:
        """Compute origin, residual subspace and α."""
        weight, bias = (self.tensors[name].to(features) for name in ("weight", "bias"))
        origin = -(torch.linalg.pinv(weight) @ bias)
        centred = features - origin
        _, directions = torch.linalg.eigh(centred.T @ centred / len(centred))  # in ascending order of their variance
        d = features.shape[1]
        kept = 1000 if d >= 2048 else 512 if d >= 768 else d // 2
        residual = directions[:, : d - kept]
        alpha = logits.amax(dim=1).mean() / (centred @ residual).norm(dim=1).mean()
        return {"origin": origin, "residual": residual.contiguous(), "alpha": alpha}

    def formula(self, features: Tensor, logits: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """Score features `[batch, d]` as `[batch]`."""
        length: Tensor = ((features - tensors["origin"]) @ tensors["residual"]).norm(dim=1)
        return tensors["alpha"] * length - logits.logsumexp(dim=1)
