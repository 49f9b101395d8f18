"""Rows on memory: the peak of scoring on a GPU, and the size of a model file."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.findings import CLASSES, Findings, Setting, Target
from benchmarks.scoring import MEMBERS, besnn_model, images_for, preprocessing_for
from benchmarks.timing import synchronise
from besnn.detector import Detector
from besnn.model import InferenceNetwork


def compare_files(setting: Setting) -> Findings:
    """Compare the model file of an ensemble with that of one member."""
    sizes = {members: _file_size(setting, members) for members in (1, MEMBERS)}
    claim = f"bytes with N = {MEMBERS} over N = 1"
    return Findings(targets=[Target("model file", claim, sizes[MEMBERS] / sizes[1], 1.1)])


def _file_size(setting: Setting, members: int) -> int:
    model = besnn_model(setting, members).cpu()
    detector = Detector(model, preprocessing_for(setting).cpu(), [str(label) for label in range(CLASSES)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        detector.save(path)
        return path.stat().st_size


@torch.no_grad()
def peak_of_scoring(setting: Setting) -> Findings:
    """Measure the peak memory of scoring a batch, CUDA graphs included, over its floor.

    The floor is the input and output of the widest layer for all members.
    """
    work = f"memory to score {setting.images} images"
    if setting.device.type != "cuda":
        return Findings(left_out=[f"{work}: only a GPU counts its allocations"])
    return Findings(targets=[_peak_on_gpu(work, setting)])  # pragma: no cover - needs a GPU


def _peak_on_gpu(work: str, setting: Setting) -> Target:  # pragma: no cover - needs a GPU
    raw = images_for(setting, setting.images)
    network = InferenceNetwork(besnn_model(setting), preprocessing_for(setting))
    floor = MEMBERS * widest_layer(network, raw) * setting.products.itemsize / torch.float32.itemsize
    network(raw[:1])  # some memory stays allocated from the first call on
    synchronise(setting.device)
    before = torch.cuda.memory_allocated(setting.device)
    torch.cuda.reset_peak_memory_stats(setting.device)
    for _ in range(4):  # until a CUDA graph is recorded
        network(raw)
    peak = torch.cuda.max_memory_allocated(setting.device) - before
    return Target(work, "peak over the widest layer's input and output, all members", peak / floor, 1.2)


def widest_layer(network: InferenceNetwork, raw: Tensor) -> int:
    """Return the bytes of input and output of the widest layer, in one plain pass in float32."""
    sizes = [0]

    def note(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        tensors = [value for value in (*inputs, output) if isinstance(value, Tensor)]
        sizes.append(sum(tensor.numel() * tensor.element_size() for tensor in tensors))

    leaves = [layer for layer in network.extractors.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(note) for layer in leaves]
    with torch.enable_grad():  # without CUDA graphs, and the batch in one piece
        network(raw)
    for hook in hooks:
        hook.remove()
    return max(sizes)
