"""The model behind docs/scale.md adds up."""

import pytest

from benchmarks.scale import Costs, Stage, hours_of_run, ray_table, slowest
from besnn.errors import DataError


def test_outputs_that_differ_make_no_table():
    with pytest.raises(DataError, match="the outputs of the two engines differ"):
        ray_table({"equal": False})


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
    costs = Costs.read()
    runs = [hours_of_run(costs.scoring_stages(kind, gpus), 1e9) for gpus in (1, 8, 64, 512, 10**6)]
    assert runs == sorted(runs, reverse=True)
    assert slowest(costs.scoring_stages(kind, 1)) in ("GPU", "reading", "listing")
    assert slowest(costs.scoring_stages(kind, 10**6)) in ("listing", "driver", "storage")
