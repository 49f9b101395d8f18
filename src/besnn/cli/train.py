"""`besnn train`: from data to a calibrated model."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from besnn.cli.errors import FAILED
from besnn.cli.options import DATA_HELP, DataDir, Device, Json, Quiet, complete_data

if TYPE_CHECKING:
    from besnn.training.fit import Fitted


class Method(StrEnum):
    """What to train."""

    BE_SNN = "be-snn"
    SOFTMAX = "softmax"
    DUQ = "duq"
    GAUSSIAN = "gaussian"
    DEEP_ENSEMBLE = "deep-ensemble"
    BATCH_ENSEMBLE = "batch-ensemble"


def train(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|DATA",
            help=f"A recipe (besnn recipes, or a .yaml), or data to train on by the recipe that suits it: {DATA_HELP}.",
            autocompletion=complete_data,
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change any setting, such as training.epochs=5; repeatable."),
    ] = None,
    method: Annotated[Method | None, typer.Option(help="Train this method, with its own defaults.", show_default=False)] = None,
    members: Annotated[int | None, typer.Option(help="How many members the ensemble has.", show_default=False)] = None,
    epochs: Annotated[
        int | None, typer.Option(help="How often to go through the data, after any pretraining.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same model.", show_default=False)] = None,
    alpha: Annotated[float | None, typer.Option(help="The false-alarm rate to calibrate to.", show_default=False)] = None,
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The class column of a table.", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    run_folder: Annotated[
        Path | None,
        typer.Option(help="Where checkpoints and logs go. (default: OUTPUT.run)", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped, to the same model.")] = False,
    device: Device = "auto",
    devices: Annotated[int, typer.Option(help="How many devices, or processes on the CPU.", min=1)] = 1,
    strategy: Annotated[str, typer.Option(help="How several devices share the work, by Lightning's names.")] = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model, choose its score and calibrate it, on parts of the data held out for each.

    Settings are applied in this order: the recipe, --method, the other options, --set.
    """
    from besnn.cli.choosing import choose_recipe, setting
    from besnn.cli.loading import kind_of_data, refuse_to_overwrite
    from besnn.cli.output import announce, training_progress
    from besnn.data import ImageSpec, load_or_stream
    from besnn.errors import BesnnError, DataError
    from besnn.recipe.baselines import method_overrides
    from besnn.training import make_fabric
    from besnn.training.fit import fit_detector

    named: dict[str, int | float | str | None] = {
        "method.members": members,
        "training.epochs": epochs,
        "training.seed": seed,
        "calibration.alpha": alpha,
        "data.label": label,
    }
    given = [setting(field, value) for field, value in named.items() if value is not None]
    replaced = [] if method is None else method_overrides(choose_recipe(what, []), method.value)
    recipe = choose_recipe(what, [*replaced, *given, *(overrides or [])])
    run_folder, checkpoints = _open_run(output, run_folder, resume)
    kind_of_data(recipe.data.source)
    refuse_to_overwrite("--output", output, *filter(None, (recipe.data.source, recipe.backbone.weights)))
    image = recipe.data.image
    dataset = load_or_stream(
        recipe.data.source,
        data_dir=data_dir,
        label=recipe.data.label,
        image=None if image is None else ImageSpec(image.size, image.channels),
    )
    fabric = make_fabric(recipe.training.precision, device, devices, strategy)
    quiet = quiet or not fabric.is_global_zero
    try:
        fitted = fit_detector(
            recipe, dataset, fabric=fabric, run_folder=run_folder, resume=resume, reporter=training_progress(quiet)
        )
    except BesnnError as error:
        if fabric.is_global_zero or isinstance(error, DataError):
            raise
        raise typer.Exit(FAILED) from None  # all processes find the same fault, and the first one tells of it
    if fabric.is_global_zero:
        fitted.detector.save(output)
        for checkpoint in checkpoints:
            checkpoint.unlink(missing_ok=True)
        announce(*_outcome(fitted, output, run_folder), as_json=json, quiet=quiet)


def _open_run(output: Path, run_folder: Path | None, resume: bool) -> tuple[Path, list[Path]]:
    """The run's folder and checkpoints. While one of them exists the run is not finished, and is not thrown away unasked."""
    from besnn.errors import InputError
    from besnn.training.checkpoint import checkpoint_in
    from besnn.training.pretrain import plain_folder

    if output.is_dir():
        raise InputError(f"--output {output} is a folder: give the model file to write, such as {output / 'model.safetensors'}")
    run_folder = run_folder or output.with_name(f"{output.name}.run")
    checkpoints = [checkpoint_in(folder) for folder in (run_folder, plain_folder(run_folder))]
    left = [str(checkpoint) for checkpoint in checkpoints if checkpoint.exists()]
    if left and not resume:
        raise InputError(
            f"{run_folder} holds an unfinished run: continue it with --resume, or remove {' and '.join(left)} to start anew"
        )
    return run_folder, checkpoints


def _outcome(fitted: "Fitted", output: Path, run_folder: Path) -> tuple[dict[str, object], list[str]]:
    """What came of a run, as facts and in words."""
    from besnn.cli.description import count, facts_of, in_words

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
