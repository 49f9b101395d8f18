"""Export a detector as one file that ONNX Runtime or plain PyTorch runs without besnn."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from besnn.detector import Detector
from besnn.errors import InputError
from besnn.export.graph import OUTPUTS, DecisionNetwork
from besnn.storage.files import atomic_path

OPSET = 20
FORMATS = ("onnx", "torch")


def export(detector: Detector, path: Path, form: str = "onnx") -> None:
    """Write one graph from raw inputs to label, probabilities, score, p-value and flag, for batches of any size.

    `form` is `"onnx"` (opset 20, a `.onnx` file) or `"torch"` (a `torch.export` program, `.pt2`).
    """
    if form not in FORMATS:
        raise InputError(f"format {form!r} is unknown: use {' or '.join(FORMATS)}")
    program = export_program(detector)
    with atomic_path(path) as partial, _quiet():
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
