"""The exported model, by ONNX Runtime on a CPU."""

import importlib
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.results import Check, Figure, Findings
from benchmarks.scoring import MEMBERS, besnn_model, floor_of, images_for, preprocessing_for
from benchmarks.setting import CLASSES, Setting
from benchmarks.timing import take_turns
from besnn.detector import Detector
from besnn.export.write import export


def score_exported(setting: Setting) -> Findings:
    """A batch of images by the ONNX model, decisions included, beside the detector it was exported from."""
    work = f"decide about {setting.images} images, exported"
    if setting.device.type != "cpu":
        return Findings(left_out=[f"{work}: measured on a CPU"])
    try:
        onnxruntime: Any = importlib.import_module("onnxruntime")  # it has no types
    except ImportError:
        return Findings(left_out=[f"{work}: needs the onnx extra, pip install 'besnn[onnx]'"])
    detector = Detector(besnn_model(setting), preprocessing_for(setting), [str(label) for label in range(CLASSES)])
    detector.calibrate(images_for(setting, 50))
    raw = images_for(setting, setting.images)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(detector, path)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = {"inputs": raw.numpy()}
    runs = {"ONNX Runtime": lambda: session.run(None, inputs), "besnn": lambda: detector.predict(raw)}
    floor = floor_of(runs["besnn"], detector.model, raw, setting)
    timings = take_turns(runs, setting.device, setting.rounds, setting.warm_up)
    figures = [Figure(work, "be-snn", name, timing, floor, MEMBERS) for name, timing in timings.items()]
    (scores,) = session.run(["score"], inputs)
    error = float(abs(scores - detector.predict(raw).score).max())
    return Findings(figures, checks=[Check(work, "the detector's scores", error, 1e-4)])
