"""A trained model as it is run: the fastest network that is equal to it."""

import copy
import logging
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd

from besnn.errors import InputError
from besnn.layers import WithLayerOutputs, batch_ensemble, fold, members_of, mirror_views, ones
from besnn.layers.folding.folded_layers import FoldedLinear
from besnn.layers.folding.fuse import MemberStreams, fuse
from besnn.model.cuda_graphs import CudaGraphs, Network, Outputs, Replayed
from besnn.model.feature_layers import by_member, inner_features, layer_names
from besnn.model.preprocessing import Preprocessing
from besnn.model.protocol import OODClassifier

_logger = logging.getLogger(__name__)
CPU_IMAGES = 32
"""How many images go through a CPU at a time: so few that what a layer writes is still in the cache when the next reads it."""
GPU_TYPE = torch.bfloat16
"""The type of convolutions and matrix products on a GPU; all else, and the evidence, is float32."""


class InferenceNetwork(nn.Module):
    """From raw inputs to evidence and features: those of Φ, or of inner layers that are named.

    Batch-ensemble layers are folded into plain per-member weights, so the input is not copied for each member, unless some look
    at mirror images. On a CPU, images go through in parts that fit its cache; on a GPU, products are taken in `GPU_TYPE`, and a
    shape of batch that keeps coming back is recorded, members side by side, and replayed. Neither with gradients enabled.

    Args:
        model: trained; its classes are frozen if they were not.
        preprocessing: from raw inputs to the model's.
        layer: an inner layer of the feature extractor, by name, or several, see `layer_blocks`; None for its output.
    """

    _fused: tuple[nn.Module, ...] | None  # not a part of the state

    def __init__(self, model: OODClassifier, preprocessing: Preprocessing, layer: str | None = None) -> None:
        super().__init__()
        if not model.frozen:
            model.freeze_classes()
        self.model, self.preprocessing = without_extractors(model), preprocessing
        self.layer, self.layers = layer, layer_names(layer)
        extractors = [_for_inference(extractor, model.mirror, *self.layers) for extractor in model.extractors()]
        self.extractors = nn.ModuleList(extractors)
        self.extractors.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs leave it out
        self.eval()
        self._forget_recordings()

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Raw inputs `[batch, ...]` → evidence `[members, batch, classes]` and features `[members, batch, d]`."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            evidence, features = self.outputs(raw, self.extractors)
        elif raw.is_cuda:
            with torch.cuda.device(raw.device):
                evidence, features = self._replayed(raw)
        else:
            parts = [self.outputs(part, self.extractors) for part in raw.split(CPU_IMAGES if raw.ndim == 4 else len(raw) or 1)]
            evidence, features = (torch.cat(each, dim=1) for each in zip(*parts, strict=True))
        return evidence, features

    def outputs(self, raw: Tensor, extractors: Iterable[Callable[[Tensor], Any]], half: bool = False) -> tuple[Tensor, Tensor]:
        """What `forward` gives, by equals of the extractors, with products in `GPU_TYPE` or not."""
        x = self.preprocessing(raw)
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(raw.device.type, GPU_TYPE) if half else nullcontext():
            outputs = [extractor(view) for extractor, view in zip(extractors, self._views(x), strict=True)]
        rows, *inner = zip(*outputs, strict=True) if self.layers else (outputs,)
        features = by_member(rows, self.model.members, x.dtype)
        evidence = self.model.evidence(features)
        if self.layer is not None:
            features = inner_features(dict(zip(self.layers, inner, strict=True)), self.layer, self.model.members, x.dtype)
        return evidence, features

    def _views(self, x: Tensor) -> list[Tensor]:
        """What each extractor looks at. A batch ensemble mirrors for its members itself."""
        networks = len(self.extractors)
        return mirror_views(x, networks) if self.model.mirror and networks > 1 else [x] * networks

    def _on_gpu(self, raw: Tensor) -> Outputs:
        if self._fused is None:
            self._fused = self._fuse(raw)
        return self.outputs(raw, self._fused or self.extractors, half=bool(self._fused))

    def _side_by_side(self, raw: Tensor) -> Outputs:
        extractors = [MemberStreams(each).run if isinstance(each, fx.GraphModule) else each for each in self._fused or ()]
        return self.outputs(raw, extractors or self.extractors, half=bool(self._fused))

    def _record(self, network: Network, example: Tensor) -> Network:
        try:
            return self._graphs(self._side_by_side, example)
        except Exception as error:  # then one after the other
            _logger.info("members are not recorded side by side (%s: %s)", type(error).__name__, error)
            return self._graphs(network, example)

    def _fuse(self, raw: Tensor) -> tuple[nn.Module, ...]:
        """The extractors fused and in `GPU_TYPE`; nothing where that fails, or gives other answers for some inputs."""
        if self.preprocessing.mean.dtype != torch.float32:  # whoever trained in double precision wants its digits
            return ()
        expected = self.outputs(raw, self.extractors)
        try:
            with torch.inference_mode(False):  # the weights outlive the mode of this call
                fused = tuple(_for_gpu(extractor) for extractor in self.extractors)
            outputs = self.outputs(raw, fused, half=True)
        except Exception as error:  # whatever a machine lacks, the plain network runs
            _logger.info("the network runs as it is (%s: %s)", type(error).__name__, error)
            return ()
        return fused if all(_alike(*pair) for pair in zip(outputs, expected, strict=True)) else ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._forget_recordings()  # they hold on to weights that are about to move
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _forget_recordings(self) -> None:
        self._fused = None
        self._graphs = CudaGraphs()
        self._replayed = Replayed(self._on_gpu, self._record)


def without_extractors(model: OODClassifier) -> OODClassifier:
    """A copy of a model that makes evidence of features, but has no networks to compute them with."""
    return copy.deepcopy(model, {id(extractor): nn.Identity() for extractor in model.extractors()})


def _for_inference(extractor: nn.Module, mirror: bool, *layers: str) -> nn.Module:
    """The extractor folded; a plain one as the ensemble of one member that it is."""
    if members_of(extractor) is not None:
        return fold(extractor, *layers, mirror=mirror)
    try:
        return fold(batch_ensemble(extractor, 1, init=ones()), *layers)
    except InputError:  # it has layers that no batch ensemble has, or none that it could have
        plain = copy.deepcopy(extractor).eval()
        return WithLayerOutputs(plain, *layers) if layers else plain


def _for_gpu(extractor: nn.Module) -> nn.Module:
    halved = copy.deepcopy(extractor).apply(halve)
    return fuse(halved) if isinstance(halved, fx.GraphModule) else halved


def _alike(got: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are equal to a few parts in a hundred: far more than rounding to bfloat16 changes."""
    return bool((got - expected).norm() <= 0.05 * expected.norm())


def halve(module: nn.Module) -> None:
    """Keeps the weights of products in the type that autocast would convert them to at every call."""
    if isinstance(module, nn.Linear | _ConvNd | FoldedLinear):
        module.to(GPU_TYPE)
