"""CIFAR-10: every part that concerns it on a few images, with its own ResNet-18 made narrow, as a user calls it."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from benchmarks.timing import EnoughError
from besnn.data import load
from besnn.detector import Detector
from besnn.training import build_method, load_recipe, parse_recipe
from besnn.training.fit import Fitted
from besnn.training.record import read_record
from experiments.__main__ import run as experiments
from experiments.conversion import AFTER, BEFORE, conversion_runs, converted_run
from experiments.cost import Stopwatch, measure_cost
from experiments.detection import measure_detection
from experiments.layer_densities import CANDIDATE_LAYERS, score_name
from experiments.records import load_records
from experiments.runs import Measured, Workspace
from experiments.tables import result_tables

LAYER_SCORES = {score_name(layer) for layer in CANDIDATE_LAYERS["cifar-resnet18"]}


@pytest.fixture
def reproduce(tiny_resnet: tuple[str, ...], workspace: Workspace):
    """Runs a part on the CPU, with further words of the command line; returns its exit code."""

    def call(part: str, *words: str, settings: tuple[str, ...] = ()) -> int:
        given = [word for setting in (*tiny_resnet, *settings) for word in ("--set", setting)]
        where = ["--data-dir", str(workspace.data_dir), "--results", str(workspace.results), "--device", "cpu"]
        return experiments([part, "--in", "cifar10", *words, *given, *where])

    return call


def records(workspace: Workspace) -> dict[str, dict]:
    return {path.stem: read_record(path) for path in sorted(workspace.results.glob("*/*.json"))}


def test_ablations_and_near_ood_show_densities_at_every_layer(reproduce, small_generator, workspace) -> None:
    held_out = ("data.validation=0.1",)  # of 64 images the benchmark's share is but one
    short = (*small_generator, *held_out, "pretraining.epochs=1")
    assert reproduce("ablations", "--seeds", "1", "--only", "entropy-by-kl", settings=short) == 0
    assert reproduce("near-ood", "--seeds", "1", "--only", "softmax", settings=held_out) == 0
    entropy, near = records(workspace).values()
    own_layers = entropy["recipe"]["score"]["layer"].split(",")
    gaussians = {f"class-gaussian at {layer}" for layer in own_layers}
    assert len(gaussians) == 3
    assert set(entropy["scores"]) > LAYER_SCORES | gaussians | {"tempered-entropy", "combined"}
    assert set(near["scores"]) > LAYER_SCORES | gaussians | {"predictive-entropy", "combined"}
    assert (entropy["default_score"], near["default_score"]) == ("combined", "predictive-entropy")
    assert all(set(sets) == {"cifar10:unseen", "svhn", "cifar100-sample"} for sets in near["scores"].values())


def test_training_starts_within_the_kernels_reach() -> None:
    """Distances of a fresh network: the recipe's length scale is what brings them there."""

    def first_distance(*overrides: str) -> float:
        torch.manual_seed(0)
        model, _ = build_method(load_recipe("cifar10", overrides), (3, 32, 32), 10)
        with torch.no_grad():
            return float(model(torch.randn(4, 3, 32, 32)).amin(dim=2).mean())

    assert first_distance() < 6
    assert first_distance("method.length_scale=1") > 30


def test_a_hunt_records_the_layers(reproduce, workspace) -> None:
    assert reproduce("hunt", "--only", "d-without-penalty-seed", settings=("data.validation=0.3",)) == 0
    (fields,) = records(workspace).values()
    assert set(fields["made_up"]) > LAYER_SCORES | {"combined", "combined at trunk.stage3", "combined over layers"}
    assert "mixed-channels" in fields["made_up"]["tempered-entropy"]
    tables = {table.title: table for table in result_tables(workspace.results)}
    assert len(tables["Recipe hunt on cifar10"].rows) == 1
    assert len(tables["Layers on cifar10"].rows) == len(CANDIDATE_LAYERS["cifar-resnet18"]) + 1  # and all of them, combined
    assert "Recipe hunt" not in tables  # that is FashionMNIST's


def test_a_table_that_is_cut_short_goes_on_where_it_was(reproduce, workspace, monkeypatch, capsys) -> None:
    only = ("--seeds", "1", "--only", "softmax")
    settings = ("training.epochs=4", "data.validation=0")  # of two steps each
    with monkeypatch.context() as patched:
        clock = itertools.count()  # moves on by a second when somebody looks
        patched.setattr("experiments.runner.time", SimpleNamespace(time=lambda: next(clock)))
        pauses = itertools.count(step=10)  # as long as between two checkpoints
        patched.setattr("besnn.training.trainer.time", SimpleNamespace(monotonic=lambda: next(pauses)))
        assert reproduce("table1", *only, "--time-limit", "7", settings=settings) == 1
    assert "1 of 1 runs are left: the same command continues with them" in capsys.readouterr().err
    assert records(workspace) == {}
    assert reproduce("table1", *only, settings=settings) == 0
    (fields,) = records(workspace).values()
    assert fields["provenance"]["first_step"] == 4  # the last epoch that was whole
    assert not list((workspace.results / "runs").rglob("checkpoint*"))


def test_conversion_keeps_the_plain_weights_and_records_both(reproduce, tiny_resnet, workspace, monkeypatch) -> None:
    seen: list[Detector] = []

    def measure_and_keep(fitted: Fitted, *others) -> Measured:
        seen.append(fitted.detector)
        return measure_detection(fitted, *others)

    monkeypatch.setattr("experiments.conversion.measure_detection", measure_and_keep)
    assert reproduce("conversion", "--seeds", "1") == 0
    after, before = (detector.model.feature_extractor.trunk for detector in seen)
    convolutions = [name for name, module in before.named_modules() if isinstance(module, torch.nn.Conv2d)]
    assert len(convolutions) == 20
    for name in convolutions:
        assert torch.equal(before.get_submodule(name).weight, after.get_submodule(name).weight)
    fast = after.stem[0].r
    assert fast.shape == (4, 3)
    assert bool((fast != 1).any())

    (plain,) = conversion_runs("cifar10", [0], tiny_resnet)
    first, second = (records(workspace)[name] for name in (plain.name, "cifar10-be-snn-n4-after-conversion-seed0"))
    assert first["default_score"] == "predictive-entropy"
    assert second["default_score"] == "combined"
    densities = {score_name(layer) for layer in load_recipe("cifar10").score.layer.split(",")}
    assert {"predictive-entropy", "combined"} | densities <= set(first["scores"])
    assert {"tempered-entropy", "combined"} | densities <= set(second["scores"])
    recipe = parse_recipe(second["recipe"])
    assert recipe == converted_run(plain, plain.name, tiny_resnet).recipe
    assert (recipe.backbone.weights, recipe.backbone.frozen) == (plain.name, True)
    assert second["parameters"] > first["parameters"]
    assert "svhn:test" in second["provenance"]["data_note"]
    assert not list((workspace.results / "runs").rglob("*.safetensors"))

    assert [record.variant for record in load_records(workspace.results)] == [AFTER, BEFORE]
    (table,) = [table for table in result_tables(workspace.results) if table.title == "Experiment: conversion"]
    assert [row[3] for row in table.rows] == [
        *["ours, tempered-entropy", "ours, combined (default)"] * 2,
        *["ours, predictive-entropy (default)", "ours, combined"] * 2,
    ]


def test_cost_is_that_of_the_recipe(small, small_generator, workspace) -> None:
    (run,) = measure_cost(
        "cifar10",
        ["be-snn"],
        workspace,
        overrides=(*small["cifar10"], *small_generator, "training.batch_rows=16"),
        steps=8,
        rounds=2,
        say=lambda line: None,
    )
    fields = read_record(workspace.record(run))
    rows = len(load("cifar10", data_dir=workspace.data_dir))
    held_out = round(run.recipe.data.validation * rows)
    assert held_out > 0
    assert run.recipe.training.gradient_every == 8
    assert fields["steps"] == run.recipe.training.epochs * ((rows - held_out) // run.recipe.batch_size)
    own_seconds = fields["seconds"] - fields["pretraining_seconds"]
    assert own_seconds > (fields["steps"] - 8) * fields["seconds_per_step"] > 0
    assert fields["pretraining_seconds"] > 0
    assert fields["score_seconds"] > 0
    assert fields["training_bytes"] is None  # of a CPU
    model, _ = build_method(run.recipe, (3, 32, 32), 10)
    assert fields["parameters"] == sum(parameter.numel() for parameter in model.parameters())


def test_the_cost_of_both_trainings_adds_up(small, small_generator, workspace, monkeypatch) -> None:
    clock = itertools.count()  # a second for every window, so that n steps take n / steps seconds
    monkeypatch.setattr("benchmarks.timing.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    changes = (*small["cifar10"], *small_generator, "data.validation=0.2", "training.batch_rows=16", "training.epochs=3")
    seconds = {}
    for name, plain in {"both": "pretraining={epochs: 5, batch_size: 30}", "one": "pretraining=null"}.items():
        (run,) = measure_cost(
            "cifar10", ["be-snn"], workspace, overrides=(*changes, plain), steps=8, rounds=2, say=lambda line: None
        )
        fields = read_record(workspace.record(run))
        assert fields["steps"] == 3 * (360 // 16)  # of 450 images, a fifth of them held out
        seconds[name] = fields["pretraining_seconds"], fields["seconds"]
    before, own = 5 * (360 // 30) / 8, 3 * (360 // 16) / 8
    assert seconds == {"both": (pytest.approx(before), pytest.approx(before + own)), "one": (0, pytest.approx(own))}


def test_a_stopwatch_counts_slow_first_steps_once(monkeypatch) -> None:
    clock = iter([100.0, 160.0, 170.0])  # a minute for the first five steps, ten seconds for the next
    monkeypatch.setattr("benchmarks.timing.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    watch = Stopwatch(5, torch.device("cpu"))
    watch.start(0, 1000)
    for _ in range(9):
        watch.step()
    with pytest.raises(EnoughError):
        watch.step()
    assert watch.seconds_per_step == 2
    assert watch.seconds(total=25) == 60 + 20 * 2


def test_cost_from_the_command_line(reproduce, small, workspace, monkeypatch, capsys) -> None:
    monkeypatch.setattr("experiments.suites.PAPER_METHODS", ("softmax", "duq"))
    monkeypatch.setattr("experiments.suites.FURTHER_METHODS", ("batch-ensemble",))
    assert reproduce("cost", "--steps", "2", "--rounds", "2", settings=small["cifar10"]) == 0
    assert capsys.readouterr().out.count("wrote ") == 3
    (table,) = [table for table in result_tables(workspace.results) if table.title == "Cost of the methods"]
    assert [row[1] for row in table.rows] == ["BatchEnsemble, N = 4", "DUQ", "Softmax network"]
    assert {cell for row in table.rows for cell in (row[5], row[7])} == {"—"}
    assert "Experiment: cost" not in {table.title for table in result_tables(workspace.results)}
