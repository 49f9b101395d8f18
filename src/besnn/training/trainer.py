"""The trainer: one loop for all methods, on Lightning Fabric.

Everything random at a step (its batch, augmentation, class features) is drawn from a seed that is a function of the recipe's
seed and the step. So a run needs no random state to continue from a checkpoint, and continues to the same weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from besnn.errors import BesnnError, InputError
from besnn.model import Objective, OODClassifier, Preprocessing
from besnn.training.augment import random_crop, random_flip
from besnn.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from besnn.training.config import Recipe
from besnn.training.optimiser import build_optimiser, set_learning_rate
from besnn.training.reporting import Reporter, Row, Silent, write_csv_log, write_tensorboard_log
from besnn.training.schedule import learning_rate_factor, term_factors
from besnn.training.source import ArraySource, epoch_order, step_seed

_PRECISIONS: Mapping[str, Any] = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed"}


def make_fabric(precision: str = "fp32", accelerator: str = "auto", devices: int | str = 1, strategy: str = "auto") -> Fabric:
    """Fabric for a recipe's precision; `accelerator` is `auto`, `cpu`, `gpu` or `mps`."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    fabric = Fabric(accelerator=accelerator, devices=devices, strategy=strategy, precision=_PRECISIONS[precision])
    fabric.launch()
    return fabric


class LossModule(nn.Module):
    """A model whose forward pass ends in the loss terms: what Fabric wraps, so that gradients meet across processes."""

    def __init__(self, model: OODClassifier, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, x: Tensor, labels: Tensor, factors: Mapping[str, float]) -> dict[str, Tensor]:
        """The weighted terms for a batch."""
        return self.objective(self.model, x, labels, factors)


@dataclass
class Trainer:
    """One run: `fit` trains the model in place.

    Attributes:
        recipe: what to do.
        model: what to train.
        objective: what to minimise.
        preprocessing: from raw inputs to the model's.
        fabric: devices and precision.
        run_folder: where checkpoints and logs go; None for nowhere.
        identity: a digest of recipe and data; a checkpoint of another one is refused.
        reporter: told how it goes.
        checkpoint_every: steps between checkpoints; one more comes at the end of each epoch.
    """

    recipe: Recipe
    model: OODClassifier
    objective: Objective
    preprocessing: Preprocessing
    fabric: Fabric
    run_folder: Path | None = None
    identity: str = ""
    reporter: Reporter = field(default_factory=Silent)
    checkpoint_every: int = 200

    def fit(self, source: ArraySource, validation: ArraySource | None = None, resume: bool = False) -> list[Row]:
        """Trains to the end of the recipe, or from a checkpoint on; returns the epochs' metrics."""
        self._prepare(len(source), validation)
        if resume:
            self._resume()
        self.reporter.start(self.progress.step, self.total_steps)
        try:
            while self.progress.step < self.total_steps and not self._out_of_patience():
                self._epoch(source, validation)
        finally:
            self.reporter.finish()
        self._take_final_weights()
        return self.progress.history

    def _prepare(self, size: int, validation: ArraySource | None) -> None:
        training = self.recipe.training
        if training.patience is not None and validation is None:
            raise InputError("training.patience needs validation data: set data.validation above 0")
        self.batch_size = min(self.recipe.batch_size, size)
        self.steps_per_epoch = size // self.batch_size
        self.total_steps = training.epochs * self.steps_per_epoch
        if self.batch_size % self.fabric.world_size:
            raise InputError(
                f"a batch of {self.batch_size} does not divide among {self.fabric.world_size} processes: "
                "change training.batch_size"
            )
        self.preprocessing.to(self.fabric.device)
        self.model.train()
        optimiser = build_optimiser(self.model, training.optimiser)
        self.loss_module, self.optimiser = self.fabric.setup(LossModule(self.model, self.objective), optimiser)
        self.progress = Progress(self.identity)
        self.kept: dict[str, dict[str, Tensor]] = {}
        self.sums: dict[str, Tensor] = {}

    def _resume(self) -> None:
        path = self._checkpoint_path()
        if path is None or not path.exists():
            return
        self.progress, self.kept = load_checkpoint(path, self.identity, self.model, self.optimiser)
        self.sums = self.kept.pop("sums", {})

    def _epoch(self, source: ArraySource, validation: ArraySource | None) -> None:
        epoch, first = divmod(self.progress.step, self.steps_per_epoch)
        order = epoch_order(len(source), self.recipe.training.seed, epoch)
        self.model.train()
        for position in range(first, self.steps_per_epoch):
            self._step(source, order[position * self.batch_size : (position + 1) * self.batch_size])
            last = position == self.steps_per_epoch - 1
            if not last and self.progress.step % self.checkpoint_every == 0:
                self._save()
        self._finish_epoch(epoch, validation)

    def _step(self, source: ArraySource, indices: Tensor) -> None:
        training, step = self.recipe.training, self.progress.step
        progress = step / self.total_steps
        share = len(indices) // self.fabric.world_size
        indices = indices[self.fabric.global_rank * share : (self.fabric.global_rank + 1) * share]
        torch.manual_seed(step_seed(training.seed + 1 + self.fabric.global_rank, step))  # each process augments its own rows
        x, labels = source.batch(indices)
        x = self._augment(self.preprocessing(x))
        torch.manual_seed(step_seed(training.seed, step))  # class features are the same in all processes
        set_learning_rate(self.optimiser, learning_rate_factor(training.schedule, progress))
        terms = self.loss_module(x, labels, term_factors(training, step, progress))
        self.fabric.backward(sum(terms.values()))
        if training.optimiser.clip:
            self.fabric.clip_gradients(
                self.loss_module, self.optimiser, max_norm=training.optimiser.clip, error_if_nonfinite=False
            )
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.model.after_step(x, labels)
        self.progress.step += 1
        for name, term in terms.items():
            self.sums[name] = self.sums.get(name, torch.zeros((), device=term.device)) + term.detach()
        if training.average_from is not None and progress >= training.average_from:
            self._average_weights()
        self.reporter.step()

    def _augment(self, x: Tensor) -> Tensor:
        augment = self.recipe.training.augment
        if augment.crop:
            x = random_crop(x, augment.crop)
        return random_flip(x) if augment.flip else x

    def _average_weights(self) -> None:
        """A running mean of all weights and statistics over the steps since the averaging began."""
        self.progress.averaged += 1
        average = self.kept.setdefault("average", {})
        for name, value in self.model.state_dict().items():
            if value.is_floating_point():
                mean = average.setdefault(name, value.detach().clone())
                mean += (value.detach() - mean.to(value.device)) / self.progress.averaged

    def _finish_epoch(self, epoch: int, validation: ArraySource | None) -> None:
        row: Row = {"epoch": epoch + 1, "loss": 0.0}
        row |= {name: float(value) / self.steps_per_epoch for name, value in self.sums.items()}
        row["loss"] = sum(value for name, value in row.items() if name != "epoch")
        row["learning_rate"] = self.optimiser.param_groups[0]["lr"]
        if not torch.isfinite(torch.tensor(row["loss"])):
            raise BesnnError(
                f"training diverged in epoch {epoch + 1} (the loss is not finite): lower training.optimiser.learning_rate"
            )
        if validation is not None:
            row |= {f"validation_{name}": value for name, value in self.validate(validation).items()}
            if self.recipe.training.patience is not None:
                self._keep_best(row["validation_loss"], epoch + 1)
        self.sums = {}
        self.progress.history.append(row)
        self.reporter.epoch(row)
        self._save()
        self._log(epoch)

    @torch.no_grad()
    def validate(self, source: ArraySource) -> Row:
        """Negative log-likelihood and accuracy on held-out data."""
        self.model.eval()
        self.model.freeze_classes(samples=256, seed=0)
        loss, right = 0.0, 0
        for inputs, labels in source.in_order(1024):
            log_probabilities = self.model.log_probabilities(self.model(self.preprocessing(inputs)))
            loss += float(nn.functional.nll_loss(log_probabilities, labels, reduction="sum"))
            right += int((log_probabilities.argmax(dim=1) == labels).sum())
        self.model.train()
        return {"loss": loss / len(source), "accuracy": right / len(source)}

    def _keep_best(self, loss: float, epoch: int) -> None:
        if self.progress.best_loss is None or loss < self.progress.best_loss:
            self.progress.best_loss, self.progress.best_epoch = loss, epoch
            self.kept["best"] = {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _out_of_patience(self) -> bool:
        patience = self.recipe.training.patience
        return patience is not None and len(self.progress.history) - self.progress.best_epoch >= patience

    def _take_final_weights(self) -> None:
        for group in ("average", "best"):
            if group in self.kept:
                self.model.load_state_dict(self.kept[group], strict=group == "best")
        self.model.eval()

    def _checkpoint_path(self) -> Path | None:
        return None if self.run_folder is None else self.run_folder / "checkpoint.safetensors"

    def _save(self) -> None:
        path = self._checkpoint_path()
        if path is not None and self.fabric.is_global_zero:
            save_checkpoint(path, self.progress, self.model, self.optimiser, {**self.kept, "sums": self.sums})

    def _log(self, epoch: int) -> None:
        if self.run_folder is not None and self.fabric.is_global_zero:
            write_csv_log(self.run_folder / "log.csv", self.progress.history)
            write_tensorboard_log(self.run_folder, self.progress.history, epoch)
