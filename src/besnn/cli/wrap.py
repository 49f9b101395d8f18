"""`besnn wrap`: a trained network, or precomputed features, as a calibrated detector, without training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from besnn.cli.inspect import facts_of, in_words
from besnn.cli.options import DATA_HELP, Alpha, DataDir, Delta, Device, Json, NewModel, Quiet, complete_data, option
from besnn.cli.output import announce, command_line, note

if TYPE_CHECKING:
    from torch import nn

    from besnn.data import Dataset
    from besnn.detector import Detector
    from besnn.model import Preprocessing
    from besnn.training.batches import Data

_SHOWN_SCORES = 5


def wrap(
    network: Annotated[
        Path,
        typer.Argument(
            metavar="NETWORK", help="A torch.export program (.pt2), an .onnx graph, or a table of embeddings (.parquet, .csv)."
        ),
    ],
    output: NewModel,
    data: Annotated[
        str | None,
        typer.Argument(metavar="[DATA]", help=f"Labelled data of its classes: {DATA_HELP}.", autocompletion=complete_data),
    ] = None,
    held_out: Annotated[
        str | None, option("DATA", "Data that the network was not trained on. (default: a fifth of DATA is held out)")
    ] = None,
    alpha: Alpha = 0.05,
    delta: Delta = None,
    score: Annotated[str, option("NAME", "The score that decides; auto takes the best one on made-up outliers.")] = "auto",
    layer: Annotated[list[str] | None, option("NAME", "A layer to look at; repeatable. (default: found automatically)")] = None,
    mean: Annotated[str | None, option("NUMBERS", "Mean of pixels from 0 to 1, such as 0.5,0.4,0.4. (default: 0)")] = None,
    std: Annotated[str | None, option("NUMBERS", "Standard deviation of the same pixels. (default: 1)")] = None,
    size: Annotated[int | None, option("N", "Load images at this height and width. (default: the network's)")] = None,
    resize: Annotated[
        int | None, option("N", "Resize the shorter side to this and cut out the middle. (default: stretch images)")
    ] = None,
    preprocessing: Annotated[
        Path | None,
        option("FILE", "Transformers' preprocessor_config.json or timm's config.json. (default: the options above)"),
    ] = None,
    classes: Annotated[
        str | None, option("NAMES", "The network's classes in its order, such as cat,dog. (default: DATA's)")
    ] = None,
    memory: Annotated[int, option("N", "The most MiB that the score may take.", min=1)] = 64,
    label: Annotated[str, option("COLUMN", "The class column of a table.")] = "label",
    data_dir: DataDir = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn a trained network into a calibrated detector.

    The network stays as it is: a score is chosen and a threshold is set, without training. The guarantee holds for inputs like
    the held-out ones, which the network must not have been trained on.
    """
    from besnn.cli.loading import check_data, check_output
    from besnn.errors import InputError

    if not network.is_file():
        raise InputError(f"{network} does not exist: give a .pt2, an .onnx or a table of embeddings")
    read = [spec for spec in (data, held_out) if spec is not None]
    check_output("--output", output, network, *read)
    check_data(*read, quiet=quiet)
    from besnn import wrap as wrap_network
    from besnn.checks import choose_device
    from besnn.data.dataset import align_classes
    from besnn.training.batches import Data

    place = choose_device(device)
    known: Data
    prepared = None
    loaded, shape, program = _network(network)
    if loaded is None:
        known, unseen, loaded, program = _embeddings(network, label, data, held_out)
        layer = layer or (["features"] if hasattr(loaded, "features") else None)
    else:
        numbers = _numbers("--mean", mean), _numbers("--std", std)
        prepared = _preprocessing(network, shape, size, resize, preprocessing, *numbers)
        known, unseen = _data(network, prepared, data, held_out, label, data_dir)
    names = None if classes is None else classes.split(",")
    if names is not None:
        known = align_classes(known, names)
    detector = wrap_network(
        loaded.to(place),
        known,
        alpha=alpha,
        delta=delta,
        held_out=unseen,
        class_names=names,
        preprocessing=prepared,
        layers=layer,
        score=score,
        memory=memory * 2**20,
        program=program,
    )
    detector.provenance |= {"network": network.name, "label": label}
    detector.save(output)
    announce(*_outcome(detector, output), as_json=json, quiet=quiet)
    if held_out is None:
        trained_on = network if data is None else data
        note(f"no --held-out data: the false-alarm rate holds if the network was not trained on {trained_on}", quiet=quiet)


def _network(path: Path) -> tuple["nn.Module | None", tuple[int, ...], bytes | None]:
    """Return the network in a file with the shape of its inputs and its program; no network for a table."""
    from besnn.data.formats import FORMATS
    from besnn.errors import InputError
    from besnn.model.onnx_program import load_onnx
    from besnn.model.program import load_program

    match suffix := path.suffix.lower():
        case ".pt2":
            return load_program(path.read_bytes(), str(path))
        case ".onnx":
            return load_onnx(path, str(path))
    if suffix in FORMATS and FORMATS[suffix].is_table:
        return None, (), None
    pickled = suffix in (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt")
    what = "may be a pickle, which could execute anything" if pickled else "is not a network that besnn reads"
    raise InputError(f"{path} {what}: save it with torch.export.save as .pt2, export it as .onnx, or use besnn.wrap in Python")


def _preprocessing(
    network: Path,
    shape: tuple[int, ...],
    size: int | None,
    resize: int | None,
    described: Path | None,
    mean: list[float] | None,
    std: list[float] | None,
) -> "Preprocessing | None":
    """Return what is done to image files for a network of `shape`, where 0 stands for any size; None for a network of rows."""
    from besnn.data import ImageSpec
    from besnn.errors import InputError
    from besnn.wrapping.steps import preprocessing_of, read_preprocessing

    given = [option for option in (mean, std, size, resize) if option is not None]
    if len(shape) != 3:
        if given or described:
            raise InputError(f"{network} takes no images: leave out --mean, --std, --size, --resize and --preprocessing")
        return None
    channels, height, width = shape
    if described is not None:
        if given:
            raise InputError("--preprocessing replaces --mean, --std, --size and --resize: give one or the other")
        found = read_preprocessing(described, channels)
        if any(own not in (0, side) for own, side in zip(shape, found.input_shape, strict=True)):
            raise InputError(f"{described} makes images of {list(found.input_shape)}, but {network} takes {list(shape)}")
        return found
    sides = (size, size) if size is not None else (height, width)
    if not all(sides):
        raise InputError(f"{network} takes images of any size: choose one with --size")
    found = preprocessing_of(ImageSpec(sides, channels, resize).shape, mean=mean, std=std)
    found.short_side = resize
    return found


def _data(
    network: Path, prepared: "Preprocessing | None", data: str | None, held_out: str | None, label: str, folder: Path | None
) -> "tuple[Data, Dataset | None]":
    """Load the data, images as the network's preprocessing takes them."""
    from besnn.data import ImageSpec, load, load_or_stream
    from besnn.errors import InputError

    if data is None:
        command = command_line("besnn", "wrap", network, "DATA", "-o", "OUTPUT")
        raise InputError(f"there is no data for {network}: {command}")
    image = None
    if prepared is not None:
        channels, height, width = prepared.input_shape
        image = ImageSpec((height, width), channels, prepared.short_side)
    known = load_or_stream(data, data_dir=folder, label=label, image=image)
    unseen = None if held_out is None else load(held_out, data_dir=folder, split="test", label=label, image=image)
    return known, unseen


def _embeddings(
    table: Path, label: str, data: str | None, held_out: str | None
) -> "tuple[Dataset, Dataset | None, nn.Module, bytes]":
    """Load a table of embeddings, hold out a fifth of it unless other data is given, and make a network of the rest."""
    import torch

    from besnn.data.formats import load_file
    from besnn.errors import InputError
    from besnn.model.program import load_program, save_program
    from besnn.wrapping.embeddings import network_of

    if data is not None:
        raise InputError(f"{data} is not needed: {table} holds the embeddings of the data already")
    known, unseen = load_file(table, label=label), None
    if known.labels is None:
        raise InputError(f"{table} has no column {label!r}: name the class column with --label")
    if held_out is not None:
        unseen = load_file(Path(held_out), label=label, columns=known.encoding or known.feature_names)
    else:
        unseen, known = known.split(0.2, stratify=False)
    network, _, program = load_program(save_program(network_of(known), torch.from_numpy(known.inputs[:3])))
    return known, unseen, network, program


def _numbers(option: str, text: str | None) -> list[float] | None:
    from besnn.errors import InputError

    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text!r}: give one number, or one per channel, such as 0.5,0.4,0.4") from None


def _outcome(detector: "Detector", output: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what came out, as facts and in words."""
    table = {name: sum(row.values()) / len(row) for name, row in detector.provenance.get("score_choice", {}).items()}
    best = sorted(table, key=lambda name: -table[name])[:_SHOWN_SCORES]
    facts = {"model": str(output), **facts_of(detector), "scores": table}
    words = in_words(facts)
    if (accuracy := detector.provenance.get("accuracy")) is not None:
        facts["accuracy"] = accuracy
        checks = "--classes" if len(detector.input_shape) == 1 else "--mean, --std and --classes"
        words.append(f"accuracy     {100 * accuracy:.1f} % of the labels; if that is low, check {checks}")
    words += [f"auroc        {table[name]:.4f} on made-up outliers by {name}" for name in best]
    return facts, [*words, f"wrote {output}: try {command_line('besnn', 'score', output, 'INPUT', '-o', 'scores.csv')}"]
