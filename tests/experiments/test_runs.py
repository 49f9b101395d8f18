"""Runs: their names, their recipes, and what a record says of them."""

import pytest

from besnn.errors import InputError
from besnn.training.record import write_record
from experiments.runs import Run, Workspace, find_twin, is_recorded, reproduction_recipe, select, task_of
from experiments.suites import (
    FURTHER_METHODS,
    PAPER_METHODS,
    ablation_runs,
    baseline_runs,
    near_ood_runs,
    table1_runs,
    table3_runs,
)

EVERY_METHOD = (*PAPER_METHODS, *FURTHER_METHODS)


def all_runs() -> list[Run]:
    runs = []
    for name in ("fashion-mnist", "cifar10"):
        runs += table1_runs(name, range(2), methods=EVERY_METHOD) + table3_runs(name, range(2))
        runs += ablation_runs(name, range(2)) + near_ood_runs(name, range(2)) + baseline_runs(name, range(2))
    return runs


def test_no_two_runs_share_a_record(workspace: Workspace) -> None:
    paths = [workspace.record(run) for run in all_runs()]
    assert len(set(paths)) == len(paths)
    assert all(path.name.isascii() and " " not in path.name for path in paths)


def test_two_percent_are_held_out_and_no_score_is_chosen() -> None:
    for run in all_runs():
        held_out = (run.recipe.data.validation, run.recipe.data.calibration, run.recipe.training.patience)
        assert held_out == (0.02, 0, None)
        assert run.recipe.score.name == ("combined" if run.recipe.method.name == "be-snn" else "method")


@pytest.mark.parametrize("method", ["be-snn", "duq"])
def test_a_set_without_a_task_is_learned_whole_and_has_the_methods_own_score(method: str) -> None:
    recipe = reproduction_recipe("two-moons", method, 0)
    assert (recipe.data.validation, recipe.data.calibration, recipe.score.name) == (0, 0, "method")


def test_overrides_come_last_but_for_the_seed() -> None:
    recipe = reproduction_recipe("cifar10", "duq", 3, ["training.epochs=7", "score.name=smallest-distance", "training.seed=9"])
    assert (recipe.training.epochs, recipe.score.name, recipe.training.seed) == (7, "smallest-distance", 3)


def test_a_table_cut_short_has_all_methods() -> None:
    assert [run.recipe.method.name for run in table1_runs("fashion-mnist", range(3))[:4]] == list(PAPER_METHODS)


def test_table_3_keeps_batch_times_members() -> None:
    runs = table3_runs("fashion-mnist", [0], ["training.batch_rows=256"])
    rows = {(run.recipe.method.members, run.variant): run.recipe.batch_size * run.recipe.method.members for run in runs}
    assert rows == {(1, ""): 256, (2, ""): 256, (4, ""): 256, (8, ""): 256, (8, "batch of N = 4"): 512}


def test_ablations_change_one_thing_each() -> None:
    paper = ["method.gradient_weight=0.5", "method.entropy_weight=1", "method.estimator=kl"]
    base = reproduction_recipe("fashion-mnist", "be-snn", 0, paper)
    base_method = base.method.model_dump()
    changed = []
    for run in ablation_runs("fashion-mnist", [0], paper):
        differs = {name: value for name, value in run.recipe.method.model_dump().items() if value != base_method[name]}
        assert run.recipe.model_copy(update={"method": base.method}) == base
        changed.append(differs)
    assert sorted(map(str, changed)) == sorted(
        map(
            str,
            [
                {},
                *({"gradient_weight": weight} for weight in (0.0, 0.1, 1.0)),
                {"entropy_weight": 0.0},
                {"estimator": "kpn"},
            ],
        )
    )


def test_an_ablation_shows_no_member_mirror_images() -> None:
    for seed in (0, 1):
        base = reproduction_recipe("cifar10", "be-snn", seed)
        (run,) = (run for run in ablation_runs("cifar10", [seed]) if "mirror" in run.variant)
        assert run.variant == "no mirror images"
        assert (base.method.mirror, run.recipe.method.mirror) == (True, False)
        assert run.recipe == base.model_copy(update={"method": base.method.model_copy(update={"mirror": False})})
        assert run.recipe.training.augment.flip  # what is taken away is the second look, not what was learned


@pytest.mark.parametrize(("name", "overrides"), [("fashion-mnist", []), ("cifar10", ["method.mirror=false"])])
def test_without_mirror_images_there_is_no_ablation_of_them(name: str, overrides: list[str]) -> None:
    assert not any("mirror" in run.variant for run in ablation_runs(name, [0], overrides))


def test_every_ensemble_of_a_task_looks_as_often_as_ours() -> None:
    for name in ("fashion-mnist", "cifar10"):
        ours = reproduction_recipe(name, "be-snn", 0)
        for method in EVERY_METHOD:
            recipe = reproduction_recipe(name, method, 0)
            assert recipe.method.mirror == (ours.method.mirror and recipe.method.members > 1), (name, method)


def test_an_ablation_of_a_recipe_without_entropy_term_brings_it_back() -> None:
    runs = {run.variant: run.recipe.method for run in ablation_runs("fashion-mnist", [0], ["method.entropy_weight=0"])}
    assert {name: method.entropy_weight for name, method in runs.items() if "by" in name} == {
        "entropy by kl": 1.0,
        "entropy by kpn": 1.0,
    }
    assert any("no entropy term" in name and "gradient weight" in name for name in runs)


def test_seeds_draw_other_classes_to_leave_out() -> None:
    known = [run.recipe.data.classes for run in near_ood_runs("cifar10", range(4), methods=("softmax",))]
    assert len(set(known)) > 1
    assert all(len(set(classes)) == 6 for classes in known)


def test_select_takes_runs_by_words_in_their_names() -> None:
    runs = table1_runs("fashion-mnist", range(2))
    assert [run.name for run in select(runs, ["duq-seed1", "softmax"])] == [
        "fashion-mnist-softmax-seed0",
        "fashion-mnist-duq-seed1",
        "fashion-mnist-softmax-seed1",
    ]
    assert select(runs, []) == runs
    with pytest.raises(InputError, match="fashion-mnist-duq-seed0"):
        select(runs, ["nothing"])


def test_a_record_of_another_recipe_is_not_taken_for_this_runs(workspace: Workspace) -> None:
    run = table1_runs("fashion-mnist", [0])[0]
    assert not is_recorded(run, workspace)
    write_record(workspace.record(run), {"recipe": run.recipe.model_dump(mode="json")})
    assert is_recorded(run, workspace)
    other = table1_runs("fashion-mnist", [0], ["training.optimiser.learning_rate=0.5"])[0]
    with pytest.raises(InputError, match=r"training\.optimiser\.learning_rate is .* there and 0\.5 here"):
        is_recorded(other, workspace)
    write_record(workspace.record(run), {"recipe": None})
    with pytest.raises(InputError, match="no recipe that this version can read"):
        is_recorded(run, workspace)


def test_tables_share_runs_of_the_same_recipe_and_sets(workspace: Workspace) -> None:
    run = table1_runs("fashion-mnist", [0])[0]
    fields = {"recipe": run.recipe.model_dump(mode="json"), "out": ["mnist", "not-mnist"]}
    path = workspace.record(run)
    write_record(path, fields)
    write_record(path.with_name("timing.json"), {"seconds": 1})
    same = next(other for other in table3_runs("fashion-mnist", [0]) if other.recipe.method.members == 4)
    assert find_twin(same, workspace) == path
    assert find_twin(table1_runs("fashion-mnist", [1])[0], workspace) is None
    assert find_twin(Run("x", run.recipe, ("mnist",)), workspace) is None


def test_an_unknown_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="unknown task 'mnist': use one of fashion-mnist, cifar10"):
        task_of("mnist")
