"""From a trained network and images to a calibrated detector, without training."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from besnn.checks import as_integers, as_numpy, check_choice
from besnn.data import Dataset, StreamingFolder
from besnn.data.dataset import split_indices
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.model import Preprocessing, WrappedNetwork
from besnn.recipe.config import DataConfig
from besnn.training.batches import Data, open_source
from besnn.training.examples import keep_examples
from besnn.training.record import provenance
from besnn.training.split import Split, split_data
from besnn.wrapping.checks import check_network, device_of
from besnn.wrapping.layers import find_layers, named_layers
from besnn.wrapping.scores import AUTO, MEMORY, ScoreFit, score_names
from besnn.wrapping.steps import Size, preprocessing_of

Array = NDArray[Any] | Tensor
EXAMPLES = 16
"""Inputs of the pass that finds the layers."""


def wrap(
    network: nn.Module,
    images: Array | Data,
    labels: Array | Sequence[int] | None = None,
    alpha: float = 0.05,
    *,
    held_out: Array | Dataset | None = None,
    class_names: Sequence[str] | None = None,
    preprocessing: object = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    size: Size | None = None,
    layers: Sequence[str] | None = None,
    score: str = AUTO,
    delta: float | None = None,
    memory: int = MEMORY,
    members: int = 1,
    epochs: int = 3,
    seed: int = 0,
    program: bytes | None = None,
) -> Detector:
    """Make a calibrated detector from a trained network, which stays as it is: its logits are the detector's, to the last bit.

    The threshold's guarantee needs inputs that the network was *not* trained on: pass some as `held_out`. Without them a fifth
    of `images` is held out; if the network has been trained on those, more known inputs than `alpha` are flagged.

    Args:
        network: returns logits `[batch, classes]`, for batches of any size; in evaluation mode.
        images: like those that it was trained on, `uint8 [n, channels, h, w]`; or rows of a table `[n, columns]`, or tokens
            (integers) `[n, length]`; or a `besnn.data` set with its labels.
        labels: the class of each, `[n]`.
        alpha: the share of known inputs that may be flagged.
        held_out: inputs that the network has not been trained on, for choosing the score and setting the threshold.
        class_names: by class index; the indices themselves unless given.
        preprocessing: from pixels to the network's inputs: torchvision transforms, timm's configuration, transformers' image
            processor, or a `besnn.model.Preprocessing`.
        mean: of pixels from 0 to 1, one number or one per channel. With `std` and `size` it takes the place of `preprocessing`.
        std: of the same pixels, one number or one per channel.
        size: the side, or the height and width, that images are resized to.
        layers: names of the layers to look at, `fc:input` for what goes into `fc`; found automatically unless given.
        score: `auto` for the best one on made-up outliers, or a name; `besnn.wrapping.score_names` lists them.
        delta: keep alpha with probability 1 − delta over the held-out inputs; see `besnn.detection.ConformalThreshold`.
        memory: the most bytes that the score may take.
        members: with more than one, the network is converted to a BE-SNN, which is trained.
        epochs: how many epochs the members train for.
        seed: of the split.
        program: the file of a `torch.export` program that the network was read from; the detector's file then holds it.

    >>> from besnn.data import two_moons
    >>> moons = two_moons(2000)
    >>> network = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)).eval()  # trained elsewhere
    >>> detector = wrap(network, moons.inputs, moons.labels)
    >>> bool(detector.predict(moons.inputs + 100).is_ood.all())
    True
    """
    check_choice("score", score, (AUTO, *score_names()))
    data = _as_data(images, labels, class_names)
    prepared = _preprocessing(data, _are_tokens(images), preprocessing, mean=mean, std=std, size=size)
    if members > 1:
        from besnn.wrapping.members import convert

        return convert(network, data, prepared, alpha, members, epochs, seed)
    prepared = prepared.to(device_of(network))
    examples = prepared(_examples(data).to(device_of(network)))
    network, classes = check_network(network, examples, tokens=prepared.form == "tokens")
    data = _with_classes(data, class_names, classes)
    found = find_layers(network, examples) if layers is None else named_layers(network, examples, layers)
    split = _split(data, held_out, seed)
    detector = Detector(
        WrappedNetwork(network, classes, program),
        prepared,
        data.class_names,
        provenance=provenance(data.hashes, prepared.mean.device),
        feature_names=data.feature_names if isinstance(data, Dataset) else (),
        encoding=data.encoding if isinstance(data, Dataset) else None,
    )
    assert split.validation is not None
    assert split.calibration is not None
    source = open_source(split.training, torch.device("cpu"))
    ScoreFit(detector, found, source, split.validation.inputs, memory).choose(score)
    keep_examples(detector, split.training)
    unseen = None if held_out is None else split.calibration.labels  # of training images, labels are right too often
    return detector.calibrate(split.calibration.inputs, alpha, delta, labels=unseen)


def _as_data(images: Array | Data, labels: Array | Sequence[int] | None, class_names: Sequence[str] | None) -> Data:
    """Return arrays as a data set; integers `[n, length]` become a table of tokens."""
    if isinstance(images, Dataset | StreamingFolder):
        return images
    inputs = as_numpy(images, "images")
    if inputs.ndim == 4 and inputs.dtype != np.uint8:
        fix = "pass pixels from 0 to 255 as uint8, and what the network expects as preprocessing, or as mean, std and size"
        raise InputError(f"images have dtype {inputs.dtype}: {fix}")
    if labels is None:
        raise InputError("labels are missing: pass the class of each image, wrap(network, images, labels)")
    numbers = as_integers(labels, "labels").numpy()
    if numbers.shape != (len(inputs),):
        raise InputError(f"labels have shape {list(numbers.shape)}: pass one for each of the {len(inputs)} inputs")
    if numbers.min(initial=0) < 0:
        raise InputError(f"label {numbers.min()} is negative: labels are class indices, 0 for the first logit")
    names = tuple(class_names or map(str, range(int(numbers.max(initial=0)) + 1)))
    if len(names) <= numbers.max(initial=0):
        raise InputError(f"label {numbers.max()} has no name: there are {len(names)} class names")
    return Dataset(inputs if inputs.ndim == 4 else inputs.astype(np.float32), numbers, names, "images")


def _are_tokens(images: Array | Data) -> bool:
    """Return whether inputs are tokens: whole numbers `[n, length]`."""
    if isinstance(images, Dataset | StreamingFolder):
        return False
    few = as_numpy(images[:1], "images")
    return few.ndim == 2 and few.dtype.kind in "iu"


def _preprocessing(data: Data, tokens: bool, given: object, **numbers: Any) -> Preprocessing:
    shape = tuple(data.inputs.shape[1:]) if isinstance(data, Dataset) else data.spec.shape
    if len(shape) == 3:
        return preprocessing_of(shape, given, **numbers)
    if isinstance(given, Preprocessing):
        return given
    if given is not None or any(value is not None for value in numbers.values()):
        raise InputError("preprocessing, mean, std and size are for images: pass rows as the network takes them")
    return Preprocessing(shape, torch.zeros(shape), torch.ones(shape), form="tokens" if tokens else "numbers")


def _examples(data: Data) -> Tensor:
    inputs, _ = next(open_source(data, torch.device("cpu")).batches(torch.arange(min(EXAMPLES, len(data))), EXAMPLES))
    return inputs


def _with_classes(data: Data, class_names: Sequence[str] | None, classes: int) -> Data:
    """Check the labels against the network's logits, and name all of its classes."""
    if data.labels is None:
        raise InputError(f"{data.name} has no labels: give the class of each input")
    names = tuple(class_names) if class_names is not None else data.class_names
    largest = int(data.labels.max(initial=0))
    fix = f"does not fit a network with {classes} logits: pass the classes that it was trained on, in its order"
    if largest >= classes:
        raise InputError(f"label {largest} {fix}")
    if len(names) > classes or (class_names is not None and len(names) < classes):
        raise InputError(f"a list of {len(names)} class names {fix}")
    return replace(data, class_names=(*names, *map(str, range(len(names), classes))))


def _split(data: Data, held_out: Array | Dataset | None, seed: int) -> Split:
    """Hold out a tenth for choosing the score and a tenth for the threshold, or use the given inputs, half for each."""
    if held_out is None:
        return split_data(data, DataConfig(source="images"), seed)
    inputs = held_out.inputs if isinstance(held_out, Dataset) else as_numpy(held_out, "held_out")
    inputs = inputs if inputs.ndim == 4 else inputs.astype(np.float32)
    if len(inputs) < 4:
        raise InputError(f"held_out holds {len(inputs)} inputs: pass a few hundred")
    labels = None
    if isinstance(held_out, Dataset) and set(held_out.class_names) <= set(data.class_names):
        labels = held_out.align_classes(data.class_names).labels
    parts = [
        Dataset(inputs[rows], None if labels is None else labels[rows], data.class_names, "held-out inputs")
        for rows in split_indices(len(inputs), [0.5], seed=seed)
    ]
    return Split(data, *parts)
