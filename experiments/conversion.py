"""Any trained network in: a plain softmax network, and the BE-SNN that it becomes in a few epochs, its weights kept.

Of the converted network the linear and convolution weights of the trunk stay as the plain network learned them. What learns is
each member's own (fast weights, BatchNorm), the linear head behind the trunk, and the class-feature generator.
"""

from collections.abc import Iterable, Sequence

from besnn.data import load
from besnn.training.device import make_fabric
from besnn.training.fit import Fitted, fit_detector
from besnn.training.record import write_record
from experiments.benchmarks import benchmark_of
from experiments.detection import Measured, measure_detection
from experiments.execution import make_record
from experiments.runs import Run, Workspace, reproduction_recipe

CONVERSION = "conversion"
BEFORE, AFTER = "before conversion", "after conversion"

_HELD_OUT = ("data.validation=0.1",)  # what the combined score is taken against
_FEW_EPOCHS = (
    "pretraining=null",  # the plain network is what it starts from
    "training.epochs=5",
    "training.optimiser.learning_rate=0.1",  # what a trained network needs little of
    "method.own_inputs=false",  # so that five epochs are five for each member
    "method.norm=member",  # without it a BatchNorm undoes what s does in front of it
    "method.fast_weights=normal:0.1",  # random signs would leave nothing of the plain network
    "score.name=combined",
)


def conversion_runs(in_name: str, seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """A plain softmax network for every seed, to be converted when it is trained; see `measure_conversion`.

    >>> [run.name for run in conversion_runs("cifar10", seeds=[0])]
    ['cifar10-softmax-before-conversion-seed0']
    """
    unknown = benchmark_of(in_name).unknown
    return [
        Run(CONVERSION, reproduction_recipe(in_name, "softmax", seed, [*_HELD_OUT, *overrides]), unknown, BEFORE)
        for seed in seeds
    ]


def converted_run(plain: Run, weights: str, overrides: Sequence[str] = ()) -> Run:
    """The run that starts from a plain network, whose weights are in a file or go by a name."""
    start = (f"backbone.weights={weights}", "backbone.frozen=true")
    seed = plain.recipe.training.seed
    recipe = reproduction_recipe(plain.in_name, "be-snn", seed, [*_HELD_OUT, *_FEW_EPOCHS, *overrides, *start])
    return Run(CONVERSION, recipe, plain.unknown, AFTER)


def measure_conversion(fitted: Fitted, run: Run, workspace: Workspace, overrides: Sequence[str] = ()) -> Measured:
    """Converts a plain network, measures what became of it, writes that record; then measures the plain network itself.

    Args:
        fitted: the plain network.
        run: its run.
        workspace: where to read and write; a conversion that was interrupted continues.
        overrides: to the converted network's recipe.
    """
    folder = workspace.scratch(run)
    plain = folder / "plain.safetensors"
    fitted.detector.save(plain)
    training = load(run.recipe.data.source, split="train", data_dir=workspace.data_dir)
    recipe = converted_run(run, str(plain), overrides).recipe
    fabric = make_fabric(recipe.training.precision, workspace.accelerator)
    converted = fit_detector(recipe, training, fabric=fabric, run_folder=folder / "converted", resume=True)
    after = converted_run(run, run.name, overrides)  # by the name of a record, which stays, not of a file, which does not
    measured = measure_detection(converted, after, workspace)
    write_record(workspace.record(after), make_record(after, converted, measured, training, fabric.device))
    return measure_detection(fitted, run, workspace)
