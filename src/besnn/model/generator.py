"""The class-feature generator Ψ: draws each class's feature distribution from noise."""

import torch
from torch import Tensor, nn

from besnn.layers import BatchEnsembleLinear, Initialiser


class ClassFeatureGenerator(nn.Module):
    """Two batch-ensemble linear layers from (one-hot class, noise) to features: e_{n,c,m} = Ψ_n(onehot_c, ε_m).

    Args:
        num_classes: C.
        feature_dim: d.
        members: N.
        noise_dim: length of ε.
        hidden_dim: width of the hidden layer.
        class_scale: what stands for the one in the one-hot. A plain 1 drowns among hundreds of noise numbers of its size, and
            training stands still for its first epochs.
        init: how fast weights start.
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
    ) -> None:
        super().__init__()
        self.num_classes, self.noise_dim, self.class_scale, self.members = num_classes, noise_dim, class_scale, members
        self.hidden = BatchEnsembleLinear(num_classes + noise_dim, hidden_dim, members=members, init=init)
        self.output = BatchEnsembleLinear(hidden_dim, feature_dim, members=members, init=init)

    def forward(self, noise: Tensor, classes: slice = slice(None)) -> Tensor:
        """Class features for noise that all classes and members share, as in the paper.

        Args:
            noise: ε, `[samples, noise_dim]`.
            classes: which classes' features to draw; all unless told otherwise.

        Returns:
            `[members, classes, samples, d]`.
        """
        hidden = self._hidden(noise, classes).relu_()
        rows = hidden.flatten(1, 2)  # [members, classes · samples, hidden]
        layer = self.output
        assert layer.bias is not None
        # members' own weights are small beside so many rows, which r and s would otherwise pass over
        features = torch.baddbmm(layer.bias[:, None, :].to(rows.dtype), rows, layer.member_weights().mT)
        return features.unflatten(1, hidden.shape[1:3])  # type: ignore[no-any-return]

    def _hidden(self, noise: Tensor, classes: slice) -> Tensor:
        """The first layer, `[members, classes, samples, hidden]`.

        The layer is linear in its two inputs, and a class's noise is every class's noise: the noise goes through it once rather
        than once a class, and the one-hot, which selects a column of the weight, needs no product at all.
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
