"""`besnn wrap`, and the commands that follow it."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from torch import nn

from besnn import Detector
from besnn.cli.app import run
from besnn.model.program import save_program


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """A network that tells stripes by their direction, in a file."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    path = tmp_path_factory.mktemp("network") / "stripes.pt2"
    path.write_bytes(save_program(network, torch.rand(3, 1, 8, 8)))
    return path


def said(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


def test_from_a_program_to_scores(program, stripe_folder, tmp_path, capsys):
    model = tmp_path / "d.safetensors"
    assert run(["wrap", str(program), str(stripe_folder), "-o", str(model), "--alpha", "0.2", "--json"]) == 0
    facts = said(capsys)
    assert facts["method"] == "wrapped"
    assert facts["class_names"] == ["flat", "upright"]
    assert facts["score"] in facts["scores"]
    assert run(["evaluate", str(model), "--in", str(stripe_folder), "--out", "digits", "--json", "-"]) == 0
    record = said(capsys)
    assert record["recipe"] is None
    assert record["scores"][facts["score"]]["digits"]["auroc"] > 0.5
    assert run(["score", str(model), str(stripe_folder), "-o", str(tmp_path / "s.csv"), "--quiet"]) == 0
    assert run(["monitor", str(tmp_path / "s.csv"), "--model", str(model), "--json", "-"]) == 0
    assert said(capsys)["alarm"] is False
    assert run(["calibrate", str(model), str(stripe_folder), "--alpha", "0.3", "--quiet"]) == 0
    assert Detector.load(model).threshold.alpha == 0.3
    capsys.readouterr()
    assert run(["inspect", str(model)]) == 0
    assert "none: stripes.pt2" in capsys.readouterr().out
    assert run(["export", str(model), "--format", "torch", "--quiet"]) == 0


def test_the_networks_own_order_of_classes(program, stripe_folder, tmp_path, capsys):
    model = str(tmp_path / "d.safetensors")
    command = ["wrap", str(program), str(stripe_folder), "-o", model, "--alpha", "0.3", "--score", "energy"]
    assert run([*command, "--classes", "upright,flat", "--quiet"]) == 0
    assert Detector.load(model).class_names == ("upright", "flat")


def test_photographs_keep_their_shape(program, stripe_folder, tmp_path, capsys):
    model, photos = str(tmp_path / "d.safetensors"), tmp_path / "photos"
    command = ["wrap", str(program), str(stripe_folder), "-o", model, "--alpha", "0.2", "--score", "energy", "--quiet"]
    assert run([*command, "--resize", "9"]) == 0
    photos.mkdir()
    wide = np.random.default_rng(0).integers(0, 256, (9, 20), dtype=np.uint8)
    Image.fromarray(wide).save(photos / "wide.png")
    assert run(["score", model, str(photos), "-o", str(tmp_path / "s.parquet"), "--quiet"]) == 0
    middle = wide[None, None, 0:8, 6:14]  # halves are rounded to even, as torchvision does
    found = pa.parquet.read_table(tmp_path / "s.parquet")["score"].to_pylist()
    np.testing.assert_allclose(found, Detector.load(model).score(middle), rtol=1e-5)
    assert run([*command, "--resize", "4"]) == 2
    assert "images whose shorter side is 4 do not hold" in capsys.readouterr().err


@pytest.mark.parametrize("logits", [False, True])
def test_from_embeddings(logits, tmp_path, capsys):
    rng = np.random.default_rng(0)
    species = np.arange(300) % 3
    vectors = rng.normal(size=(300, 6)) + 4 * rng.normal(size=(3, 6))[species]
    columns = {"embedding": list(vectors), "species": [("cat", "dog", "owl")[each] for each in species]}
    if logits:
        columns["logits"] = list(5.0 * np.eye(3)[species])
    pa.parquet.write_table(pa.table(columns), tmp_path / "e.parquet")
    columns["embedding"] = list(vectors[::-1] + 30)
    pa.parquet.write_table(pa.table(columns), tmp_path / "far.parquet")
    table, far, model = (str(tmp_path / name) for name in ("e.parquet", "far.parquet", "d.safetensors"))
    assert run(["wrap", table, "--label", "species", "-o", model, "--score", "mahalanobis", "--quiet"]) == 0
    assert run(["evaluate", model, "--in", table, "--out", far, "--json", "-"]) == 0
    record = said(capsys)
    assert record["accuracy"] > 0.95
    assert record["scores"]["mahalanobis"][far]["auroc"] > 0.99


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{pickle}", "digits"], "may be a pickle, which could execute anything: save it with torch.export.save"),
        (["missing.pt2", "digits"], "missing.pt2 does not exist"),
        (["{program}"], "there is no data for"),
        (["{program}", "digits:train"], "label 9 does not fit a network with 2 logits"),
        (["{program}", "digits", "--mean", "x"], "--mean 'x': give one number, or one per channel"),
        (["{program}", "digits", "--score", "odin"], "score 'odin' is unknown"),
        (["{table}"], "name it with --label"),
        (["{table}", "digits", "--label", "kind"], "digits is not needed"),
    ],
)
def test_wrong_use_gets_one_line(arguments, message, program, tmp_path, capsys):
    torch.save({"weight": torch.zeros(1)}, tmp_path / "network.pt")
    pa.parquet.write_table(pa.table({"x": [1.0, 2.0], "kind": ["a", "b"]}), tmp_path / "t.parquet")
    files = {"program": program, "pickle": tmp_path / "network.pt", "table": tmp_path / "t.parquet"}
    words = [word.format(**files) for word in arguments]
    assert run(["wrap", *words, "-o", str(tmp_path / "d.safetensors")]) in (1, 2)
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1
