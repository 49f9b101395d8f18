"""Before the members learn: their backbone as one plain softmax network, which learns in less time."""

from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import nn

from besnn.model import Preprocessing
from besnn.recipe.build import build_method, trunk_of, with_trunk
from besnn.recipe.config import Recipe
from besnn.storage.tensor_file import FileKind, read_tensor_file, write_tensor_file
from besnn.training.checkpoint import checkpoint_in
from besnn.training.reporting import Reporter, Silent
from besnn.training.seeds import Draw, draw_seed, own_randomness
from besnn.training.source import Source
from besnn.training.trainer import Trainer

PLAIN = FileKind("besnn-plain-network", version=1, noun="plain network", remedy="delete it to train it again")


def plain_folder(run_folder: Path) -> Path:
    """Where the plain network that a run begins with keeps its checkpoint and logs."""
    return run_folder / "plain"


def pretrained_network(
    recipe: Recipe,
    num_classes: int,
    source: Source,
    preprocessing: Preprocessing,
    fabric: Fabric,
    *,
    validation: Source | None,
    run_folder: Path | None = None,
    resume: bool,
    kept: Path | None,
    identity: str = "",
    reporter: Reporter | None = None,
    checkpoint_every: int = 200,
    checkpoint_pause: float = 10.0,
) -> nn.Module:
    """A recipe's backbone with the trunk that a plain softmax network learned; what stands behind the trunk starts afresh.

    Args:
        recipe: its `pretraining` says how.
        num_classes: C.
        source: what to learn from.
        preprocessing: from raw inputs to the network's.
        fabric: devices and precision.
        validation: held out, to say how it goes.
        run_folder: where the plain network's checkpoints and logs go; None for nowhere.
        resume: continue from the run folder's checkpoint, if there is one.
        kept: a file for the trained network. Where it exists, the network is not trained again.
        identity: a digest of recipe and data.
        reporter: told how it goes.
        checkpoint_every: steps between checkpoints, see `Trainer`.
        checkpoint_pause: seconds between them at least.
    """
    # A run that began with a network of its own goes on with it: on a GPU another run's is not the same to the last bit.
    begun = resume and run_folder is not None and checkpoint_in(run_folder).exists()
    if kept is not None and kept.exists() and not begun:
        weights, _ = read_tensor_file(kept, PLAIN)
    else:
        plain = recipe.plain()
        with own_randomness(fabric.device):
            torch.manual_seed(draw_seed(plain.training.seed, Draw.WEIGHTS))
            model, objective = build_method(plain, preprocessing.input_shape, num_classes)
        (extractor,) = model.extractors()
        trunk_of(extractor, recipe.backbone)  # says so before training, not after it, that there is none
        trainer = Trainer(
            plain,
            model,
            objective,
            preprocessing,
            fabric,
            run_folder,
            identity,
            reporter or Silent(),
            checkpoint_every,
            checkpoint_pause,
            section="pretraining",
        )
        trainer.fit(source, validation, resume)
        weights = {name: value.detach().cpu() for name, value in extractor.state_dict().items()}
        if kept is not None and not kept.exists() and fabric.is_global_zero:
            write_tensor_file(kept, PLAIN, weights, {})
    with own_randomness(fabric.device):
        torch.manual_seed(draw_seed(recipe.training.seed, Draw.WEIGHTS))
        return with_trunk(recipe.backbone, preprocessing.input_shape, weights)
