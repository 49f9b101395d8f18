"""A wrapped network's record."""

from besnn.wrapping import score_names
from besnn.wrapping.scores import MEMORY
from experiments.runner import execute
from experiments.runs import Workspace
from experiments.suites import table1_runs
from experiments.wrapped import measure_wrapped, wrapped_runs


def test_every_score_is_measured_on_every_set(workspace: Workspace, small: dict[str, tuple[str, ...]]) -> None:
    (run,) = wrapped_runs("fashion-mnist", [0], (*small["fashion-mnist"], "data.validation=0.5"))
    fields = execute(run, measure_wrapped, workspace)
    assert {*score_names()} - {"combined"} <= fields["scores"].keys()
    assert fields["default_score"] in fields["scores"]
    assert all(row.keys() == {*run.unknown} for row in fields["scores"].values())
    assert {"nearest-neighbour of pytorch-ood", "nearest-neighbour of pytorch-ood at the last stage"} <= fields["scores"].keys()
    assert {"seconds", "images", "pass_seconds", "bare_seconds_500", "scoring_seconds_500"} <= fields["wrapping"].keys()
    assert 0 < fields["wrapping"]["density_bytes"] <= MEMORY


def test_table_1s_record_is_not_taken_for_it() -> None:
    (run,) = wrapped_runs("fashion-mnist", [0])
    (first,) = table1_runs("fashion-mnist", [0], methods=["softmax"])
    assert run.recipe != first.recipe
    assert run.recipe == first.recipe.model_copy(update={"score": run.recipe.score})
