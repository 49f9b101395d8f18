"""A detector as one network: from raw inputs to decisions, in operations that export.

Where a score searches or depends on values in Python, it provides a fixed formula for the export.
"""

import torch
from torch import Tensor, nn

from besnn.detection import ScoreSet
from besnn.detection.conformal import exceeds, p_value_of_count
from besnn.detection.score_set import COMBINED
from besnn.detector import Detector
from besnn.errors import NotReadyError

OUTPUTS = ("label", "probabilities", "score", "p_value", "is_ood")


class DecisionNetwork(nn.Module):
    """Raw inputs `[batch, ...]` → a tuple of `OUTPUTS`, with the calibration and densities of a calibrated detector inside."""

    calibration: Tensor
    threshold: Tensor

    def __init__(self, detector: Detector) -> None:
        super().__init__()
        if detector.threshold is None:
            raise NotReadyError("the detector is not calibrated: calibrate it before exporting it")
        self.network = detector.network(detector.layer_for(detector.scoring.name))
        self.score = _ScoreNetwork(detector.scoring).to(detector.scoring_device)
        self.register_buffer("calibration", detector.threshold.scores.to(detector.scoring_device, torch.float32))
        self.register_buffer("threshold", self.calibration[detector.threshold.rank - 1].clone())

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Decide for a batch."""
        evidence, features = self.network(inputs)
        probabilities = self.network.model.log_probabilities(evidence).exp()
        score = self.score(evidence, features)
        at_least = (self.calibration >= score[:, None]).sum(dim=1)  # ONNX has no binary search
        p_value = p_value_of_count(at_least, len(self.calibration), score.dtype)
        return probabilities.argmax(dim=1), probabilities, score, p_value, exceeds(score, self.threshold)


class _ScoreNetwork(nn.Module):
    """The score that decides, as a network of evidence and features."""

    def __init__(self, scores: ScoreSet) -> None:
        super().__init__()
        self.name, self.evidence_scores = scores.name, scores.evidence_scores
        self.density_names = list(scores.densities)  # they contain dots, which a ModuleDict refuses
        self.densities = nn.ModuleList(density.network() for density in scores.densities.values())
        tails = scores.combined.tails if scores.name == COMBINED and scores.combined is not None else {}
        self.tail_names, self.tails = list(tails), nn.ModuleList(tail.network() for tail in tails.values())

    def forward(self, evidence: Tensor, features: Tensor) -> Tensor:
        if not self.tail_names:
            return self.part(self.name, evidence, features)
        tails = zip(self.tail_names, self.tails, strict=True)
        return torch.stack([tail(self.part(name, evidence, features)) for name, tail in tails]).sum(dim=0)

    def part(self, name: str, evidence: Tensor, features: Tensor) -> Tensor:
        score: Tensor = (
            self.densities[self.density_names.index(name)](features)
            if name in self.density_names
            else self.evidence_scores[name](evidence)
        )
        return score.to(torch.float32)
