"""Conversion of any network into its batch-ensemble form."""

import copy
from collections.abc import Callable, Collection
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from besnn.errors import InputError
from besnn.layers.attention import BatchEnsembleMultiheadAttention
from besnn.layers.conv import (
    BatchEnsembleConv1d,
    BatchEnsembleConv2d,
    BatchEnsembleConv3d,
    BatchEnsembleConvTranspose2d,
)
from besnn.layers.initialise import Initialiser, normal
from besnn.layers.layer import BatchEnsembleLayer
from besnn.layers.linear import BatchEnsembleLinear
from besnn.layers.members import check_members
from besnn.layers.norm import MemberBatchNorm1d, MemberBatchNorm2d, MemberBatchNorm3d, _MemberBatchNorm

_LAYERS: dict[type[nn.Module], type[BatchEnsembleLayer]] = {
    nn.Linear: BatchEnsembleLinear,
    NonDynamicallyQuantizableLinear: BatchEnsembleLinear,
    nn.Conv1d: BatchEnsembleConv1d,
    nn.Conv2d: BatchEnsembleConv2d,
    nn.Conv3d: BatchEnsembleConv3d,
    nn.ConvTranspose2d: BatchEnsembleConvTranspose2d,
}
_MEMBER_NORMS: dict[type[nn.Module], type[_MemberBatchNorm]] = {
    nn.BatchNorm1d: MemberBatchNorm1d,
    nn.BatchNorm2d: MemberBatchNorm2d,
    nn.BatchNorm3d: MemberBatchNorm3d,
}
# They normalise every row by itself, so one copy serves all members.
_ROW_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _InstanceNorm)
_TRANSFORMERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def batch_ensemble(
    module: nn.Module,
    members: int,
    keep_weights: bool = True,
    norm: str = "shared",
    init: Initialiser | None = None,
    share: Collection[str | type[nn.Module]] = (),
) -> nn.Module:
    """Converts a network into a batch ensemble of `members` members, without touching the original.

    Linear, convolution and attention layers get fast weights; what has no parameters works unchanged on member-major rows.
    Weights, training mode, device, dtype and hooks are kept, and what was tied or used twice still is.

    Args:
        module: any nested module.
        members: how many members.
        keep_weights: False draws the shared weights afresh.
        norm: `"shared"`: one BatchNorm for all members; `"member"`: one for each. Norms over a row are always shared.
        init: how fast weights start; `normal()` unless given, see `besnn.layers.initialise`.
        share: layers with parameters to leave as they are, one for all members: module types, or names as in
            `named_modules`.

    Returns:
        A new module that maps `[members · batch, ...]` to `[members · batch, ...]`; `tile` makes such input.

    Raises:
        InputError: a layer with parameters can neither be converted nor is to be shared; the message names it.

    >>> import torch
    >>> from besnn.layers import tile
    >>> plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    >>> ensemble = batch_ensemble(plain, members=3)
    >>> list(ensemble(tile(torch.rand(5, 1, 4, 4), 3)).shape)
    [15, 2]
    >>> batch_ensemble(nn.Sequential(nn.Embedding(9, 4)), members=3)
    Traceback (most recent call last):
        ...
    besnn.errors.InputError: layer '0' (Embedding) has parameters but no batch-ensemble form: to share it, pass share=['0']
    """
    check_members(members)
    if norm not in ("shared", "member"):
        raise InputError(f"norm={norm!r} is unknown: use 'shared' (one BatchNorm for all members) or 'member' (one for each)")
    _check_share(module, share)
    module = copy.deepcopy(module)  # keeps ties between modules and parameters
    _Conversion(members, keep_weights, norm, init or normal(), share).convert(module, name="", batch_dim=0)
    return module


def _check_share(module: nn.Module, share: Collection[str | type[nn.Module]]) -> None:
    if isinstance(share, str):
        raise InputError(f"share={share!r}: pass a collection of names or types, as in share=[{share!r}]")
    names = {name for name, _ in module.named_modules()}
    for item in share:
        if isinstance(item, str) and item not in names:
            raise InputError(f"share names {item!r}, but the module has no such layer: use a name from named_modules()")


class _Conversion:
    """One walk over a module, layer by layer and in place; a module met twice is converted once."""

    def __init__(
        self, members: int, keep_weights: bool, norm: str, init: Initialiser, share: Collection[str | type[nn.Module]]
    ) -> None:
        self.members, self.keep_weights, self.norm, self.init = members, keep_weights, norm, init
        self.shared_names = {item for item in share if isinstance(item, str)}
        self.shared_types = tuple(item for item in share if isinstance(item, type))
        self.seen: set[int] = set()
        self.new_biases: dict[Any, Any] = {}

    def convert(self, module: nn.Module, name: str, batch_dim: int) -> None:
        if id(module) in self.seen or name in self.shared_names or isinstance(module, self.shared_types):
            return
        self.seen.add(id(module))
        kind = type(module)
        where = f"layer {name!r} ({kind.__name__})" if name else f"the module ({kind.__name__})"
        if isinstance(module, BatchEnsembleLayer):
            raise InputError(f"{where} is a batch-ensemble layer already: convert the plain module, or share it with share=")
        if isinstance(module, LazyModuleMixin):
            raise InputError(f"{where} has no weights yet: run one batch through the module first")
        if kind in _LAYERS:
            self._redraw(module)
            bias = module.bias
            _LAYERS[kind].from_plain(module, self.members, self.init, batch_dim)
            if bias is not None:  # biases grow a member axis: layers that shared one share the new one
                module.bias = self.new_biases.setdefault(bias, module.bias)
        elif kind is nn.MultiheadAttention:
            self._redraw(module)
            BatchEnsembleMultiheadAttention.from_plain(module, self.members, self.init)  # type: ignore[arg-type]
        elif isinstance(module, _BatchNorm):
            self._redraw(module)
            if self.norm == "member":
                self._convert_norm(module, where)
        elif isinstance(module, _ROW_NORMS):
            self._redraw(module)
        elif any(True for _ in module.parameters(recurse=False)):
            raise InputError(f"{where} has parameters but no batch-ensemble form: to share it, pass share=[{name!r}]")
        else:
            if isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False  # its fused path reads weights that the conversion takes apart
            if isinstance(module, _TRANSFORMERS):
                batch_dim = 0 if module.self_attn.batch_first else 1
            for child_name, child in module.named_children():
                self.convert(child, f"{name}.{child_name}" if name else child_name, batch_dim)

    def _convert_norm(self, module: nn.Module, where: str) -> None:
        if type(module) not in _MEMBER_NORMS:
            raise InputError(f"{where} has no per-member form: use norm='shared', or plain BatchNorm1d, 2d or 3d")
        _MEMBER_NORMS[type(module)].from_plain(module, self.members)

    def _redraw(self, module: nn.Module) -> None:
        if not self.keep_weights:
            redraw: Callable[[], None] = getattr(module, "reset_parameters", None) or module._reset_parameters  # type: ignore[assignment]
            redraw()
