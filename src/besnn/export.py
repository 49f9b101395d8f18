"""Export a detector as one graph, from raw inputs to decisions, that ONNX Runtime or plain PyTorch runs without besnn."""

import copy
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from besnn.checks import check_fractions
from besnn.detection import ScoreSet
from besnn.detection.conformal import benjamini_hochberg_mask, exceeds, p_value_of_count
from besnn.detection.label_rule import DECISIONS
from besnn.detection.score_set import COMBINED
from besnn.detector import Detector
from besnn.errors import InputError, NotReadyError
from besnn.model.onnx_program import OnnxNetwork
from besnn.storage.files import whole_file

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 20
FORMATS = ("onnx", "torch")
OUTPUTS = ("label", "probabilities", "score", "p_value", "is_ood", "decision", "label_set")


def export(detector: Detector, path: Path, form: str = "onnx", fdr: float | None = None) -> None:
    """Write one graph from raw inputs to label, probabilities, score, p-value and decision, for batches of any size.

    `form` is `"onnx"` (opset 20, a `.onnx` file) or `"torch"` (a `torch.export` program, `.pt2`). With `fdr` the graph flags
    inputs by `benjamini_hochberg` over the batch it gets, instead of each by its own p-value.
    """
    if form not in FORMATS:
        raise InputError(f"format {form!r} is unknown: use {' or '.join(FORMATS)}")
    if form == "onnx":
        _require_onnx()
    network = next(iter(detector.model.extractors()))
    with whole_file(path) as partial, _quiet():
        if isinstance(network, OnnxNetwork):
            if form == "torch":
                raise InputError("the wrapped network is an ONNX graph, which torch cannot run: export the detector as onnx")
            _write_onnx(_joined(detector, network, fdr), detector, partial)
        elif form == "torch":
            description = json.dumps(_description(detector))
            torch.export.save(export_program(detector, fdr), str(partial), extra_files={"besnn.json": description})
        else:
            _write_onnx(_as_onnx(export_program(detector, fdr), ["inputs"], OUTPUTS), detector, partial)


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


def export_program(detector: Detector, fdr: float | None = None) -> torch.export.ExportedProgram:
    """Return the detector as a `torch.export` program with a dynamic batch size."""
    example = torch.zeros(3, *detector.input_shape, dtype=detector.preprocessing.dtype, device=detector.device)
    return _program(DecisionNetwork(detector, fdr).eval(), example)


def _program(network: nn.Module, example: Tensor | tuple[Tensor, ...]) -> torch.export.ExportedProgram:
    """Export a network of one batch, or of a tuple of batches."""
    batch = {0: torch.export.Dim.AUTO}
    shapes = batch if isinstance(example, Tensor) else (batch,) * len(example)
    with torch.no_grad():
        network(example)  # moves the tensors of densities to the device, before they become constants
        return torch.export.export(network, (example,), dynamic_shapes=(shapes,))


def _require_onnx() -> None:
    try:
        import onnx  # noqa: F401  # only to see whether it is there
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError:
        raise InputError("export to ONNX needs the onnx extra: pip install 'besnn[onnx]'") from None


def _as_onnx(
    program: torch.export.ExportedProgram, inputs: Sequence[str], outputs: Sequence[str], opset: int = OPSET
) -> "ModelProto":
    exported = torch.onnx.export(
        program, (), dynamo=True, opset_version=opset, input_names=inputs, output_names=outputs, verbose=False
    )
    assert exported is not None
    return exported.model_proto


def _write_onnx(model: "ModelProto", detector: Detector, path: Path) -> None:
    import onnx

    onnx.helper.set_model_props(model, {key: json.dumps(value) for key, value in _description(detector).items()})
    onnx.checker.check_model(model)
    onnx.save_model(model, str(path))


def _joined(detector: Detector, network: OnnxNetwork, fdr: float | None) -> "ModelProto":
    """Return one graph of the preprocessing, the wrapped graph as it is, and the decision."""
    import onnx

    decision = _DecisionOfRows(detector, fdr).eval()
    inference = decision.network
    layers = [network.tensor(name) for name in inference.layers]
    wrapped = onnx.load_from_string(network.with_outputs(*dict.fromkeys(layers)))
    version = next(each.version for each in wrapped.opset_import if each.domain in ("", "ai.onnx"))
    opset = max(OPSET, version)
    if version < opset:
        wrapped = onnx.version_converter.convert_version(wrapped, opset)
    raw = torch.zeros(3, *detector.input_shape, dtype=detector.preprocessing.dtype, device=detector.device)
    with torch.no_grad():
        x = inference.preprocessing(raw)
        rows = inference.extractors[0](x) if layers else (network(x),)
    names = [f"row {number}" for number in range(len(rows))]
    before = _as_onnx(_program(inference.preprocessing, raw), ["inputs"], ["prepared"], opset)
    after = _as_onnx(_program(decision, rows), names, OUTPUTS, opset)
    before.ir_version = wrapped.ir_version = after.ir_version
    before, wrapped = onnx.compose.add_prefix(before, "before/"), onnx.compose.add_prefix(wrapped, "network/")
    _rename_input(before, "inputs")
    inner = [(f"network/{tensor}", name) for tensor, name in zip([network.output_name, *layers], names, strict=True)]
    both = onnx.compose.merge_models(before, wrapped, [("before/prepared", f"network/{network.input_name}")])
    return onnx.compose.merge_models(both, after, inner)


def _rename_input(model: "ModelProto", name: str) -> None:
    old = model.graph.input[0].name
    for node in model.graph.node:
        node.input[:] = [name if each == old else each for each in node.input]
    model.graph.input[0].name = name


def _description(detector: Detector) -> dict[str, object]:
    """Return what is needed to interpret the outputs of the graph."""
    assert detector.decision is not None
    threshold, labels = detector.decision.threshold, detector.decision.labels
    return {
        "class_names": list(detector.class_names),
        "feature_names": list(detector.feature_names),
        "input_shape": list(detector.input_shape),
        "score": detector.scoring.name,
        "alpha": threshold.alpha,
        "threshold": threshold.threshold,
        "thresholds": detector.decision.limits().tolist(),
        "decisions": list(DECISIONS),
        "label_alpha": labels.alpha,
        "max_error": labels.max_error,
    }


class DecisionNetwork(nn.Module):
    """Raw inputs `[batch, ...]` → a tuple of `OUTPUTS`, with the calibration and densities of a calibrated detector inside."""

    calibration: Tensor
    classes: Tensor
    counts: Tensor
    limits: Tensor

    def __init__(self, detector: Detector, fdr: float | None = None) -> None:
        super().__init__()
        check_fractions(**({} if fdr is None else {"fdr": fdr}))
        if detector.decision is None:
            raise NotReadyError("the detector is not calibrated: calibrate it before exporting it")
        self.network = detector.network(detector.layer_for(detector.scoring.name))
        self.score = _ScoreNetwork(detector.scoring).to(detector.scoring_device)
        device, tensors = detector.scoring_device, detector.decision.state()[0]
        self.per_class, self.fdr = "classes" in tensors, fdr
        self.register_buffer("calibration", tensors["scores"].to(device, torch.float32))
        self.register_buffer("classes", tensors.get("classes", torch.zeros(1)).to(device, torch.int64))
        self.register_buffer("counts", self.classes.bincount())
        self.register_buffer("limits", detector.decision.limits().to(device, torch.float32))
        self.labels = copy.deepcopy(detector.decision.labels).to(device)

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """Decide for a batch."""
        return self.decide(*self.network(inputs))

    def decide(self, evidence: Tensor, features: Tensor) -> tuple[Tensor, ...]:
        """Decide by evidence and features."""
        log_probabilities = self.network.model.log_probabilities(evidence)
        label, score = log_probabilities.argmax(dim=1), self.score(evidence, features)
        p_value = self.p_value(score, label)
        is_ood = exceeds(score, self.limits[label])
        probabilities, label_set, decision = self.labels(log_probabilities, is_ood)
        if self.fdr is not None:  # as Predictions.control_fdr does
            flagged = benjamini_hochberg_mask(p_value, self.fdr)
            cleared = is_ood & ~flagged
            decision = torch.where(flagged, 2, torch.where(cleared, 1, decision))
            alone = F.one_hot(label, label_set.shape[1]).bool() & cleared[:, None]
            is_ood, label_set = flagged, (label_set | alone) & ~flagged[:, None]
        return label, probabilities, score, p_value, is_ood, decision, label_set

    def p_value(self, score: Tensor, label: Tensor) -> Tensor:
        """Compute p-values `[batch]`, among all calibration scores or those of inputs that were predicted as the same class."""
        above = self.calibration >= score[:, None]  # ONNX has no binary search
        if not self.per_class:
            return p_value_of_count(above.sum(dim=1), len(self.calibration), score.dtype)
        at_least = (above & (self.classes == label[:, None])).sum(dim=1)
        return (1 + at_least).to(score.dtype) / (1 + self.counts[label]).to(score.dtype)


class _DecisionOfRows(DecisionNetwork):
    """What follows the wrapped network: takes a tuple of its logits and the outputs of its layers."""

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # type: ignore[override]  # of rows, not of raw inputs
        return self.decide(*self.network.gathered([inputs if self.network.layers else inputs[0]]))


class _ScoreNetwork(nn.Module):
    """The score that decides, as a network of evidence and features."""

    def __init__(self, scores: ScoreSet) -> None:
        super().__init__()
        self.scores = scores
        tails = scores.combined.tails if scores.name == COMBINED and scores.combined is not None else {}
        self.tail_names, self.tails = list(tails), nn.ModuleList(tail.network() for tail in tails.values())

    def forward(self, evidence: Tensor, features: Tensor) -> Tensor:
        if not self.tail_names:
            return self.part(self.scores.name, evidence, features)
        tails = zip(self.tail_names, self.tails, strict=True)
        return torch.stack([tail(self.part(name, evidence, features)) for name, tail in tails]).sum(dim=0)

    def part(self, name: str, evidence: Tensor, features: Tensor) -> Tensor:
        return self.scores.score(evidence, features, name).to(torch.float32)
