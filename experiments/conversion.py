"""Convert a trained network: a plain softmax network, and the BE-SNN that it becomes in a few epochs.

The linear and convolution weights of the trunk stay as the plain network learned them. Only each member's fast weights and
BatchNorm, the linear head behind the trunk and the class-feature generator learn.
"""

from collections.abc import Iterable, Sequence

from besnn.data import load
from besnn.training.device import make_fabric
from besnn.training.fit import Fitted, fit_detector
from besnn.training.record import write_record
from experiments.detection import measure_detection
from experiments.runner import make_record
from experiments.runs import Measured, Run, Workspace, reproduction_recipe, task_of

CONVERSION = "conversion"
BEFORE, AFTER = "before conversion", "after conversion"

_HELD_OUT = ("data.validation=0.1",)  # the combined score is relative to these
_FEW_EPOCHS = (
    "pretraining=null",  # it starts from the plain network instead
    "training.epochs=5",
    "training.optimiser.learning_rate=0.1",  # a trained network needs little
    "method.own_inputs=false",  # so that each member sees all inputs in every epoch
    "method.norm=member",  # a shared BatchNorm would undo the scaling by s in front of it
    "method.fast_weights=normal:0.1",  # random signs would destroy what the plain network learned
    "score.name=combined",
)


def conversion_runs(in_name: str, seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """Return a run of a plain softmax network for every seed; `measure_conversion` converts it afterwards.

    >>> [run.name for run in conversion_runs("cifar10", seeds=[0])]
    ['cifar10-softmax-before-conversion-seed0']
    """
    unknown = task_of(in_name).unknown
    return [
        Run(CONVERSION, reproduction_recipe(in_name, "softmax", seed, [*_HELD_OUT, *overrides]), unknown, BEFORE)
        for seed in seeds
    ]


def converted_run(plain: Run, weights: str, overrides: Sequence[str] = ()) -> Run:
    """Return the run that starts from a plain network with these weights: a file, or the name of a record."""
    start = (f"backbone.weights={weights}", "backbone.frozen=true")
    seed = plain.recipe.training.seed
    recipe = reproduction_recipe(plain.in_name, "be-snn", seed, [*_HELD_OUT, *_FEW_EPOCHS, *overrides, *start])
    return Run(CONVERSION, recipe, plain.unknown, AFTER)


def measure_conversion(fitted: Fitted, run: Run, workspace: Workspace, overrides: Sequence[str] = ()) -> Measured:
    """Convert a plain network, measure the result and write its record; then measure the plain network itself.

    An interrupted conversion continues; `overrides` change the converted network's recipe.
    """
    folder = workspace.scratch(run)
    plain = folder / "plain.safetensors"
    fitted.detector.save(plain)
    training = load(run.recipe.data.source, split="train", data_dir=workspace.data_dir)
    recipe = converted_run(run, str(plain), overrides).recipe
    fabric = make_fabric(recipe.training.precision, workspace.accelerator)
    converted = fit_detector(recipe, training, fabric=fabric, run_folder=folder / "converted", resume=True)
    after = converted_run(run, run.name, overrides)  # the record lasts, the file of weights does not
    measured = measure_detection(converted, after, workspace)
    write_record(workspace.record(after), make_record(after, converted, measured, training))
    return measure_detection(fitted, run, workspace)
