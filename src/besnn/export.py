"""Export a detector as one graph, from raw inputs to decisions, that ONNX Runtime or plain PyTorch runs without besnn.

Where a score searches or depends on values in Python, it provides a fixed formula for the export.
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from besnn.detection import ScoreSet
from besnn.detection.conformal import exceeds, p_value_of_count
from besnn.detection.score_set import COMBINED
from besnn.detector import Detector
from besnn.errors import InputError, NotReadyError
from besnn.storage.files import whole_file

OPSET = 20
FORMATS = ("onnx", "torch")
OUTPUTS = ("label", "probabilities", "score", "p_value", "is_ood")


def export(detector: Detector, path: Path, form: str = "onnx") -> None:
    """Write one graph from raw inputs to label, probabilities, score, p-value and flag, for batches of any size.

    `form` is `"onnx"` (opset 20, a `.onnx` file) or `"torch"` (a `torch.export` program, `.pt2`).
    """
    if form not in FORMATS:
        raise InputError(f"format {form!r} is unknown: use {' or '.join(FORMATS)}")
    program = export_program(detector)
    with whole_file(path) as partial, _quiet():
        if form == "torch":
            torch.export.save(program, str(partial), extra_files={"besnn.json": json.dumps(_description(detector))})
        else:
            _write_onnx(program, detector, partial)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what torch's exporters report about their own internals."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def export_program(detector: Detector) -> torch.export.ExportedProgram:
    """Return the detector as a `torch.export` program with a dynamic batch size."""
    network = DecisionNetwork(detector).eval()
    example = torch.zeros(3, *detector.input_shape, dtype=detector.preprocessing.dtype, device=detector.device)
    with torch.no_grad():
        return torch.export.export(network, (example,), dynamic_shapes={"inputs": {0: torch.export.Dim.AUTO}})


def _write_onnx(program: torch.export.ExportedProgram, detector: Detector, path: Path) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError:
        raise InputError("export to ONNX needs the onnx extra: pip install 'besnn[onnx]'") from None
    exported = torch.onnx.export(
        program, (), dynamo=True, opset_version=OPSET, input_names=["inputs"], output_names=OUTPUTS, verbose=False
    )
    assert exported is not None
    model = exported.model_proto
    onnx.helper.set_model_props(model, {key: json.dumps(value) for key, value in _description(detector).items()})
    onnx.checker.check_model(model)
    onnx.save_model(model, str(path))


def _description(detector: Detector) -> dict[str, object]:
    """Return what is needed to interpret the outputs of the graph."""
    assert detector.threshold is not None
    return {
        "class_names": list(detector.class_names),
        "feature_names": list(detector.feature_names),
        "input_shape": list(detector.input_shape),
        "score": detector.scoring.name,
        "alpha": detector.threshold.alpha,
        "threshold": detector.threshold.threshold,
    }


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
