"""A trained network of any kind as a classifier that a detector can hold; the network itself stays as it is."""

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from besnn.errors import InputError
from besnn.model.onnx_program import OnnxNetwork, load_onnx
from besnn.model.program import load_program
from besnn.model.protocol import EvidenceKind, OODClassifier

PROGRAM, ONNX = "network/program", "network/onnx"


class WrappedNetwork(OODClassifier):
    """A network that returns logits `[batch, classes]`: its evidence is what it returns, to the last bit.

    Φ(x) are the logits themselves; densities look at the network's inner layers by name.

    Args:
        network: in evaluation mode.
        num_classes: C.
        program: the file of a `torch.export` program or an ONNX graph that the network was read from, to be kept in the model
            file.

    >>> network = WrappedNetwork(nn.Linear(2, 3).eval(), num_classes=3)
    >>> list(network(torch.rand(5, 2)).shape)
    [1, 5, 3]
    """

    method: ClassVar[str] = "wrapped"
    default_score: ClassVar[str] = "predictive-entropy"
    evidence_kind: ClassVar[EvidenceKind] = "logits"
    exact: ClassVar[bool] = True

    def __init__(self, network: nn.Module, num_classes: int, program: bytes | None = None) -> None:
        super().__init__()
        self.feature_extractor, self.num_classes, self.members, self.program = network, num_classes, 1, program

    def features(self, x: Tensor) -> Tensor:
        """Return the logits, `[1, batch, classes]`."""
        logits: Tensor = self.feature_extractor(x)
        return logits[None]

    def evidence(self, features: Tensor) -> Tensor:
        """Return the logits."""
        return features

    def file_parts(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the program, if there is one, and what identifies the network."""
        network = self.feature_extractor
        adapter = {"pad": network.pad} if isinstance(network, LogitsOf) else None
        if self.program is None:
            return {}, {"adapter": adapter, "fingerprint": fingerprint(network)}
        key = ONNX if isinstance(network, OnnxNetwork) else PROGRAM
        return {key: torch.frombuffer(bytearray(self.program), dtype=torch.uint8)}, {"adapter": adapter, "fingerprint": None}

    @classmethod
    def from_file_parts(
        cls, tensors: Mapping[str, Tensor], description: Mapping[str, Any], num_classes: int, network: nn.Module | None
    ) -> Self:
        """Restore the network from the file, or take the given one if it is the network that was wrapped."""
        for key, load in ((PROGRAM, load_program), (ONNX, load_onnx)):
            if key in tensors:
                loaded, _, content = load(tensors[key].numpy().tobytes(), "the network in the model file")
                return cls(loaded, num_classes, content)
        if network is None:
            raise InputError("the model file holds no network: pass the one that was wrapped, Detector.load(path, network)")
        if description["adapter"] is not None:
            network = LogitsOf(network, description["adapter"]["pad"])
        if fingerprint(network) != description["fingerprint"]:
            raise InputError("the network has other weights than the one that was wrapped: pass that one, or wrap this one")
        return cls(network.eval(), num_classes)


class LogitsOf(nn.Module):
    """A network of the transformers library: takes tokens or images, returns the logits in its output.

    With `pad`, tokens of that number are masked out of the attention.
    """

    def __init__(self, network: nn.Module, pad: int | None = None) -> None:
        super().__init__()
        self.network, self.pad = network, pad

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `[batch, classes]`."""
        output = self.network(x) if self.pad is None else self.network(x, attention_mask=(x != self.pad).long())
        logits: Tensor = output.logits
        return logits


def fingerprint(network: nn.Module) -> str:
    """Compute SHA-256 over the names, types, shapes and bytes of a network's parameters and buffers."""
    sha = hashlib.sha256()
    for name, value in network.state_dict().items():
        sha.update(f"{name}|{value.dtype}|{list(value.shape)}|".encode())
        sha.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()
