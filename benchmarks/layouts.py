"""The ways to run the members' convolutions: what the default was chosen from."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn

from benchmarks.results import Figure, Findings
from benchmarks.scoring import MEMBERS, besnn_model, floor_of, images_for, preprocessing_for
from benchmarks.setting import Setting
from benchmarks.timing import take_turns
from besnn.layers import fold
from besnn.layers.folding.fuse import fuse
from besnn.model import InferenceNetwork
from besnn.model.inference import halve
from besnn.model.replay import CudaGraphs, Outputs, Replayed


@torch.inference_mode()
def compare_layouts(setting: Setting) -> Findings:
    """One batch by every layout, from pixels to distances; on a GPU each is recorded."""
    work, raw = f"distances of {setting.images} images, by layout", images_for(setting, setting.images)
    model = besnn_model(setting)
    network = InferenceNetwork(model, preprocessing_for(setting))

    def layout(channels_last: bool = True, fused: bool = False, half: bool = False) -> Callable[[], Outputs]:
        extractor = fold(copy.deepcopy(model.feature_extractor))
        if channels_last:
            extractor.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs leave it out
        if half:
            extractor.apply(halve)
        assert isinstance(extractor, fx.GraphModule)  # as all networks are that can be traced
        return _run(network, fuse(extractor) if fused else extractor, raw, half)

    if setting.device.type == "cuda":
        runs = {
            "apart, float32": layout(),
            "apart, bfloat16": layout(half=True),
            "apart and fused, float32": layout(fused=True),
            "apart and fused, bfloat16": layout(fused=True, half=True),
        }
    else:
        runs = {
            "apart": layout(channels_last=False),
            "apart, channels last": layout(),
            "apart, channels last, in parts": lambda: network(raw),
        }
    floor = floor_of(lambda: network(raw), model, raw, setting)
    timings = take_turns(runs, setting.device, setting.rounds, setting.warm_up, setting.burst)
    return Findings([Figure(work, "be-snn", name, timing, floor, MEMBERS) for name, timing in timings.items()])


def _run(network: InferenceNetwork, extractor: nn.Module, raw: Tensor, half: bool) -> Callable[[], Outputs]:
    def plain(batch: Tensor) -> Outputs:
        return network.outputs(batch, [extractor], half)

    run = Replayed(plain, CudaGraphs()) if raw.is_cuda else plain
    return lambda: run(raw)
