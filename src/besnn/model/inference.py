"""A trained model as it is run: the fastest network that is equal to it."""

import copy

import torch
from torch import Tensor, nn

from besnn.layers import Tapped, fold, members_of
from besnn.model.preprocessing import Preprocessing
from besnn.model.protocol import OODClassifier


class InferenceNetwork(nn.Module):
    """From raw inputs to evidence and features: those of Φ, or of an inner layer that is named.

    Batch-ensemble layers are folded into plain per-member weights, so the input is never copied for each member.

    Args:
        model: trained; its classes are frozen if they were not.
        preprocessing: from raw inputs to the model's.
        layer: an inner layer of the feature extractor, by name; None for its output.
    """

    def __init__(self, model: OODClassifier, preprocessing: Preprocessing, layer: str | None = None) -> None:
        super().__init__()
        if not model.frozen:
            model.freeze_classes()
        self.model, self.preprocessing, self.layer = model, preprocessing, layer
        self.extractors = nn.ModuleList(_for_inference(extractor, layer) for extractor in model.extractors())
        self.eval()

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Raw inputs `[batch, ...]` → evidence `[members, batch, classes]` and features `[members, batch, d]`."""
        x = self.preprocessing(raw)
        outputs = [extractor(x) for extractor in self.extractors]
        if self.layer is None:
            features = self._by_member(outputs)
            return self.model.evidence(features), features
        rows, inner = zip(*outputs, strict=True)
        return self.model.evidence(self._by_member(rows)), self._by_member(inner).flatten(2)

    def _by_member(self, rows: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        by_member: Tensor = torch.cat(list(rows)).unflatten(0, (self.model.members, -1))
        return by_member


def _for_inference(extractor: nn.Module, layer: str | None) -> nn.Module:
    if members_of(extractor) is not None:
        return fold(extractor, layer)
    plain = copy.deepcopy(extractor).eval()
    return plain if layer is None else Tapped(plain, layer)
