"""`besnn train`: from data to a calibrated model."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from besnn.cli.inspect import facts_of, in_words
from besnn.cli.options import DATA_HELP, DataDir, Device, Json, NewModel, Quiet, complete_data, complete_method, option
from besnn.cli.output import FAILED, announce, command_line, count, note, training_progress

if TYPE_CHECKING:
    from lightning import Fabric

    from besnn.data import ImageSpec
    from besnn.detector import Detector
    from besnn.training import Recipe
    from besnn.training.batches import Data
    from besnn.training.fit import Fitted

_RECIPES = "(default: the recipe's)"
QUICK, THOROUGH = 0.25, 4.0  # times the recipe's epochs


def train(
    what: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE|DATA",
            help=f"A recipe (see besnn recipes, or a .yaml), or data, trained by a recipe that suits it: {DATA_HELP}.",
            autocompletion=complete_data,
        ),
    ],
    output: NewModel,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Continue from this model, with its recipe, on data with its classes and new ones. (default: none)",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None, option("FIELD=VALUE", "Change any setting, such as training.epochs=5; repeatable.", "--set")
    ] = None,
    method: Annotated[
        str | None, option("NAME", f"Another method, such as softmax. {_RECIPES}", autocompletion=complete_method)
    ] = None,
    members: Annotated[int | None, option("N", f"The number of ensemble members. {_RECIPES}")] = None,
    epochs: Annotated[int | None, option("N", f"The number of passes over the data, after any pretraining. {_RECIPES}")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Train for a quarter of the recipe's epochs: a first look.")] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Train for four times the recipe's epochs: more accurate, and slower.")
    ] = False,
    seed: Annotated[int | None, option("N", f"The same seed gives the same model. {_RECIPES}")] = None,
    alpha: Annotated[float | None, option("RATE", f"The share of known inputs that may be flagged. {_RECIPES}")] = None,
    label: Annotated[str | None, option("COLUMN", "The class column of a table. (default: label)")] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images and rows that cannot be read, and say how many.")
    ] = False,
    data_dir: DataDir = None,
    run_folder: Annotated[Path | None, option("FOLDER", "The folder for checkpoints and logs. (default: OUTPUT.run)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped run; the model is the same.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Drop a stopped run, and start from the beginning.")] = False,
    device: Device = "auto",
    devices: Annotated[int, option("N", "The number of devices, or of processes on the CPU.", min=1)] = 1,
    strategy: Annotated[str, option("NAME", "How several devices share the work, by Lightning's names.")] = "auto",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print all terms of the loss for every epoch.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on your data, and calibrate it.

    Training, the score that recognises unknown inputs, and calibration use different parts of the data. Settings are applied in
    this order: the recipe, --method, --quick or --thorough, the other options, --set.
    """
    from besnn.cli.loading import check_label, check_output, choose_recipe, load_for, setting

    check_output("--output", output, what)
    check_label(what, label, overrides or [])
    named = {"method.members": members, "training.epochs": epochs, "training.seed": seed, "calibration.alpha": alpha}
    given = [setting(field, value) for field, value in {**named, "data.label": label}.items() if value is not None]
    if quick and thorough:
        from besnn.errors import InputError

        raise InputError("--quick trains for a shorter time and --thorough for a longer one: give only one of them")
    detector, base = (None, partial(choose_recipe, what)) if start is None else _to_go_on(start, what, method)
    replaced: list[str] = []
    if method is not None or quick or thorough:
        from besnn.recipe.reading import effort_overrides, method_overrides

        replaced = [] if method is None else method_overrides(base(), method)
        if quick or thorough:
            replaced += effort_overrides(base(replaced), QUICK if quick else THOROUGH)
    recipe = base([*replaced, *given, *(overrides or [])])
    run_folder = run_folder or output.with_name(f"{output.name}.run")
    _check_run(run_folder, resume, restart, quiet)
    check_output("--output", output, *filter(None, (recipe.data.source, recipe.backbone.weights)))
    if detector is None:
        data = _load(recipe, data_dir, skip_bad, quiet)
    else:
        data = load_for(detector, recipe.data.source, "train", recipe.data.label, data_dir, skip_bad)
    from besnn.training import make_fabric  # slow to import, so everything that can be wrong so far has been checked

    fabric = make_fabric(recipe.training.precision, device, devices, strategy)
    fitted = _fit(recipe, data, fabric, run_folder, resume, quiet, verbose, detector)
    if fabric.is_global_zero:
        fitted.detector.save(output)
        for checkpoint in _checkpoints(run_folder):
            checkpoint.unlink(missing_ok=True)
        announce(*_outcome(fitted, output, run_folder), as_json=json, quiet=quiet)


def _to_go_on(start: Path, source: str, method: str | None) -> "tuple[Detector, Callable[..., Recipe]]":
    """Return the model to start from, and a function from overrides to its recipe for other data."""
    from besnn.cli.loading import check_data, load_detector
    from besnn.errors import InputError

    if method is not None:
        raise InputError(f"--method {method} would need another network: leave out --method or --from")
    check_data(source, quiet=True)
    detector = load_detector(start)
    from besnn.recipe.reading import parse_recipe
    from besnn.training.start import recipe_to_go_on

    return detector, partial(parse_recipe, recipe_to_go_on(detector, source).model_dump(mode="json"))


def _checkpoints(run_folder: Path) -> list[Path]:
    """Return the checkpoints of an unfinished run: its own, and that of the plain network it starts from."""
    return sorted(run_folder.rglob("checkpoint.safetensors"))


def _check_run(run_folder: Path, resume: bool, restart: bool, quiet: bool) -> None:
    """Refuse to drop an unfinished run without --restart; say so if there is nothing to resume."""
    from besnn.errors import InputError

    if resume and restart:
        raise InputError("--resume continues a run and --restart drops it: give only one of them")
    if _checkpoints(run_folder) and not (resume or restart):
        raise InputError(f"{run_folder} holds an unfinished run: continue it with --resume, or drop it with --restart")
    if resume and not _checkpoints(run_folder):
        note(f"{run_folder} holds nothing to resume: starting from the beginning", quiet=quiet)


def _load(recipe: "Recipe", data_dir: Path | None, skip_bad: bool, quiet: bool) -> "Data":
    from besnn.cli.loading import check_data
    from besnn.data import load_or_stream, require_classes

    source = recipe.data.source
    check_data(source, quiet=quiet)
    data = load_or_stream(source, data_dir=data_dir, label=recipe.data.label, image=_image_spec(recipe), skip_bad=skip_bad)
    if data.note:
        note(data.note, quiet=quiet)
    if recipe.data.classes is None:
        require_classes(data)  # sooner than training would, which takes seconds to import
    return data


def _image_spec(recipe: "Recipe") -> "ImageSpec | None":
    """Return the form to convert images to; None to leave them as they are."""
    from besnn.cli.loading import kind_of_data
    from besnn.data import ImageSpec
    from besnn.data.folder import suitable_size
    from besnn.data.sources import Kind

    image, source = recipe.data.image, recipe.data.source
    if image is None:
        return None
    if image.size != "auto":
        return ImageSpec(image.size, image.channels)
    return ImageSpec(suitable_size(Path(source)), image.channels) if kind_of_data(source) is Kind.FOLDER else None


def _fit(
    recipe: "Recipe",
    data: "Data",
    fabric: "Fabric",
    run_folder: Path,
    resume: bool,
    quiet: bool,
    verbose: bool,
    start: "Detector | None",
) -> "Fitted":
    from besnn.errors import BesnnError, DataError
    from besnn.training.fit import fit_detector

    reporter = training_progress(quiet or not fabric.is_global_zero, verbose)
    try:
        return fit_detector(recipe, data, start=start, fabric=fabric, run_folder=run_folder, resume=resume, reporter=reporter)
    except KeyboardInterrupt:
        if _checkpoints(run_folder):
            note("stopped: the same command with --resume continues", quiet=quiet)
        raise
    except BesnnError as error:
        if fabric.is_global_zero or isinstance(error, DataError):
            raise
        raise typer.Exit(FAILED) from None  # every process meets the same error, and the first one reports it


def _outcome(fitted: "Fitted", output: Path, run_folder: Path) -> tuple[dict[str, object], list[str]]:
    """Return the outcome of a run, as facts and in words."""
    from besnn.detection.conformal import FEW_SCORES

    detector, history = fitted.detector, fitted.history
    stops_early = detector.recipe is not None and detector.recipe.training.patience is not None
    kept = min(history, key=lambda row: row["validation_loss"]) if stops_early else history[-1]
    accuracy = kept.get("validation_accuracy")
    facts = {"model": str(output), "run_folder": str(run_folder), **facts_of(detector), "validation_accuracy": accuracy}
    facts |= {"epochs": len(history), "seconds": detector.provenance["seconds"]}
    words = [f"trained {count(len(history), 'epoch')} in {facts['seconds']} s; logs are in {run_folder}", *in_words(facts)]
    if accuracy is not None:
        words.append(f"accuracy     {100 * accuracy:.1f} % on held-out validation data")
    if (calibrated := facts["calibration"]) and calibrated["inputs"] < FEW_SCORES:
        command = command_line("besnn", "calibrate", output, "DATA")
        few = f"only {count(calibrated['inputs'], 'input')} set the threshold, so it may miss unknown inputs"
        words.append(f"caution      {few}: if you have {FEW_SCORES} or more, run {command}")
    return facts, [*words, f"wrote {output}: try {command_line('besnn', 'score', output, 'INPUT', '-o', 'scores.csv')}"]
