"""BatchNorm with separate statistics and affine weights per member.

Where the members share a BatchNorm, it is torch's own layer: member-major rows are simply more rows.
"""

from typing import Self, TypeGuard

import torch
from torch import Tensor, nn

from besnn.checks import check_sizes
from besnn.layers.gpu.scale_and_norm import normalise, use_kernels
from besnn.layers.members import split_members


class MemberBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Mixin for torch's BatchNorms, whose channels become members · channels."""

    members: int

    def __init__(self, num_features: int, *args: object, members: int, **kwargs: object) -> None:
        check_sizes(members=members)
        super().__init__(members * num_features, *args, **kwargs)  # type: ignore[arg-type]  # torch's own arguments
        self.members = members

    @classmethod
    def from_plain(cls, norm: nn.Module, members: int) -> Self:
        """Turn a torch BatchNorm *in place* into one with a copy of its state per member."""
        norm.__class__ = cls
        assert isinstance(norm, cls)
        norm.members = members
        norm.num_features *= members
        for name in ("weight", "bias"):
            if (parameter := getattr(norm, name)) is not None:
                copies = nn.Parameter(parameter.detach().repeat(members), requires_grad=parameter.requires_grad)
                setattr(norm, name, copies)
        for name in ("running_mean", "running_var"):
            if (buffer := getattr(norm, name)) is not None:
                setattr(norm, name, buffer.repeat(members))
        return norm

    def forward(self, x: Tensor) -> Tensor:
        """Normalise member-major rows `[members · batch, channels, ...]`, each member by itself."""
        # torch rejects other channels and single values itself
        if self.training and use_kernels(x) and x.shape[1] * self.members == self.num_features < x.numel():
            return self._normalise_by_kernels(x)
        packed = split_members(x, self.members).transpose(0, 1).flatten(1, 2)  # [batch, members · channels, ...]
        by_member: Tensor = super().forward(packed).unflatten(1, (self.members, -1)).transpose(0, 1)
        return by_member.flatten(0, 1)

    def _normalise_by_kernels(self, x: Tensor) -> Tensor:
        """Do the same in training on a GPU: without packing, and with running statistics as torch's layer keeps them."""
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        shape = self.members, self.num_features // self.members
        split_members(x, self.members)  # rejects rows that cannot be split among the members
        like = {"dtype": torch.float64 if x.dtype == torch.float64 else torch.float32, "device": x.device}
        weight = torch.ones(shape, **like) if self.weight is None else self.weight.view(shape)
        bias = torch.zeros(shape, **like) if self.bias is None else self.bias.view(shape)
        y, mean, variance = normalise(x, weight, bias, self.eps)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            batches = self.num_batches_tracked
            if batches is not None:
                batches.add_(1)
            count = x.numel() // self.num_features
            for running, new in ((self.running_mean, mean), (self.running_var, variance * (count / (count - 1)))):
                step = new.flatten() - running
                if self.momentum is not None:
                    running.add_(step * self.momentum)
                elif batches is not None:
                    running.add_(step / batches)
        return y

    def extra_repr(self) -> str:
        """Return torch's description, whose features are members · channels, with the number of members."""
        torch_repr: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{torch_repr}, members={self.members}"


class MemberBatchNorm1d(MemberBatchNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d`, one per member: `[members · batch, channels]` to the same shape.

    >>> norm = MemberBatchNorm1d(1, members=2)
    >>> norm(torch.tensor([[0.0], [2.0], [10.0], [90.0]])).flatten().round().tolist()
    [-1.0, 1.0, -1.0, 1.0]
    """


class MemberBatchNorm2d(MemberBatchNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d`, one per member: `[members · batch, channels, h, w]` to the same shape.

    >>> norm = MemberBatchNorm2d(3, members=4)
    >>> list(norm(torch.rand(4 * 2, 3, 6, 6)).shape)
    [8, 3, 6, 6]
    """


class MemberBatchNorm3d(MemberBatchNorm, nn.BatchNorm3d):
    """`nn.BatchNorm3d`, one per member: `[members · batch, channels, d, h, w]` to the same shape.

    >>> norm = MemberBatchNorm3d(3, members=4)
    >>> list(norm(torch.rand(4 * 2, 3, 6, 6, 6)).shape)
    [8, 3, 6, 6, 6]
    """


def is_plain_norm(module: nn.Module | None) -> TypeGuard[nn.modules.batchnorm._BatchNorm]:
    """Return whether a module is a BatchNorm and nothing more; a subclass may for instance add an activation."""
    plain = (nn.modules.batchnorm._BatchNorm.forward, nn.SyncBatchNorm.forward, MemberBatchNorm.forward)
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and type(module).forward in plain


def norm_affine(norm: nn.modules.batchnorm._BatchNorm, members: int) -> tuple[Tensor, Tensor]:
    """Return what a BatchNorm does in evaluation: a scale and a shift per member and channel, `[members, channels]` each."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = torch.rsqrt(norm.running_var + norm.eps)
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = -norm.running_mean * scale
    if norm.bias is not None:
        shift = shift + norm.bias
    if isinstance(norm, MemberBatchNorm):
        return scale.unflatten(0, (members, -1)), shift.unflatten(0, (members, -1))
    return scale.expand(members, -1), shift.expand(members, -1)
