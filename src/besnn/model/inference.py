"""The network that scores inputs: equal to a trained model, and as fast as possible."""

import copy
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd

from besnn.errors import InputError
from besnn.layers import batch_ensemble, fold, members_of, mirror_views, ones, tile
from besnn.layers.folding.fold import WithLayerOutputs
from besnn.layers.folding.folded_layers import FoldedLinear
from besnn.layers.folding.fuse import FEW_ROWS, ConvReLU, MemberProducts, MemberStreams, Pool, fuse, fuse_for_cpu
from besnn.model.cuda_graphs import CudaGraphs, Network, Outputs, Replayed
from besnn.model.feature_layers import INPUTS, OUTPUT, PIXELS, by_member, inner_layers, layer_features, layer_names
from besnn.model.pixel_statistics import pixel_statistics
from besnn.model.preprocessing import Preprocessing
from besnn.model.protocol import OODClassifier

_logger = logging.getLogger(__name__)
CPU_IMAGES = 32
"""Images per pass and thread on a CPU: so few that what a layer writes is still in the cache when the next layer reads it."""
GPU_TYPE = torch.bfloat16
"""The dtype of convolutions and matrix products on a GPU; everything else, and the evidence, is float32."""
ROUNDING = {True: 0.05, False: 1e-3}
"""Relative differences that are far more than products in `GPU_TYPE`, or in float32, may bring about."""


class InferenceNetwork(nn.Module):
    """From raw inputs to evidence and features: those of Φ, or of named layers.

    Batch-ensemble layers are folded into plain weights per member, so the input is not copied for each member, unless some
    members get mirror images. On a CPU, images pass in small batches that fit its cache; convolutions and products are fused
    with what follows them. On a GPU, products are taken in `GPU_TYPE`, and a shape of batch that recurs is recorded, with
    members in parallel, and replayed. With gradients enabled, none of this is done, nor for an `exact` model, whose own network
    runs. `layer` names layers of the feature extractor, see `layer_groups`; None stands for its output, `inputs` for what goes
    in. The model's classes are frozen if they are not yet.

    >>> from besnn.model import BESNN, two_moons_mlp
    >>> model = BESNN(two_moons_mlp(), num_classes=2, feature_dim=32, members=4)
    >>> network = InferenceNetwork(model, Preprocessing((2,), torch.zeros(2), torch.ones(2)))
    >>> [list(output.shape) for output in network(torch.rand(5, 2))]
    [[4, 5, 2], [4, 5, 32]]
    """

    _fused: tuple[nn.Module, ...] | None  # for a GPU; not a part of the state
    _packed: tuple[nn.Module, ...] | None  # for a CPU; likewise

    def __init__(self, model: OODClassifier, preprocessing: Preprocessing, layer: str | None = None) -> None:
        super().__init__()
        if not model.frozen:
            model.freeze_classes()
        bodies = {id(extractor): nn.Identity() for extractor in model.extractors()}
        self.model, self.preprocessing = copy.deepcopy(model, bodies), preprocessing  # it needs no extractors of its own
        self.layer, self.layers = layer, inner_layers(layer)
        if model.exact:
            self.extractors = nn.ModuleList(_observed(extractor, *self.layers) for extractor in model.extractors())
        else:
            extractors = [_for_inference(extractor, model.mirror, *self.layers) for extractor in model.extractors()]
            self.extractors = nn.ModuleList(extractors)
            self.extractors.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs leave it out
        self.eval()
        self._forget_recordings()

    def close(self) -> None:
        """Remove the hooks from a network that is not a copy; this object cannot be used afterwards."""
        for extractor in self.extractors:
            if isinstance(extractor, WithLayerOutputs):
                extractor.remove_hooks()

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Map raw inputs `[batch, ...]` to evidence `[members, batch, classes]` and features `[members, batch, d]`."""
        if self.model.exact or torch.is_grad_enabled() or torch.compiler.is_compiling():
            evidence, features = self.outputs(raw, self.extractors)
        elif raw.is_cuda:
            with torch.cuda.device(raw.device):
                evidence, features = self._replayed(raw)
        else:
            batches = raw.split(CPU_IMAGES * torch.get_num_threads() if raw.ndim == 4 else len(raw) or 1)
            outputs = [self._on_cpu(batch) for batch in batches]
            evidence, features = (torch.cat(each, dim=1) for each in zip(*outputs, strict=True))
        return evidence, features

    def outputs(self, raw: Tensor, extractors: Iterable[Callable[[Tensor], Any]], half: bool = False) -> tuple[Tensor, Tensor]:
        """Compute what `forward` returns with equivalents of the extractors, optionally with products in `GPU_TYPE`."""
        x = self.preprocessing(raw)
        if x.ndim == 4 and not self.model.exact:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(raw.device.type, GPU_TYPE) if half else nullcontext():
            outputs = [extractor(view) for extractor, view in zip(extractors, self._views(x), strict=True)]
        return self.gathered(outputs, x)

    def gathered(self, outputs: Sequence[Any], x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Make evidence and features of what the extractors return; layers that show the inputs need these, preprocessed."""
        rows, *by_layer = zip(*outputs, strict=True) if self.layers else (outputs,)
        dtype = self.preprocessing.mean.dtype
        features = by_member(rows, self.model.members, dtype)
        evidence = self.model.evidence(features)
        if self.layer == INPUTS and x is not None:
            features = x.flatten(1)[None]
        elif self.layer is not None:
            outputs_of: dict[str, Sequence[Tensor]] = dict(zip(self.layers, by_layer, strict=True))
            outputs_of[OUTPUT] = rows
            if PIXELS in layer_names(self.layer) and x is not None:
                outputs_of[PIXELS] = [tile(pixel_statistics(x), self.model.members)]
            features = layer_features(outputs_of, self.layer, self.model.members, dtype)
        return evidence, features

    def _views(self, x: Tensor) -> list[Tensor]:
        """Return the input of each extractor. A batch ensemble mirrors images for its members itself."""
        networks = len(self.extractors)
        return mirror_views(x, networks) if self.model.mirror and networks > 1 else [x] * networks

    def _on_cpu(self, raw: Tensor) -> Outputs:
        if self._packed is None and (raw.ndim == 4 or len(raw) >= FEW_ROWS):  # for fewer, preparing costs more than it saves
            self._packed = self._fuse(raw, _for_cpu, half=False)
        return self.outputs(raw, self._packed or self.extractors)

    def _on_gpu(self, raw: Tensor) -> Outputs:
        if self._fused is None:
            self._fused = self._fuse(raw, _for_gpu, half=True)
        return self.outputs(raw, self._fused or self.extractors, half=bool(self._fused))

    def _members_in_parallel(self, raw: Tensor) -> Outputs:
        extractors = [MemberStreams(each).run if isinstance(each, fx.GraphModule) else each for each in self._fused or ()]
        return self.outputs(raw, extractors or self.extractors, half=bool(self._fused))

    def _record(self, network: Network, example: Tensor) -> Network:
        try:
            return self._graphs(self._members_in_parallel, example)
        except Exception as error:  # then one member after the other
            _logger.info("members are not recorded in parallel (%s: %s)", type(error).__name__, error)
            return self._graphs(network, example)

    def _fuse(self, raw: Tensor, fused_form: Callable[[nn.Module], nn.Module], half: bool) -> tuple[nn.Module, ...]:
        """Return the extractors fused, for products in `GPU_TYPE` or not; none if that fails or some inputs' results differ."""
        if self.preprocessing.mean.dtype != torch.float32:  # a model trained in double precision keeps its digits
            return ()
        expected = self.outputs(raw, self.extractors)
        try:
            with torch.inference_mode(False):  # the weights outlive this call
                fused = tuple(fused_form(extractor) for extractor in self.extractors)
            outputs = self.outputs(raw, fused, half)
        except Exception as error:  # whatever is not available on this machine: the plain network runs
            _logger.info("the network is not fused (%s: %s)", type(error).__name__, error)
            return ()
        pairs = zip(outputs, expected, strict=True)
        return fused if all(bool((got - wanted).norm() <= ROUNDING[half] * wanted.norm()) for got, wanted in pairs) else ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._forget_recordings()  # they refer to weights that are about to move
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _forget_recordings(self) -> None:
        self._fused = self._packed = None
        self._graphs = CudaGraphs()
        self._replayed = Replayed(self._on_gpu, self._record)


def _for_inference(extractor: nn.Module, mirror: bool, *layers: str) -> nn.Module:
    """Return the extractor folded; a plain one is folded as an ensemble of one member."""
    if members_of(extractor) is not None:
        return fold(extractor, *layers, mirror=mirror)
    try:
        return fold(batch_ensemble(extractor, 1, init=ones()), *layers)
    except InputError:  # it has layers that cannot be converted, or none that can
        return _observed(copy.deepcopy(extractor).eval(), *layers)


def _observed(extractor: nn.Module, *layers: str) -> nn.Module:
    return WithLayerOutputs(extractor, *layers) if layers else extractor


def _for_cpu(extractor: nn.Module) -> nn.Module:
    """Return the extractor fused, with the same weights; itself if there is nothing to fuse."""
    weights = {id(weight): weight for weight in (*extractor.parameters(), *extractor.buffers())}
    fused = fuse_for_cpu(copy.deepcopy(extractor, weights)) if isinstance(extractor, fx.GraphModule) else extractor
    return fused if any(isinstance(module, ConvReLU | Pool | MemberProducts) for module in fused.modules()) else extractor


def _for_gpu(extractor: nn.Module) -> nn.Module:
    halved = copy.deepcopy(extractor).apply(halve)
    return fuse(halved) if isinstance(halved, fx.GraphModule) else halved


def halve(module: nn.Module) -> None:
    """Keep the weights of products in the dtype that autocast would convert them to at every call."""
    if isinstance(module, nn.Linear | _ConvNd | FoldedLinear):
        module.to(GPU_TYPE)
