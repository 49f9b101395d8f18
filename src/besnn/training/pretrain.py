"""Pretraining: the backbone learns in a plain softmax network first, which takes less time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import nn

from besnn.model import Preprocessing
from besnn.recipe.build import build_method, trunk_of, with_trunk
from besnn.recipe.config import Recipe, TrainingConfig
from besnn.storage.tensor_file import FileKind, Tensors, read_tensor_file, write_tensor_file
from besnn.training.batches import Source
from besnn.training.checkpoint import checkpoint_in
from besnn.training.progress import Row
from besnn.training.trainer import WEIGHTS, RunOptions, Trainer, derive_seed, preserve_random_state

PLAIN = FileKind("besnn-plain-network", version=1, noun="plain network", remedy="delete it to train it again")


@dataclass(frozen=True)
class TrainingData:
    """What the networks of a run learn from."""

    training: Source
    validation: Source | None
    preprocessing: Preprocessing
    num_classes: int


def plain_folder(run_folder: Path) -> Path:
    """Return where the plain network that a run starts from keeps its checkpoint and logs."""
    return run_folder / "plain"


def pretrained_network(
    recipe: Recipe, data: TrainingData, fabric: Fabric, options: RunOptions, identity: str
) -> tuple[nn.Module, float | None]:
    """Return a recipe's backbone with the trunk that a plain softmax network learned; the layers after it start from scratch.

    The second value is that network's accuracy on validation data; None if it was not trained here, or without such data. If
    the folder of plain networks holds the one of this `identity`, a digest of recipe and data, it is not trained again.
    """
    options = replace(options, run_folder=None if options.run_folder is None else plain_folder(options.run_folder))
    stored = None if options.plain_networks is None else options.plain_networks / f"{identity}.safetensors"
    # A run that has trained its own plain network continues with it: on a GPU, no two have the same bits.
    trained_here = options.resume and options.run_folder is not None and checkpoint_in(options.run_folder).exists()
    if stored is not None and stored.exists() and not trained_here:
        (weights, _), accuracy = read_tensor_file(stored, PLAIN), None
    else:
        weights, accuracy = _train_plain_network(recipe, data, fabric, options, identity)
        if stored is not None and not stored.exists() and fabric.is_global_zero:
            write_tensor_file(stored, PLAIN, weights, {})
    with preserve_random_state(fabric.device):
        torch.manual_seed(derive_seed(recipe.training.seed, WEIGHTS))
        return with_trunk(recipe.backbone, data.preprocessing.input_shape, weights), accuracy


def kept_accuracy(history: Sequence[Row], training: TrainingConfig) -> float | None:
    """Return the validation accuracy of the weights that a run kept: the last, or the best if it may stop early."""
    if training.patience is None:
        return history[-1].get("validation_accuracy")
    return min(history, key=lambda row: row["validation_loss"])["validation_accuracy"]


def _train_plain_network(
    recipe: Recipe, data: TrainingData, fabric: Fabric, options: RunOptions, identity: str
) -> tuple[Tensors, float | None]:
    plain = recipe.plain()
    with preserve_random_state(fabric.device):
        torch.manual_seed(derive_seed(plain.training.seed, WEIGHTS))
        model, objective = build_method(plain, data.preprocessing.input_shape, data.num_classes)
    (extractor,) = model.extractors()
    trunk_of(extractor, recipe.backbone)  # refuses a backbone without a trunk before training, not after it
    trainer = Trainer(plain, model, objective, data.preprocessing, fabric, options, identity, section="pretraining")
    history = trainer.fit(data.training, data.validation)
    weights = {name: value.detach().cpu() for name, value in extractor.state_dict().items()}
    return weights, kept_accuracy(history, plain.training)
