"""BatchNorm with its own statistics and affine weights for each member.

Shared by the members, BatchNorm is torch's own layer, unchanged: member-major rows are simply more rows.
"""

from typing import Self, TypeGuard

import torch
from torch import Tensor, nn

from besnn.layers.gpu.scale_and_norm import is_quick, normalise
from besnn.layers.members import check_members, split_members


class MemberBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Joined with one of torch's BatchNorms, whose channels it sees as members · channels."""

    members: int

    def __init__(self, num_features: int, *args: object, members: int, **kwargs: object) -> None:
        check_members(members)
        super().__init__(members * num_features, *args, **kwargs)  # type: ignore[arg-type]  # torch's own arguments, passed on
        self.members = members

    @classmethod
    def from_plain(cls, norm: nn.Module, members: int) -> Self:
        """Turns a torch BatchNorm *in place* into one with a copy of its state for each member."""
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
        """Normalises member-major rows `[members · batch, channels, ...]`, each member by itself."""
        # what torch refuses (other channels, a single number in each) is left to torch
        if self.training and is_quick(x) and x.shape[1] * self.members == self.num_features < x.numel():
            return self._by_own_batch(x)
        return from_packed(super().forward(to_packed(x, self.members)), self.members)

    def _by_own_batch(self, x: Tensor) -> Tensor:
        """The same in training, on a GPU: without packing, and with running statistics as torch's layer keeps them."""
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        shape = self.members, self.num_features // self.members
        split_members(x, self.members)  # refuses rows that do not divide among the members
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
        """The description of torch, whose features are members · channels, plus the number of members."""
        torch_repr: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{torch_repr}, members={self.members}"


class MemberBatchNorm1d(MemberBatchNorm, nn.BatchNorm1d):
    """`nn.BatchNorm1d`, one for each member."""


class MemberBatchNorm2d(MemberBatchNorm, nn.BatchNorm2d):
    """`nn.BatchNorm2d`, one for each member.

    >>> norm = MemberBatchNorm2d(3, members=2)
    >>> list(norm(torch.rand(8, 3, 4, 4)).shape)
    [8, 3, 4, 4]
    """


class MemberBatchNorm3d(MemberBatchNorm, nn.BatchNorm3d):
    """`nn.BatchNorm3d`, one for each member."""


def to_packed(x: Tensor, members: int) -> Tensor:
    """Member-major rows `[members · batch, channels, ...]` → members in the channels, `[batch, members · channels, ...]`."""
    return split_members(x, members).transpose(0, 1).flatten(1, 2)


def from_packed(x: Tensor, members: int) -> Tensor:
    """The inverse of `to_packed`."""
    by_member: Tensor = x.unflatten(1, (members, -1)).transpose(0, 1)
    return by_member.flatten(0, 1)


def is_plain_norm(module: nn.Module | None) -> TypeGuard[nn.modules.batchnorm._BatchNorm]:
    """Whether a module is a BatchNorm and nothing more: a class made from it may for instance put an activation behind."""
    plain = (nn.modules.batchnorm._BatchNorm.forward, nn.SyncBatchNorm.forward, MemberBatchNorm.forward)
    return isinstance(module, nn.modules.batchnorm._BatchNorm) and type(module).forward in plain


def norm_affine(norm: nn.modules.batchnorm._BatchNorm, members: int) -> tuple[Tensor, Tensor]:
    """What a BatchNorm does in evaluation, as scale and shift of each member's channels, `[members, channels]` each."""
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
