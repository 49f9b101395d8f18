"""The trainer: one loop for all methods, on Lightning Fabric.

Everything random at a step (its batch, augmentation, class features) is drawn from a seed that is a function of the recipe's
seed and the step. So a run needs no random state to continue from a checkpoint, and continues to the same weights.
"""

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from besnn.errors import BesnnError, InputError
from besnn.model import Objective, OODClassifier, Preprocessing
from besnn.objective.processes import share_buffers, sum_over_processes
from besnn.recipe.config import Recipe
from besnn.storage.files import remove_partials
from besnn.training.augment import augment
from besnn.training.checkpoint import Progress, checkpoint_in, load_checkpoint, save_checkpoint
from besnn.training.compiled import CompiledStep
from besnn.training.graphs import GraphedStep, Step, Terms
from besnn.training.logs import RunLog
from besnn.training.memory import kept_memory
from besnn.training.optimiser import build_optimiser, set_learning_rate
from besnn.training.reporting import Reporter, Row, Silent
from besnn.training.schedule import factor_counts, learning_rate_factor, term_factors
from besnn.training.seeds import Draw, draw_seed, epoch_order, own_randomness
from besnn.training.source import Source
from besnn.training.weights import Weights, average_weights, copy_weights, lay_out, load_average


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
        run_folder: where checkpoints and logs go, for this run alone; None for nowhere.
        identity: a digest of recipe and data; a checkpoint of another one is refused.
        reporter: told how it goes.
        checkpoint_every: steps between checkpoints; one more comes at the end of each epoch.
        checkpoint_pause: seconds that a process alone leaves between two of them, skipping those that come sooner, but for the
            last: those of a large network take longer than the steps between them.
        section: where in the user's recipe the settings come from, for what there is to say about them.
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
    checkpoint_pause: float = 10.0
    section: str = "training"

    def fit(self, source: Source, validation: Source | None = None, resume: bool = False) -> list[Row]:
        """Trains to the end of the recipe, or from a checkpoint on; returns the epochs' metrics."""
        self._prepare(len(source), validation)
        self._open_run_folder(resume)
        self.reporter.start(self.progress.step, self.total_steps)
        try:
            with own_randomness(self.fabric.device), kept_memory() if self.fabric.device.type == "cpu" else nullcontext():
                while self.progress.step < self.total_steps and not self._out_of_patience():
                    self._epoch(source, validation)
        finally:
            self.reporter.finish()
            if self.log is not None:
                self.log.close()
        self._take_final_weights()
        return self.progress.history

    def _prepare(self, size: int, validation: Source | None) -> None:
        training = self.recipe.training
        if training.patience is not None and validation is None:
            raise InputError(f"{self.section}.patience needs validation data: set data.validation above 0")
        shares = self.recipe.shares
        self.batch_size = min(self.recipe.batch_size, size // shares * shares)
        if not self.batch_size:
            raise InputError(f"{size} inputs do not go round {shares} members: set method.own_inputs=false")
        self.steps_per_epoch = size // self.batch_size
        self.total_steps = training.epochs * self.steps_per_epoch
        if self.batch_size % (shares * self.fabric.world_size):
            members = f" of {shares} members each" if shares > 1 else ""
            field = "batch_size" if training.batch_rows is None else "batch_rows"
            raise InputError(
                f"a batch of {self.batch_size} does not divide among {self.fabric.world_size} processes{members}: "
                f"change {self.section}.{field}"
            )
        self.preprocessing.to(self.fabric.device)
        if self.fabric.device.type == "cuda" and training.precision == "bf16":
            lay_out(self.model, torch.channels_last)  # how its matrix units convolve
        self.model.train()
        optimiser = build_optimiser(self.model, training.optimiser)
        self.terms = LossModule(self.model, self.objective)
        self.loss_module, self.optimiser = self.fabric.setup(self.terms, optimiser)
        self.gradients = self._fastest_step()
        self.progress = Progress(self.identity)
        self.kept: dict[str, Weights] = {}
        self.sums: dict[str, Tensor] = {}
        self.checkpoint: Path | None = None
        self.saved_at = -math.inf
        self.log: RunLog | None = None

    def _open_run_folder(self, resume: bool) -> None:
        if self.run_folder is None:
            return
        self.run_folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint = checkpoint_in(self.run_folder)
        if resume and self.checkpoint.exists():
            self.progress, self.kept = load_checkpoint(
                self.checkpoint, self.identity, self.model, self.optimiser, self.fabric.device
            )
            self.sums = self.kept.pop("sums", {})
        if self.fabric.is_global_zero:
            if not resume:
                self.checkpoint.unlink(missing_ok=True)  # another run's: this one must never continue from it
            remove_partials(self.run_folder)
            self.log = RunLog(self.run_folder, self.progress.history)

    def _epoch(self, source: Source, validation: Source | None) -> None:
        epoch, first = divmod(self.progress.step, self.steps_per_epoch)
        order = epoch_order(len(source), self.recipe.training.seed, epoch)[: self.steps_per_epoch * self.batch_size]
        # [steps, processes, rows of a process]: a process takes its share of every batch
        mine = order.view(self.steps_per_epoch, self.fabric.world_size, -1)[first:, self.fabric.global_rank]
        self.model.train()
        for inputs, labels in source.batches(mine.flatten(), mine.shape[1]):
            self._step(inputs, labels)
            if self.progress.step % self.steps_per_epoch and self.progress.step % self.checkpoint_every == 0:
                self._save()
        self._finish_epoch(epoch + 1, validation)

    def _step(self, inputs: Tensor, labels: Tensor) -> None:
        training, step = self.recipe.training, self.progress.step
        progress = step / self.total_steps
        torch.manual_seed(draw_seed(training.seed, Draw.AUGMENTATION, step, self.fabric.global_rank))
        x = augment(self.preprocessing(inputs), training.augment)
        torch.manual_seed(draw_seed(training.seed, Draw.OBJECTIVE, step))  # class features are the same in all processes
        set_learning_rate(self.optimiser, learning_rate_factor(training.schedule, progress))
        terms = self.gradients(x, labels, term_factors(training, step, progress))
        if training.optimiser.clip:
            self.fabric.clip_gradients(
                self.loss_module, self.optimiser, max_norm=training.optimiser.clip, error_if_nonfinite=False
            )
        self.optimiser.step()
        self.model.after_step(x, labels)
        self.progress.step += 1
        for name, term in terms.items():
            self.sums[name] = self.sums.get(name, torch.zeros((), device=term.device)) + term.detach()
        if training.average_from is not None and progress >= training.average_from:
            self.progress.averaged += 1
            average_weights(self.kept.setdefault("average", {}), self.model, self.progress.averaged)
        self.reporter.step()

    def _fastest_step(self) -> Step:
        """On a GPU recorded, and compiled where there is enough to do to make up for the minute that this can take."""
        if self.fabric.device.type != "cuda" or self.fabric.world_size > 1:
            return self._gradients
        counts = factor_counts(self.recipe.training, self.total_steps)
        return GraphedStep(CompiledStep(self._gradients, self.terms, counts, self.fabric.autocast))

    def _gradients(self, x: Tensor, labels: Tensor, factors: Mapping[str, float]) -> Terms:
        """Fills the parameters' gradients, in place so that a recorded step finds them again, and returns the loss terms."""
        self.optimiser.zero_grad(set_to_none=False)
        terms: Terms = self.loss_module(x, labels, factors)
        if not terms:
            raise InputError(f"no term of the objective is at work: let {self.section}.ramps begin one of them at the start")
        self.fabric.backward(torch.stack(list(terms.values())).sum())
        return terms

    def _finish_epoch(self, epoch: int, validation: Source | None) -> None:
        self._share_sums()
        share_buffers(self.model)
        terms = {name: float(self.sums[name]) / self.steps_per_epoch for name in sorted(self.sums)}
        row: Row = {"epoch": epoch, "loss": sum(terms.values()), **terms}
        row["learning_rate"] = self.optimiser.param_groups[0]["lr"]
        if validation is not None:
            row |= {f"validation_{name}": value for name, value in self.validate(validation).items()}
        finite = all(math.isfinite(value) for value in row.values())
        if not finite or not all(bool(torch.isfinite(weight).all()) for weight in self.model.parameters()):
            raise BesnnError(
                f"training diverged in epoch {epoch} (the loss or a weight is not finite): "
                f"lower {self.section}.optimiser.learning_rate"
            )
        if self.recipe.training.patience is not None:
            self._keep_best(row["validation_loss"], epoch)
        self.sums = {}
        self.progress.history.append(row)
        self.reporter.epoch(row)
        self._save()
        if self.log is not None:
            self.log.add(self.progress.history)

    @torch.no_grad()
    def validate(self, source: Source) -> Row:
        """Negative log-likelihood and accuracy on held-out data, which the processes share out among themselves."""
        self.model.eval()
        self.model.freeze_classes(samples=256, seed=0)
        totals = torch.zeros(2, dtype=torch.float64)
        mine = torch.arange(len(source))[self.fabric.global_rank :: self.fabric.world_size]
        for inputs, labels in source.batches(mine, 1024) if len(mine) else ():
            log_probabilities = self.model.log_probabilities(self.model(self.preprocessing(inputs)))
            totals[0] += float(nn.functional.nll_loss(log_probabilities, labels, reduction="sum"))
            totals[1] += int((log_probabilities.argmax(dim=1) == labels).sum())
        self.model.train()
        if self.fabric.world_size > 1:
            totals = sum_over_processes(totals.to(self.fabric.device))
        loss, accuracy = (totals / len(source)).tolist()
        return {"loss": loss, "accuracy": accuracy}

    def _keep_best(self, loss: float, epoch: int) -> None:
        if self.progress.best_loss is None or loss < self.progress.best_loss:
            self.progress.best_loss, self.progress.best_epoch = loss, epoch
            self.kept["best"] = copy_weights(self.model)

    def _out_of_patience(self) -> bool:
        patience = self.recipe.training.patience
        return patience is not None and len(self.progress.history) - self.progress.best_epoch >= patience

    def _take_final_weights(self) -> None:
        if "best" in self.kept:
            self.model.load_state_dict(self.kept["best"])
        elif "average" in self.kept:
            load_average(self.kept["average"], self.model)
        lay_out(self.model, torch.contiguous_format)
        self.model.eval()

    def _share_sums(self) -> None:
        """Replaces each process's sums of loss terms by their mean over processes, which is that of the whole batches."""
        if self.fabric.world_size > 1:
            self.sums = {name: sum_over_processes(self.sums[name]) / self.fabric.world_size for name in sorted(self.sums)}

    def _save(self) -> None:
        last = self.progress.step == self.total_steps or self._out_of_patience()
        if self.fabric.world_size == 1 and not last and time.monotonic() < self.saved_at + self.checkpoint_pause:
            return  # processes that train together must agree when to save, and their clocks do not
        self._share_sums()
        if self.checkpoint is not None and self.fabric.is_global_zero:
            save_checkpoint(self.checkpoint, self.progress, self.model, self.optimiser, {**self.kept, "sums": self.sums})
        self.saved_at = time.monotonic()
