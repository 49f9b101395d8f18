"""Conversion of a plain network into a batch ensemble."""

import copy
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.parametrize import is_parametrized

from besnn.checks import check_sizes
from besnn.errors import InputError
from besnn.layers.attention import BatchEnsembleMultiheadAttention
from besnn.layers.layer import (
    BatchEnsembleConv1d,
    BatchEnsembleConv2d,
    BatchEnsembleConv3d,
    BatchEnsembleConvTranspose2d,
    BatchEnsembleLayer,
    BatchEnsembleLinear,
)
from besnn.layers.members import Initialiser, normal
from besnn.layers.norm import MemberBatchNorm, MemberBatchNorm1d, MemberBatchNorm2d, MemberBatchNorm3d

_LAYERS: dict[type[nn.Module], type[BatchEnsembleLayer]] = {
    nn.Linear: BatchEnsembleLinear,
    NonDynamicallyQuantizableLinear: BatchEnsembleLinear,
    nn.Conv1d: BatchEnsembleConv1d,
    nn.Conv2d: BatchEnsembleConv2d,
    nn.Conv3d: BatchEnsembleConv3d,
    nn.ConvTranspose2d: BatchEnsembleConvTranspose2d,
}
_MEMBER_NORMS: dict[type[nn.Module], type[MemberBatchNorm]] = {
    nn.BatchNorm1d: MemberBatchNorm1d,
    nn.BatchNorm2d: MemberBatchNorm2d,
    nn.BatchNorm3d: MemberBatchNorm3d,
}
# They normalise each row by itself, so one copy serves all members.
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
    """Convert a copy of a network into a batch ensemble.

    Linear, convolution and attention layers get fast weights; layers without parameters work unchanged on member-major rows.
    Weights, training mode, device, dtype and hooks are kept, and so are tied weights and layers used twice. Every layer must
    get the batch on its first axis (in torch's transformer layers with `batch_first=False`: on the second).

    Args:
        module: any nested module.
        members: N.
        keep_weights: whether to keep the weights as the shared weights, or to draw new ones.
        norm: `"shared"` for one BatchNorm for all members, `"member"` for one per member. Norms over a row are always shared.
        init: how fast weights start; `normal()` unless given.
        share: layers to leave as they are, by type or by name as in `named_modules`; and parameters that a module holds beside
            its layers, such as a positional embedding, by name as in `named_parameters`.

    Returns:
        A new module that maps `[members · batch, ...]` to `[members · batch, ...]`; `tile` makes such input.

    >>> import torch
    >>> from besnn.layers import tile
    >>> plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    >>> ensemble = batch_ensemble(plain, members=3)
    >>> list(ensemble(tile(torch.rand(5, 1, 4, 4), 3)).shape)
    [15, 2]
    """
    check_sizes(members=members)
    if norm not in ("shared", "member"):
        raise InputError(f"norm={norm!r} is unknown: use 'shared' (one BatchNorm for all members) or 'member' (one per member)")
    for name, layer in module.named_modules():
        if isinstance(layer, LazyModuleMixin):  # torch cannot even copy all of these
            raise InputError(f"{_where(layer, name)} has no weights yet: run one batch through the module first")
    module = copy.deepcopy(module)  # keeps ties between modules and parameters
    _Conversion(members, keep_weights, norm, init or normal(), *_resolve_share(module, share)).convert(module, "", batch_dim=0)
    return module


def _where(module: object, name: str) -> str:
    return f"layer {name!r} ({type(module).__name__})" if name else f"the module ({type(module).__name__})"


def _resolve_share(module: nn.Module, share: Collection[str | type[nn.Module]]) -> tuple[set[int], tuple[type[nn.Module], ...]]:
    """Return the ids of the named modules and parameters, and the types."""
    if isinstance(share, str):
        raise InputError(f"share={share!r}: pass a collection of names or types, as in share=[{share!r}]")
    modules = dict(module.named_modules(remove_duplicate=False))
    named = modules | dict(module.named_parameters(remove_duplicate=False))
    types = tuple(item for item in share if isinstance(item, type))
    names = [item for item in share if not isinstance(item, type)]
    for name in names:
        if name not in named:
            raise InputError(f"share names {name!r}, but the module has no such layer or parameter: see its named_modules()")
    return {id(named[name]) for name in names}, types


@dataclass
class _Conversion:
    """One walk over a module that converts its layers in place; a module used twice is converted once."""

    members: int
    keep_weights: bool
    norm: str
    init: Initialiser
    done: set[int]  # ids of modules and parameters that need no (further) conversion
    shared_types: tuple[type[nn.Module], ...]
    replaced: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)

    def convert(self, module: nn.Module, name: str, batch_dim: int) -> None:
        if id(module) in self.done or isinstance(module, self.shared_types):
            return
        self.done.add(id(module))
        kind = type(module)
        where = _where(module, name)
        if isinstance(module, BatchEnsembleLayer | MemberBatchNorm):
            raise InputError(f"{where} is already a batch-ensemble layer: convert the plain module, or share it with share=")
        if is_parametrized(module):
            raise InputError(f"{where} is parametrised: convert the module first, then parametrise the new one")
        if kind in _LAYERS:
            self._redraw(module)
            bias = module.bias
            _LAYERS[kind].from_plain(module, self.members, self.init, batch_dim)
            self._tie(module, "bias", bias)
        elif kind is nn.MultiheadAttention and module.bias_k is None and not module.add_zero_attn:
            self._convert_attention(module, name)
        elif isinstance(module, _BatchNorm):
            self._convert_norm(module, where)
        elif isinstance(module, _ROW_NORMS):
            self._redraw(module)
        else:
            self._check_own_parameters(module, name, where)
            self._convert_children(module, name, batch_dim)

    def _convert_attention(self, module: nn.MultiheadAttention, name: str) -> None:
        self._redraw(module)
        joint_weight, joint_bias = module.in_proj_weight, module.in_proj_bias
        attention = BatchEnsembleMultiheadAttention.from_plain(module, self.members, self.init)
        for role in ("q_proj", "k_proj", "v_proj"):
            projection = getattr(attention, role)
            if joint_weight is not None:
                self._tie(projection, "weight", joint_weight, role)
            self._tie(projection, "bias", joint_bias, role)
        self.convert(attention.out_proj, f"{name}.out_proj" if name else "out_proj", 0 if attention.batch_first else 1)

    def _convert_norm(self, module: nn.Module, where: str) -> None:
        self._redraw(module)
        if self.norm == "shared":
            return
        if type(module) not in _MEMBER_NORMS:
            raise InputError(f"{where} has no per-member form: use norm='shared', or plain BatchNorm1d, 2d or 3d")
        weight, bias = module.weight, module.bias
        _MEMBER_NORMS[type(module)].from_plain(module, self.members)
        self._tie(module, "weight", weight)
        self._tie(module, "bias", bias)

    def _check_own_parameters(self, module: nn.Module, name: str, where: str) -> None:
        own = [n for n, parameter in module.named_parameters(name, recurse=False) if id(parameter) not in self.done]
        if own and name and not any(True for _ in module.children()):
            raise InputError(f"{where} has parameters but no batch-ensemble form: to share it, pass share=[{name!r}]")
        if own:
            raise InputError(f"{where} has parameters of its own but no batch-ensemble form: to share them, pass share={own}")

    def _convert_children(self, module: nn.Module, name: str, batch_dim: int) -> None:
        # torch's fused paths for evaluation read the weights of inner layers instead of calling them
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        if isinstance(module, _TRANSFORMERS):
            batch_dim = 0 if module.self_attn.batch_first else 1
        for child_name, child in module.named_children():
            self.convert(child, f"{name}.{child_name}" if name else child_name, batch_dim)

    def _redraw(self, module: nn.Module) -> None:
        if not self.keep_weights:
            name = "reset_parameters" if hasattr(module, "reset_parameters") else "_reset_parameters"  # torch's attention
            getattr(module, name)()

    def _tie(self, module: nn.Module, name: str, old: object, role: str = "") -> None:
        """Use one new parameter wherever the same old one was used in the same role, so that tied weights stay tied."""
        if old is not None:
            new: Tensor = getattr(module, name)
            setattr(module, name, self.replaced.setdefault((old, role, new.shape), new))
