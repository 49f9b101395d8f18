"""The trainer: one loop for all methods, on Lightning Fabric.

Everything random in a step (its batch, augmentation, class features) is drawn from a seed that is a function of the recipe's
seed and the step. So a run needs no random state to continue from a checkpoint, and continues to the same weights.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from besnn.errors import BesnnError, InputError
from besnn.model import Objective, OODClassifier, Preprocessing
from besnn.objective.batches import share_buffers, sum_over_processes
from besnn.recipe.config import Recipe
from besnn.storage.files import remove_partials
from besnn.storage.tensor_file import Tensors
from besnn.training.augmentation import augment
from besnn.training.batches import ArraySource, Source
from besnn.training.checkpoint import Progress, average_weights, checkpoint_in, load_checkpoint, save_checkpoint
from besnn.training.device import GraphedStep, Step, Terms, keep_freed_memory, set_memory_format
from besnn.training.progress import Reporter, Row, RunLog
from besnn.training.schedule import build_optimiser, learning_rate_factor, set_learning_rate, term_factors

WEIGHTS, ORDER, AUGMENTATION, OBJECTIVE = range(4)
"""What a run draws at random; see `derive_seed`."""


def derive_seed(seed: int, drawn: int, *place: int) -> int:
    """Mix a run's seed, what is drawn and where in the run into a seed for torch: the path to that place has no influence."""
    words = np.random.SeedSequence([seed, drawn, *place]).generate_state(1, np.uint64)
    return int(words[0]) >> 1  # torch's seeds are signed


def epoch_order(size: int, seed: int, epoch: int, weights: Tensor | None = None) -> Tensor:
    """Return an epoch's order of inputs, a permutation `[size]` that depends on the seed and the epoch alone.

    With weights `[size]` an input occurs in proportion to its own, rounded up or down at random (systematic sampling).
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, ORDER, epoch))
    order = torch.randperm(size, generator=generator)
    if weights is None:
        return order
    heap = weights[order].double().cumsum(0)
    evenly = (torch.arange(size) + torch.rand(1, generator=generator)) * heap[-1] / size
    drawn = order[torch.searchsorted(heap, evenly).clamp_max(size - 1)]
    return drawn[torch.randperm(size, generator=generator)]


@contextmanager
def preserve_random_state(device: torch.device) -> Iterator[None]:
    """Restore torch's random state on exit: training seeds it, and the caller's random numbers must not change."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


class LossModule(nn.Module):
    """A model whose forward pass returns the loss terms: what Fabric wraps to average gradients over processes."""

    def __init__(self, model: OODClassifier, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, x: Tensor, labels: Tensor, factors: Mapping[str, float]) -> dict[str, Tensor]:
        """Return the weighted terms of a batch."""
        return self.objective(self.model, x, labels, factors)


@dataclass(frozen=True)
class RunOptions:
    """How a run is carried out. None of these options changes the trained weights.

    Attributes:
        run_folder: where checkpoints and logs go, a folder for this run alone; None to write nothing.
        resume: continue from the checkpoint in the run folder, if there is one.
        reporter: receives progress and messages.
        checkpoint_every: steps between checkpoints; one more is written at the end of each epoch.
        checkpoint_pause: the least seconds between checkpoints when a single process trains; sooner ones are skipped, except
            for the last. Writing a large network takes longer than the steps in between.
        plain_networks: a folder that keeps the networks of `pretraining`, for runs that start from the same one.

    >>> options = RunOptions(run_folder=Path("runs/first"), resume=True)
    >>> options.checkpoint_every
    200
    """

    run_folder: Path | None = None
    resume: bool = False
    reporter: Reporter = field(default_factory=Reporter)
    checkpoint_every: int = 200
    checkpoint_pause: float = 10.0
    plain_networks: Path | None = None


@dataclass
class Trainer:
    """One run: `fit` trains the model in place.

    >>> from besnn.data import two_moons
    >>> from besnn.training import build_method, load_recipe, make_fabric
    >>> from besnn.training.batches import open_source
    >>> recipe, data = load_recipe("two-moons", ["training.epochs=1"]), two_moons(64)
    >>> model, objective = build_method(recipe, input_shape=(2,), num_classes=2)
    >>> preprocessing = Preprocessing.fit(torch.from_numpy(data.inputs))
    >>> trainer = Trainer(recipe, model, objective, preprocessing, make_fabric(accelerator="cpu"))
    >>> [row["epoch"] for row in trainer.fit(open_source(data, torch.device("cpu")))]
    [1]
    """

    recipe: Recipe
    model: OODClassifier
    objective: Objective
    preprocessing: Preprocessing
    fabric: Fabric
    options: RunOptions = field(default_factory=RunOptions)
    identity: str = ""  # a digest of recipe and data; a checkpoint with another one is refused
    section: str = "training"  # the section of the recipe that messages name, or `pretraining`

    def fit(self, source: Source, validation: Source | None = None) -> list[Row]:
        """Train to the end of the recipe, possibly from a checkpoint on; return one row of metrics per epoch."""
        self._plan_steps(len(source), validation)
        self._prepare()
        self._open_run_folder()
        reporter, device = self.options.reporter, self.fabric.device
        reporter.start(self.progress.step, self.total_steps)
        try:
            with preserve_random_state(device), keep_freed_memory() if device.type == "cpu" else nullcontext():
                while self.progress.step < self.total_steps and not self._out_of_patience():
                    self._train_epoch(source, validation)
        finally:
            reporter.finish()
            if self.log is not None:
                self.log.close()
        self._take_final_weights()
        return self.progress.history

    def _plan_steps(self, size: int, validation: Source | None) -> None:
        training, shares, processes = self.recipe.training, self.recipe.shares, self.fabric.world_size
        if training.patience is not None and validation is None:
            raise InputError(f"{self.section}.patience needs validation data: set data.validation above 0")
        self.batch_size = min(self.recipe.batch_size, size // shares * shares)
        if not self.batch_size:
            raise InputError(f"cannot split {size} inputs among {shares} members: set method.own_inputs=false")
        self.steps_per_epoch = size // self.batch_size
        epochs = max(training.epochs, math.ceil(training.least_steps / self.steps_per_epoch))
        self.total_steps = epochs * self.steps_per_epoch
        if self.batch_size % (shares * processes):
            among = f"{processes} processes" + (f" of {shares} members each" if shares > 1 else "")
            setting = "batch_size" if training.batch_rows is None else "batch_rows"
            raise InputError(f"cannot split a batch of {self.batch_size} among {among}: change {self.section}.{setting}")

    def _prepare(self) -> None:
        training = self.recipe.training
        self.preprocessing.to(self.fabric.device)
        if training.channels_last or (self.fabric.device.type == "cuda" and training.precision == "bf16"):
            set_memory_format(self.model, torch.channels_last)  # the layout that tensor cores convolve in
        self.model.train()
        optimiser = build_optimiser(self.model, training.optimiser)
        self.loss_module, self.optimiser = self.fabric.setup(LossModule(self.model, self.objective), optimiser)
        graphed = self.fabric.device.type == "cuda" and self.fabric.world_size == 1
        self.fill_gradients: Step = GraphedStep(self._fill_gradients) if graphed else self._fill_gradients
        self.progress = Progress(self.identity)
        self.kept: dict[str, Tensors] = {}  # the best weights so far, or the average
        self.sums: Terms = {}
        self.checkpoint: Path | None = None
        self.began, self.saved_at = time.monotonic(), -math.inf
        self.log: RunLog | None = None

    def _open_run_folder(self) -> None:
        folder, resume = self.options.run_folder, self.options.resume
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self.checkpoint = checkpoint_in(folder)
        if resume and self.checkpoint.exists():
            self.progress, self.kept = load_checkpoint(
                self.checkpoint, self.identity, self.model, self.optimiser, self.fabric.device
            )
            self.sums = self.kept.pop("sums", {})
            self.began -= self.progress.seconds
        if self.fabric.is_global_zero:
            if not resume:
                self.checkpoint.unlink(missing_ok=True)  # another run's: this one must never continue from it
            remove_partials(folder)
            self.log = RunLog(folder, self.progress.history)

    def _train_epoch(self, source: Source, validation: Source | None) -> None:
        epoch, first = divmod(self.progress.step, self.steps_per_epoch)
        weights = source.weights if isinstance(source, ArraySource) else None
        order = epoch_order(len(source), self.recipe.training.seed, epoch, weights)
        order = order[: self.steps_per_epoch * self.batch_size]
        # [steps, processes, rows of a process]: a process takes its share of every batch
        mine = order.view(self.steps_per_epoch, self.fabric.world_size, -1)[first:, self.fabric.global_rank]
        self.model.train()
        for inputs, labels in source.batches(mine.flatten(), mine.shape[1]):
            self._step(inputs, labels)
            if self.progress.step % self.steps_per_epoch and self.progress.step % self.options.checkpoint_every == 0:
                self._save()
        self._finish_epoch(epoch + 1, validation)

    def _step(self, inputs: Tensor, labels: Tensor) -> None:
        training, step = self.recipe.training, self.progress.step
        progress = step / self.total_steps
        self._seed(AUGMENTATION, step, self.fabric.global_rank)
        x = augment(self.preprocessing(inputs), training.augment)
        if training.channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        self._seed(OBJECTIVE, step)  # the same class features in all processes
        set_learning_rate(self.optimiser, learning_rate_factor(training.schedule, progress))
        terms = self.fill_gradients(x, labels, term_factors(training, step, progress))
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
        self.options.reporter.step()

    def _seed(self, drawn: int, *place: int) -> None:
        # torch.manual_seed spends most of a millisecond on devices that are not in use
        seed = torch.default_generator.manual_seed if self.fabric.device.type == "cpu" else torch.manual_seed
        seed(derive_seed(self.recipe.training.seed, drawn, *place))

    def _fill_gradients(self, x: Tensor, labels: Tensor, factors: Mapping[str, float]) -> Terms:
        """Fill the parameters' gradients, in place so that a recorded step finds them again, and return the loss terms."""
        self.optimiser.zero_grad(set_to_none=False)
        terms: Terms = self.loss_module(x, labels, factors)
        if not terms:
            raise InputError(f"no term of the objective is active at first: let {self.section}.ramps start one of them at 0")
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
            reason = f"training diverged in epoch {epoch} (the loss or a weight is not finite)"
            raise BesnnError(f"{reason}: lower {self.section}.optimiser.learning_rate")
        if self.recipe.training.patience is not None:
            self._keep_best(row["validation_loss"], epoch)
        self.sums = {}
        self.progress.history.append(row)
        self.options.reporter.epoch(row)
        self._save()
        if self.log is not None:
            self.log.add(self.progress.history)

    @torch.no_grad()
    def validate(self, source: Source) -> Row:
        """Compute negative log-likelihood and accuracy on held-out data, which processes share among themselves."""
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
            self.kept["best"] = {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _out_of_patience(self) -> bool:
        patience = self.recipe.training.patience
        return patience is not None and len(self.progress.history) - self.progress.best_epoch >= patience

    def _take_final_weights(self) -> None:
        final = self.kept.get("best", self.kept.get("average", {}))
        self.model.load_state_dict(self.model.state_dict() | final)
        set_memory_format(self.model, torch.contiguous_format)
        self.model.eval()

    def _share_sums(self) -> None:
        """Replace each process's sums of loss terms by their mean over processes, which is that of whole batches."""
        if self.fabric.world_size > 1:
            self.sums = {name: sum_over_processes(self.sums[name]) / self.fabric.world_size for name in sorted(self.sums)}

    def _save(self) -> None:
        last = self.progress.step == self.total_steps or self._out_of_patience()
        if self.fabric.world_size == 1 and not last and time.monotonic() < self.saved_at + self.options.checkpoint_pause:
            return  # several processes must agree when to save, and their clocks differ
        self._share_sums()
        self.progress.seconds = time.monotonic() - self.began
        if self.checkpoint is not None and self.fabric.is_global_zero:
            save_checkpoint(self.checkpoint, self.progress, self.model, self.optimiser, {**self.kept, "sums": self.sums})
        self.saved_at = time.monotonic()
