"""Continuing from a trained detector: its recipe, its classes and more, and its weights where the new network has them."""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from besnn.data import Dataset
from besnn.data.dataset import align_classes
from besnn.detector import Detector
from besnn.errors import InputError
from besnn.model import OODClassifier
from besnn.recipe.config import Recipe
from besnn.training.batches import Data

SHARE_OF_EPOCHS = 0.25
SHARE_OF_RATE = 0.3
"""A continued network trains for a quarter of its recipe's epochs, at a lower rate: most of it is learned already."""


def recipe_to_go_on(detector: Detector, source: str) -> Recipe:
    """Return the recipe of a detector for other data, with fewer epochs, a lower rate, and no other network to start from."""
    if detector.recipe is None:
        raise InputError("the model to start from has no recipe, like every wrapped network: train or wrap a new one instead")
    recipe = detector.recipe
    training, backbone = recipe.training, recipe.backbone.model_copy(update={"weights": None, "frozen": False})
    rate = {"learning_rate": SHARE_OF_RATE * training.optimiser.learning_rate}
    changes = {
        "epochs": math.ceil(SHARE_OF_EPOCHS * training.epochs),
        "optimiser": training.optimiser.model_copy(update=rate),
    }
    image = recipe.data.image
    if image is not None:  # a size that suited the old data need not suit the new
        image = image.model_copy(update={"size": detector.input_shape[1:]})
    data = recipe.data.model_copy(update={"source": source, "classes": None, "limit": None, "image": image})
    training = training.model_copy(update=changes)
    return recipe.model_copy(update={"data": data, "backbone": backbone, "training": training, "pretraining": None})


def with_old_classes_first(data: Data, start: Detector) -> Data:
    """Return data with its classes in the detector's order, new ones after them.

    In memory, a new class is drawn as often as an old class is on average: a few hundred rows of a new class would otherwise
    drown among the old ones in the few epochs of a continued network.
    """
    more = [name for name in data.class_names if name not in start.class_names]
    data = align_classes(data, (*start.class_names, *more))
    if not isinstance(data, Dataset) or data.labels is None or data.weights is not None or not more:
        return data
    counts = np.bincount(data.labels, minlength=len(data.class_names))
    old = len(start.class_names)
    often = np.maximum(counts[:old].mean() / np.maximum(counts, 1), 1.0)
    often[:old] = 1.0
    return replace(data, weights=often[data.labels])


@torch.no_grad()
def continue_from(model: OODClassifier, start: Detector) -> None:
    """Copy the weights of a trained detector to a new model of the same recipe with as many classes or more, in place.

    The old classes must come first. Only what belongs to new classes keeps its initial values.
    """
    classes, before = start.model.num_classes, start.model.state_dict()
    added = model.num_classes - classes
    for name, value in model.state_dict().items():
        if name not in before:
            raise _other(f"it has no weights {name!r}")
        value.copy_(_grown(before[name].to(value.device), value, classes, added, name))


def _grown(old: Tensor, new: Tensor, classes: int, added: int, name: str) -> Tensor:
    """Return `new` with the values of `old`, which is shorter along the axis of the classes; other entries may follow them."""
    differing = [axis for axis, (own, other) in enumerate(zip(old.shape, new.shape, strict=False)) if own != other]
    if old.shape == new.shape:
        return old
    axis, *others = differing or [0]
    rest = old.shape[axis] - classes
    if old.ndim != new.ndim or others or rest < 0 or new.shape[axis] != old.shape[axis] + added:
        raise _other(f"its weights {name!r} have shape {list(old.shape)}, not {list(new.shape)}")
    grown = new.clone()
    grown.narrow(axis, 0, classes).copy_(old.narrow(axis, 0, classes))
    grown.narrow(axis, new.shape[axis] - rest, rest).copy_(old.narrow(axis, classes, rest))
    return grown


def _other(reason: str) -> InputError:
    return InputError(f"the model to start from does not fit: {reason}; use its own recipe, and data with its classes")
