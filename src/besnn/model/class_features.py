"""Class features: the generator Ψ that draws them from noise, and the distances to them by their moments."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from besnn.layers import BatchEnsembleLinear, Initialiser

_CDIST_TYPES = (torch.float32, torch.float64)  # that torch.cdist supports


class ClassFeatureGenerator(nn.Module):
    """Two batch-ensemble linear layers from (one-hot class, noise) to features: e_{n,c,m} = Ψ_n(onehot_c, ε_m).

    `class_scale` is the value of the one in the one-hot vector. A plain 1 is lost among hundreds of noise values of its size,
    and training makes no progress in its first epochs. With `sphere`, features have length 1.

    >>> generator = ClassFeatureGenerator(num_classes=3, feature_dim=8, members=4, noise_dim=5, hidden_dim=16)
    >>> list(generator(torch.randn(10, 5)).shape)
    [4, 3, 10, 8]
    """

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        members: int,
        noise_dim: int,
        hidden_dim: int,
        class_scale: float = 10.0,
        init: Initialiser | None = None,
        sphere: bool = False,
    ) -> None:
        super().__init__()
        self.num_classes, self.noise_dim, self.class_scale, self.members = num_classes, noise_dim, class_scale, members
        self.sphere = sphere
        self.hidden = BatchEnsembleLinear(num_classes + noise_dim, hidden_dim, members=members, init=init)
        self.output = BatchEnsembleLinear(hidden_dim, feature_dim, members=members, init=init)

    def forward(self, noise: Tensor, classes: slice = slice(None)) -> Tensor:
        """Map noise `[samples, noise_dim]`, shared by classes and members, to features `[members, classes, samples, d]`."""
        hidden = self._hidden(noise, classes).relu_()
        rows = hidden.flatten(1, 2)  # [members, classes · samples, hidden]
        layer = self.output
        assert layer.bias is not None
        # each member's weights are small beside so many rows, to which r and s would otherwise be applied
        features = torch.baddbmm(layer.bias[:, None, :].to(rows.dtype), rows, layer.member_weights().mT)
        features = features.unflatten(1, hidden.shape[1:3])
        return F.normalize(features, dim=-1) if self.sphere else features

    def _hidden(self, noise: Tensor, classes: slice) -> Tensor:
        """Apply the first layer, `[members, classes, samples, hidden]`.

        The layer is linear in its two inputs and all classes share the noise. So the noise passes through it once rather than
        once per class, and the one-hot, which selects a column of the weight, needs no product at all.
        """
        layer = self.hidden
        class_weight, noise_weight = layer.weight.split([self.num_classes, self.noise_dim], dim=1)
        class_r, noise_r = layer.r.split([self.num_classes, self.noise_dim], dim=1)
        s = layer.s[:, None, :]
        assert layer.bias is not None
        by_class = (
            self.class_scale * class_r[:, classes, None] * class_weight.T[classes] * s + layer.bias[:, None, :]
        )  # [members, classes, hidden]
        by_noise = ((noise * noise_r[:, None, :]) @ noise_weight.T) * s  # [members, samples, hidden]
        hidden: Tensor = by_class[:, :, None, :] + by_noise[:, None, :, :]
        return hidden


def class_moments(class_features: Tensor) -> tuple[Tensor, Tensor]:
    """Compute μ = mean_m e_m, `[members, classes, d]`, and v = mean_m ‖e_m − μ‖², `[members, classes]`.

    The samples e_m are `[members, classes, samples, d]`.

    >>> class_moments(torch.tensor([[[[0.0, 0.0], [2.0, 0.0]]]]))
    (tensor([[[1., 0.]]]), tensor([[1.]]))
    """
    mean = class_features.mean(dim=2)
    spread = (class_features - mean.unsqueeze(2)).square().sum(dim=-1).mean(dim=2)
    return mean, spread


def squared_distances(features: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """Compute the average squared distance d̄ from each feature to the samples of each class, exactly, from their moments.

    mean_m ‖φ − e_m‖² = ‖φ − μ‖² + v, so the cost does not depend on the number of samples and the value is never negative.
    Features `[members, batch, d]` and the `class_moments` give `[members, batch, classes]`.

    >>> squared_distances(torch.tensor([[[3.0, 4.0]]]), mean=torch.zeros(1, 1, 2), spread=torch.ones(1, 1)).item()
    26.0
    """
    # ‖φ − μ‖² by differences, not by ‖φ‖² + ‖μ‖² − 2φμ: that loses all digits where φ ≈ μ, which is where trained features lie.
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or features.dtype not in _CDIST_TYPES:
        differences = features.unsqueeze(2) - mean.unsqueeze(1)
        return differences.square().sum(dim=-1) + spread.unsqueeze(1)
    # The same without a tensor [members, batch, classes, d]; it can be neither differentiated twice nor exported.
    distances = torch.cdist(features, mean, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.square_() + spread.unsqueeze(1)
