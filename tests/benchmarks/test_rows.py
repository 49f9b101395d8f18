"""Every row of the benchmark runs, finds the answers right, and would notice wrong ones."""

import math

import pytest
import torch
from torch import nn

from benchmarks import onnx_runtime, scoring
from benchmarks.findings import full, quick, setting_for
from benchmarks.large import compare_large
from benchmarks.memory import widest_layer
from benchmarks.speed import ROWS, run_rows
from besnn.errors import InputError
from besnn.model import InferenceNetwork

QUICK = quick(torch.device("cpu"))
FIGURES = {  # how many each row times
    "decision": 5,
    "one-decision": 4,
    "folder": 3,
    "scoring": 6,
    "one-image": 3,
    "scoring-samples": 2,
    "scoring-members": 2,
    "scoring-classes": 2,
    "scoring-pixels": 2,
    "export": 2,
    "training": 3,
    "training-samples": 2,
    "large": 5,
    "neighbours": 2,
    "neighbours-rows": 2,
    "tables": 4,
    "memory": 0,
    "files": 0,
}

NO_FLOOR = {"decision": 1, "neighbours": 1, "folder": 3, "large": 5, "tables": 4}  # many steps, numbers of 8 bits, and files
NEEDED = {"export": "onnxruntime", "large": "torchvision"}


@pytest.mark.parametrize("name", ROWS)
def test_row(name):
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    findings = run_rows(QUICK, [name])
    assert len(findings.figures) == FIGURES[name]
    assert all(figure.timing.seconds > 0 for figure in findings.figures)
    assert all(figure.floor is None or figure.floor > 0 for figure in findings.figures)
    assert sum(figure.floor is None for figure in findings.figures) == NO_FLOOR.get(name, 0)
    assert all(check.passed for check in findings.checks)
    assert all(math.isfinite(target.value) for target in findings.targets)
    assert findings.figures or findings.targets or findings.left_out


def test_large_networks_are_compared():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    findings = compare_large(QUICK, "a small one", network, feature_dim=4)
    assert len(findings.figures) == FIGURES["large"]
    assert all(figure.timing.seconds > 0 for figure in findings.figures)
    assert [target.claim for target in findings.targets] == [
        "time over the plain network's",
        "a member's time over the plain network's",
    ]


def test_a_wrong_fast_path_is_noticed(monkeypatch):
    forward = InferenceNetwork.forward
    monkeypatch.setattr(InferenceNetwork, "forward", lambda self, raw: tuple(1.01 * out for out in forward(self, raw)))
    assert not scoring.score_one(QUICK).checks[0].passed


def test_without_onnx_runtime_the_row_says_so(monkeypatch):
    def missing(detector):
        raise ImportError

    monkeypatch.setattr(onnx_runtime, "onnx_session", missing)
    assert "onnx extra" in onnx_runtime.score_exported(QUICK).left_out[0]


def test_scores_of_the_benchmarks_model_differ():
    scores = scoring.AsUsersScore(scoring.besnn_model(QUICK), QUICK)(scoring.images_for(QUICK, 10))
    assert scores.std() > 1e-4


def test_widest_layer():
    network = InferenceNetwork(scoring.besnn_model(QUICK), scoring.preprocessing_for(QUICK))
    first_relu = 2 * 4 * 28 * 28  # 4 channels in and out
    assert widest_layer(network, scoring.images_for(QUICK, 3)) == 3 * first_relu * 4


def test_settings():
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device 'cuda' is not available on this machine: use cpu"):
            setting_for("cuda", trial=False)
        assert setting_for("auto", trial=False) == full(torch.device("cpu"))
    on_gpu = full(torch.device("cuda"))
    assert (on_gpu.stored, on_gpu.queries, on_gpu.images, on_gpu.products) == (60_000, 10_000, 500, torch.bfloat16)
