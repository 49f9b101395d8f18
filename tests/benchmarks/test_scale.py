"""The model behind docs/scale.md adds up."""

import json

import pytest

from benchmarks.documents import BENCH, RESULTS
from benchmarks.scale import Stage, hours_of_run, read_costs, scale_page, slowest
from besnn.errors import DataError


def test_outputs_that_differ_make_no_page(tmp_path):
    (tmp_path / BENCH).mkdir()
    for name in ("ray.json", "scale.json", "speed-h200.json"):
        record = json.loads((RESULTS / BENCH / name).read_text(encoding="utf-8"))
        (tmp_path / BENCH / name).write_text(json.dumps(record | {"equal": False}))
    with pytest.raises(DataError, match="the outputs of the two engines differ"):
        scale_page(tmp_path)


def test_lanes_overlap_and_phases_do_not():
    stages = [
        Stage("listing", 1.0, phase=0),
        Stage("GPU", 8.0, shared_by=2),
        Stage("gradients", 1.0, lane="GPU"),
        Stage("decoding", 3.0),
    ]
    assert hours_of_run(stages, 3600) == 1 + (4 + 1)
    assert slowest(stages) == "GPU"


def test_a_run_of_small_batches_agrees_with_a_simulation():
    """Stages with room for one batch between them, batch after batch, against the model's sum and maximum."""
    seconds = [0.3, 1.0, 0.7]
    stages = [Stage(str(number), each) for number, each in enumerate(seconds)]
    batches = 2000
    finished = [0.0] * len(seconds)  # when each stage is free again
    for _ in range(batches):
        arrived = 0.0
        for number, each in enumerate(seconds):
            arrived = finished[number] = max(arrived, finished[number]) + each
    assert finished[-1] / 3600 == pytest.approx(hours_of_run(stages, batches), rel=1e-3)


@pytest.mark.parametrize("kind", ["photo", "small", "array"])
def test_more_gpus_never_take_longer_and_end_at_what_they_share(kind):
    costs = read_costs()
    runs = [hours_of_run(costs.scoring_stages(kind, gpus), 1e9) for gpus in (1, 8, 64, 512, 10**6)]
    assert runs == sorted(runs, reverse=True)
    with_each_gpu = "GPU", "decoding", "reading"
    assert slowest(costs.scoring_stages(kind, 1)) in (*with_each_gpu, "listing")
    assert slowest(costs.scoring_stages(kind, 10**6)) in ("listing", "driver", "storage")
