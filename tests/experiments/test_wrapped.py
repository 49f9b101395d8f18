"""A wrapped network's record."""

from besnn.wrapping import score_names
from experiments.runner import execute
from experiments.runs import Workspace
from experiments.wrapped import measure_wrapped, wrapped_runs


def test_every_score_is_measured_on_every_set(workspace: Workspace, small: dict[str, tuple[str, ...]]) -> None:
    (run,) = wrapped_runs("fashion-mnist", [0], (*small["fashion-mnist"], "data.validation=0.5"))
    fields = execute(run, measure_wrapped, workspace)
    assert {*score_names()} - {"combined"} <= fields["scores"].keys()
    assert fields["default_score"] in fields["scores"]
    assert all(row.keys() == {*run.unknown} for row in fields["scores"].values())
    assert fields["wrapping"].keys() == {"seconds", "images", "pass_seconds", "bare_seconds_500", "scoring_seconds_500"}
