"""Trials with members: fast weights of rank 2, and the best of more members than are kept."""

import torch
from torch import nn

from besnn.layers import batch_ensemble, tile
from besnn.layers.folding.fold import fold
from besnn.training.record import read_record
from experiments.__main__ import run as experiments
from experiments.member_trials import rank_two


def test_rank_two_is_the_sum_of_two_ensembles_and_folds_to_the_same() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).double()
    x = torch.rand(5, 1, 4, 4, dtype=torch.float64)
    with rank_two():
        ensemble = batch_ensemble(plain, members=3)
        layer = ensemble[0]
        ensemble(tile(x, 3))  # moves the statistics of the BatchNorm
        rows = ensemble.eval()(tile(x, 3))
        folded = fold(ensemble)(x)
        first = layer(tile(x, 3))
    scales = torch.einsum("no,ni->noi", layer.s, layer.r) + torch.einsum("no,ni->noi", layer.second_s, layer.second_r)
    weights = layer.weight * scales[..., None, None]
    expected = [nn.functional.conv2d(x, weight, bias) for weight, bias in zip(weights, layer.bias, strict=True)]
    torch.testing.assert_close(first, torch.cat(expected))
    torch.testing.assert_close(folded, rows)


def test_both_trials_leave_records(small, small_generator, made_up_data, tmp_path) -> None:
    settings = [*small["fashion-mnist"], *small_generator, "data.validation=0.3", "data.calibration=0.3"]
    options = [part for setting in settings for part in ("--set", setting)]
    where = ["--data-dir", str(made_up_data), "--results", str(tmp_path), "--device", "cpu"]
    assert experiments(["members", "--only", "seed0", *options, *where]) == 0
    fields = {record["variant"]: record for record in map(read_record, (tmp_path / "hunt").glob("*.json"))}
    assert {name: each["members"] for name, each in fields.items()} == {
        "D, fast weights of rank 2": 4,
        "D, the best 4 of 16 members": 16,
    }
    assert all(0 <= each["validation_accuracy"] <= 1 for each in fields.values())
