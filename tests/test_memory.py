"""The cost of members: a file hardly larger than with one, and little more memory for scoring than their activations."""

import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from besnn.detector import Detector
from besnn.model import InferenceNetwork, OODClassifier, Preprocessing, cifar_resnet18, fashion_convnet
from besnn.recipe.build import build_method
from besnn.training import load_recipe

RECIPES = {"fashion-mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
PLAIN = {"fashion-mnist": fashion_convnet, "cifar10": cifar_resnet18}
MEMBERS, BATCH = 4, 8
IN_PLACE = (nn.ReLU, nn.BatchNorm2d, nn.Identity)  # can overwrite their input


def untrained(recipe: str, members: int) -> tuple[OODClassifier, Preprocessing]:
    shape = RECIPES[recipe]
    model, _ = build_method(load_recipe(recipe, [f"method.members={members}"]), shape, 10)
    model.freeze_classes(samples=2)
    return model.eval(), Preprocessing(shape, torch.zeros(shape[0]), torch.ones(shape[0]))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_file_with_four_members_is_hardly_larger_than_with_one(recipe: str, tmp_path: Path) -> None:
    sizes = []
    for members in (1, MEMBERS):
        model, preprocessing = untrained(recipe, members)
        Detector(model, preprocessing, [str(c) for c in range(10)]).save(tmp_path / "model.safetensors")
        sizes.append((tmp_path / "model.safetensors").stat().st_size)
    assert sizes[0] < sizes[1] <= 1.1 * sizes[0]


class PeakMemory(TorchDispatchMode):
    """Records the peak size in bytes of all tensors created in the block."""

    def __init__(self, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self.known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.known:
                storage = tensor.untyped_storage()
                self.known.add(storage._cdata)
                self.live += storage.nbytes()
                weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return result

    def _forget(self, address: int, size: int) -> None:
        self.known.discard(address)
        self.live -= size


def activations_floor(network: nn.Module, x: torch.Tensor) -> int:
    """Return the bytes of input and output of a network's largest layer, if elementwise layers work in place."""
    largest = 0

    def look(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal largest
        if not list(layer.children()):
            largest = max(largest, output.nbytes + (0 if isinstance(layer, IN_PLACE) else inputs[0].nbytes))

    handles = [layer.register_forward_hook(look) for layer in network.modules()]
    with torch.no_grad():
        network(x)
    for handle in handles:
        handle.remove()
    return largest


@pytest.mark.parametrize("recipe", RECIPES)
def test_scoring_needs_little_more_memory_than_the_activations(recipe: str) -> None:
    model, preprocessing = untrained(recipe, MEMBERS)
    network = InferenceNetwork(model, preprocessing)
    raw = torch.zeros(BATCH, *RECIPES[recipe], dtype=torch.uint8)
    floor = MEMBERS * activations_floor(PLAIN[recipe]().eval(), preprocessing(raw))
    with torch.no_grad(), PeakMemory([*network.parameters(), *network.buffers(), raw]) as memory:
        network(raw)
    assert 0.2 * floor < memory.peak <= 1.2 * floor
