"""A detector as one network: from raw inputs to decisions, in operations that export.

The library's own densities and p-values search, re-rank and look at their data as they go; here each is one fixed formula.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from besnn.detection.block import BlockDensity
from besnn.detection.combined import CombinedScore
from besnn.detection.compact import decode_rows
from besnn.detection.density import Density
from besnn.detection.gaussians import ClassGaussianDensity
from besnn.detection.neighbours import NearestNeighbourDensity
from besnn.detection.scoring import COMBINED, Scoring
from besnn.detection.tail import EmpiricalTail
from besnn.detector import Detector
from besnn.errors import InputError, NotReadyError

SPARE = 8  # neighbours on either side of the k-th that are measured


class Decisions(NamedTuple):
    """What the network gives for a batch: class index, probabilities, score, p-value, flag."""

    label: Tensor
    probabilities: Tensor
    score: Tensor
    p_value: Tensor
    is_ood: Tensor


class DecisionNetwork(nn.Module):
    """Raw inputs `[batch, ...]` → `Decisions`, with calibration and densities inside.

    Args:
        detector: calibrated.
    """

    calibration: Tensor

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        if detector.threshold is None:
            raise NotReadyError("the detector is not calibrated: calibrate it before it is exported")
        self.network = detector.network(detector.layer_for(detector.scoring.name))
        self.score = _ScoreNetwork(detector.scoring)
        self.register_buffer("calibration", detector.threshold.scores.to(torch.float32))
        self.most_above = len(detector.threshold.scores) - detector.threshold.rank

    def forward(self, inputs: Tensor) -> Decisions:
        """Decides for a batch."""
        evidence, features = self.network(inputs)
        probabilities = self.network.model.log_probabilities(evidence).exp()
        score = self.score(evidence, features)
        at_least = (self.calibration >= score[:, None]).sum(dim=1)
        p_value = (at_least + 1).to(score.dtype) / (len(self.calibration) + 1)
        return Decisions(probabilities.argmax(dim=1), probabilities, score, p_value, at_least <= self.most_above)


class _ScoreNetwork(nn.Module):
    """The score that decides, as a network of evidence and features."""

    def __init__(self, scoring: Scoring) -> None:
        super().__init__()
        self.scoring, self.name = scoring, scoring.name
        self.density_names = list(scoring.densities)  # they hold dots, which a ModuleDict refuses
        self.densities = nn.ModuleList(map(_density_network, scoring.densities.values()))
        tails = _tails(scoring.combined) if scoring.name == COMBINED and scoring.combined is not None else {}
        self.tail_names, self.tails = list(tails), nn.ModuleList(map(_TailNetwork, tails.values()))

    def forward(self, evidence: Tensor, features: Tensor) -> Tensor:
        if not self.tail_names:
            return self.part(self.name, evidence, features)
        tails = zip(self.tail_names, self.tails, strict=True)
        return torch.stack([tail(self.part(name, evidence, features)) for name, tail in tails]).sum(dim=0)

    def part(self, name: str, evidence: Tensor, features: Tensor) -> Tensor:
        score: Tensor = (
            self.densities[self.density_names.index(name)](features)
            if name in self.density_names
            else self.scoring.evidence_scores[name](evidence)
        )
        return score.to(torch.float32)


def _tails(combined: CombinedScore) -> dict[str, EmpiricalTail]:
    return {name: EmpiricalTail(reference) for name, reference in combined.state().items()}


def _density_network(density: Density) -> nn.Module:
    if isinstance(density, BlockDensity):
        return _Block(density)
    if isinstance(density, NearestNeighbourDensity):
        return _NearestNeighbours(density)
    if isinstance(density, ClassGaussianDensity):
        return _ClassGaussians(density)
    raise InputError(f"a density of type {type(density).__name__} has no exportable form: decide by another score")


class _Block(nn.Module):
    def __init__(self, block: BlockDensity) -> None:
        super().__init__()
        self.of, self.density = block.of, _density_network(block.density)

    def forward(self, features: Tensor) -> Tensor:
        score: Tensor = self.density(self.of(features))
        return score


class _NearestNeighbours(nn.Module):
    """Ranks by a product, which cancels near zero, and measures the few around the k-th."""

    rows: Tensor
    half_squares: Tensor
    first: Tensor

    def __init__(self, density: NearestNeighbourDensity) -> None:
        super().__init__()
        state = density.state()
        rows = decode_rows(state["codes"], state["scale"])
        members, stored, dimension = rows.shape
        self.cosine = density.metric == "cosine"
        self.below, self.count = min(SPARE, density.k - 1), min(density.k + SPARE, stored)
        self.nearer = density.k - 1 - self.below  # so many are taken to be nearer than the k-th
        rows = F.normalize(rows, dim=-1) if self.cosine else rows
        self.register_buffer("rows", rows.reshape(-1, dimension))
        self.register_buffer("half_squares", rows.square().sum(dim=-1)[:, None] / 2)
        self.register_buffer("first", torch.arange(0, members * stored, stored)[:, None, None])

    def forward(self, features: Tensor) -> Tensor:
        features = F.normalize(features.float(), dim=-1) if self.cosine else features.float()
        rows = self.rows.unflatten(0, (len(self.first), -1))
        closeness = features @ rows.transpose(1, 2) - self.half_squares  # [members, batch, stored]
        places = closeness.topk(self.count, dim=-1).indices[..., self.nearer :] + self.first
        squared = (features[:, :, None] - self.rows[places]).square().sum(dim=-1)
        kth = squared.topk(self.below + 1, dim=-1, largest=False).values[..., -1]
        return (kth / 2 if self.cosine else kth.sqrt()).mean(dim=0)


class _ClassGaussians(nn.Module):
    means: Tensor
    whitening: Tensor
    constants: Tensor

    def __init__(self, density: ClassGaussianDensity) -> None:
        super().__init__()
        means, factors = density.fitted()
        classes, dimension = means.shape[1:]
        whitening = torch.linalg.inv(factors)  # L⁻¹, [members, 1 or classes, d, d]
        constants = dimension * torch.log(torch.tensor(2 * torch.pi)) / 2 + factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        self.register_buffer("means", means)
        self.register_buffer("whitening", whitening.expand(-1, classes, -1, -1).contiguous())
        self.register_buffer("constants", constants.expand(-1, classes).contiguous())

    def forward(self, features: Tensor) -> Tensor:
        centred = features.double()[:, None] - self.means[:, :, None]  # [members, classes, batch, d]
        squared = (centred @ self.whitening.transpose(2, 3)).square().sum(dim=-1)
        densities = -squared / 2 - self.constants[:, :, None]
        return -densities.amax(dim=1).mean(dim=0)


class _TailNetwork(nn.Module):
    knots: Tensor
    surprises: Tensor
    scale: Tensor

    def __init__(self, tail: EmpiricalTail) -> None:
        super().__init__()
        self.register_buffer("knots", tail.knots.float())
        self.register_buffer("surprises", tail.surprises.float())
        self.register_buffer("scale", tail.scale.float())

    def forward(self, scores: Tensor) -> Tensor:
        upper = (self.knots < scores[:, None]).sum(dim=1).clamp(1, len(self.knots) - 1)
        low, high = self.knots[upper - 1], self.knots[upper]
        share = ((scores - low) / (high - low)).clamp(0, 1)
        inside = self.surprises[upper - 1] + share * (self.surprises[upper] - self.surprises[upper - 1])
        return inside + (scores - self.knots[-1]).clamp_min(0) / self.scale
