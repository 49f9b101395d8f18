"""The service around wrapped networks, as programs and as ONNX graphs: it answers as they do, and its drift alarm works."""

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from besnn import Detector, wrap
from besnn.data import Dataset, made_up_outliers
from besnn.model.onnx_program import load_onnx
from besnn.model.program import load_program, save_program


@pytest.fixture(scope="module")
def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()


def program_of(network: nn.Module) -> tuple[nn.Module, tuple[int, ...], bytes]:
    return load_program(save_program(network, torch.rand(3, 1, 8, 8)))


def graph_of(network: nn.Module) -> tuple[nn.Module, tuple[int, ...], bytes]:
    for library in ("onnxscript", "onnxruntime"):
        pytest.importorskip(library, reason="needs the onnx extra")
    file, batch = io.BytesIO(), torch.export.Dim("batch")
    torch.onnx.export(network, (torch.rand(3, 1, 8, 8),), file, dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    return load_onnx(file.getvalue())


@pytest.mark.filterwarnings("ignore")  # of torch's exporter about itself
@pytest.mark.parametrize("form", [program_of, graph_of])
def test_many_clients_and_a_drift(form, network, digit_data: Dataset, start):
    loaded, _, content = form(network)
    some, others = digit_data.split(0.7)
    detector = Detector.from_bytes(wrap(loaded, some, score="combined", program=content).to_bytes())
    known = others.inputs[:160]
    strange = made_up_outliers(known[:100], kinds=["uniform-noise"])["uniform-noise"]
    with start(detector) as client, ThreadPoolExecutor(8) as pool:

        def ask(rows: np.ndarray) -> list[float]:
            answer = client.post("/v1/predict", json={"inputs": rows.tolist()}).raise_for_status()
            return [row["p_value"] for row in answer.json()["predictions"]]

        found = np.concatenate(list(pool.map(ask, np.array_split(known, 32))))
        np.testing.assert_allclose(found, detector.predict(known).p_value)
        assert not client.get("/v1/drift").json()["alarm"]
        ask(strange)
        report = client.get("/v1/drift").json()
    assert (report["steps"], report["alarm"]) == (260, True)
