"""`besnn train`: from data to a calibrated model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from besnn.cli.inspect import facts_of, in_words
from besnn.cli.options import DATA_HELP, DataDir, Device, Json, Quiet, complete_data, complete_method
from besnn.cli.output import FAILED, announce, count, training_progress

if TYPE_CHECKING:
    from lightning import Fabric

    from besnn.training import Recipe
    from besnn.training.batches import Data
    from besnn.training.fit import Fitted


def train(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|DATA",
            help=f"A recipe (see besnn recipes, or a .yaml), or data, trained by a recipe that suits it: {DATA_HELP}.",
            autocompletion=complete_data,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change any setting, such as training.epochs=5; repeatable."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Train another method, such as softmax or duq.", autocompletion=complete_method),
    ] = None,
    members: Annotated[int | None, typer.Option(help="The number of ensemble members.")] = None,
    epochs: Annotated[int | None, typer.Option(help="The number of passes over the data, after any pretraining.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same model.")] = None,
    alpha: Annotated[float | None, typer.Option(help="The false-alarm rate to calibrate to.")] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="The class column of a table.")] = None,
    data_dir: DataDir = None,
    run_folder: Annotated[Path | None, typer.Option(help="The folder for checkpoints and logs. (default: OUTPUT.run)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped run; the model is the same.")] = False,
    device: Device = "auto",
    devices: Annotated[int, typer.Option(help="The number of devices, or of processes on the CPU.", min=1)] = 1,
    strategy: Annotated[str, typer.Option(help="How several devices share the work, by Lightning's names.")] = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model, choose its score and calibrate it, each on its own part of the data.

    Settings are applied in this order: the recipe, --method, the other options, --set.
    """
    from besnn.cli.loading import choose_recipe, refuse_to_overwrite, setting
    from besnn.recipe.reading import method_overrides
    from besnn.training import make_fabric

    named = {"method.members": members, "training.epochs": epochs, "training.seed": seed, "calibration.alpha": alpha}
    given = [setting(field, value) for field, value in {**named, "data.label": label}.items() if value is not None]
    replaced = [] if method is None else method_overrides(choose_recipe(what), method)
    recipe = choose_recipe(what, [*replaced, *given, *(overrides or [])])
    run_folder, checkpoints = _open_run(output, run_folder, resume)
    refuse_to_overwrite("--output", output, *filter(None, (recipe.data.source, recipe.backbone.weights)))
    data = _load(recipe, data_dir)
    fabric = make_fabric(recipe.training.precision, device, devices, strategy)
    fitted = _fit(recipe, data, fabric, run_folder, resume, quiet)
    if fabric.is_global_zero:
        fitted.detector.save(output)
        for checkpoint in checkpoints:
            checkpoint.unlink(missing_ok=True)
        announce(*_outcome(fitted, output, run_folder), as_json=json, quiet=quiet)


def _open_run(output: Path, run_folder: Path | None, resume: bool) -> tuple[Path, list[Path]]:
    """Return the run's folder and checkpoints; refuse to throw an unfinished run away."""
    from besnn.errors import InputError
    from besnn.training.checkpoint import checkpoint_in
    from besnn.training.pretrain import plain_folder

    if output.is_dir():
        raise InputError(f"--output {output} is a folder: give the model file to write, such as {output / 'model.safetensors'}")
    run_folder = run_folder or output.with_name(f"{output.name}.run")
    checkpoints = [checkpoint_in(folder) for folder in (run_folder, plain_folder(run_folder))]
    left = [str(checkpoint) for checkpoint in checkpoints if checkpoint.exists()]
    if left and not resume:
        rest = " and ".join(left)
        raise InputError(f"{run_folder} holds an unfinished run: continue it with --resume, or remove {rest} to start anew")
    return run_folder, checkpoints


def _load(recipe: "Recipe", data_dir: Path | None) -> "Data":
    from besnn.cli.loading import kind_of_data
    from besnn.data import ImageSpec, load_or_stream

    kind_of_data(recipe.data.source)
    image = None if recipe.data.image is None else ImageSpec(recipe.data.image.size, recipe.data.image.channels)
    return load_or_stream(recipe.data.source, data_dir=data_dir, label=recipe.data.label, image=image)


def _fit(recipe: "Recipe", data: "Data", fabric: "Fabric", run_folder: Path, resume: bool, quiet: bool) -> "Fitted":
    from besnn.errors import BesnnError, DataError
    from besnn.training.fit import fit_detector

    reporter = training_progress(quiet or not fabric.is_global_zero)
    try:
        return fit_detector(recipe, data, fabric=fabric, run_folder=run_folder, resume=resume, reporter=reporter)
    except BesnnError as error:
        if fabric.is_global_zero or isinstance(error, DataError):
            raise
        raise typer.Exit(FAILED) from None  # every process meets the same error, and the first one reports it


def _outcome(fitted: "Fitted", output: Path, run_folder: Path) -> tuple[dict[str, object], list[str]]:
    """Return the outcome of a run, as facts and in words."""
    detector, history = fitted.detector, fitted.history
    stops_early = detector.recipe is not None and detector.recipe.training.patience is not None
    kept = min(history, key=lambda row: row["validation_loss"]) if stops_early else history[-1]
    accuracy = kept.get("validation_accuracy")
    facts = {"model": str(output), "run_folder": str(run_folder), **facts_of(detector), "validation_accuracy": accuracy}
    facts |= {"epochs": len(history), "seconds": detector.provenance["seconds"]}
    words = [f"trained {count(len(history), 'epoch')} in {facts['seconds']} s; logs are in {run_folder}", *in_words(facts)]
    if accuracy is not None:
        words.append(f"accuracy     {100 * accuracy:.1f} % on held-out validation data")
    return facts, [*words, f"wrote {output}: try besnn score {output} INPUT -o scores.csv"]
