"""docs/scale.md is what its script makes of the records, and the model behind it adds up."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def scale_model(monkeypatch):
    return importlib.import_module("benchmarks.scale_model")


@pytest.fixture
def scale_page(scale_model):
    return importlib.import_module("benchmarks.scale_page")


def test_the_page_shows_what_the_records_say(scale_page):
    assert scale_page.PAGE.read_text(encoding="utf-8") == scale_page.page()


def test_outputs_that_differ_make_no_page(scale_page, tmp_path):
    record = json.loads(scale_page.SCORING.read_text(encoding="utf-8"))
    (tmp_path / "scoring.json").write_text(json.dumps(record | {"equal": False}))
    with pytest.raises(SystemExit, match="differ"):
        scale_page.page(scoring=tmp_path / "scoring.json")


def test_lanes_overlap_and_phases_do_not(scale_model):
    stages = [
        scale_model.Stage("listing", 1.0, phase=0),
        scale_model.Stage("GPU", 8.0, shared_by=2),
        scale_model.Stage("gradients", 1.0, lane="GPU"),
        scale_model.Stage("decoding", 3.0),
    ]
    assert scale_model.hours_of_run(stages, 3600) == 1 + (4 + 1)
    assert scale_model.slowest(stages) == "GPU"


def test_a_run_of_small_batches_agrees_with_a_simulation(scale_model):
    """Stages with room for one batch between them, batch after batch, against the model's sum and maximum."""
    seconds = [0.3, 1.0, 0.7]
    stages = [scale_model.Stage(str(number), each) for number, each in enumerate(seconds)]
    batches = 2000
    finished = [0.0] * len(seconds)  # when each stage is free again
    for _ in range(batches):
        arrived = 0.0
        for number, each in enumerate(seconds):
            arrived = finished[number] = max(arrived, finished[number]) + each
    assert finished[-1] / 3600 == pytest.approx(scale_model.hours_of_run(stages, batches), rel=1e-3)


@pytest.mark.parametrize("kind", ["photo", "small", "array"])
def test_more_gpus_never_take_longer_and_end_at_what_they_share(kind, scale_model, scale_page):
    costs = scale_model.Costs(**json.loads(scale_page.COSTS.read_text(encoding="utf-8")))
    runs = [scale_model.hours_of_run(costs.scoring_stages(kind, gpus), 1e9) for gpus in (1, 8, 64, 512, 10**6)]
    assert runs == sorted(runs, reverse=True)
    with_each_gpu = "GPU", "decoding", "reading"
    assert scale_model.slowest(costs.scoring_stages(kind, 1)) in (*with_each_gpu, "listing")
    assert scale_model.slowest(costs.scoring_stages(kind, 10**6)) in ("listing", "driver", "storage")
