"""What the methods cost: time and memory to train, time and memory to score 500 images, parameters; all in one run."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from lightning.fabric import Fabric

from benchmarks.timing import synchronise
from besnn.data import Dataset, load
from besnn.model import InferenceNetwork, OODClassifier, Preprocessing
from besnn.training import Recipe, RunOptions, Trainer, build_method
from besnn.training.batches import ArraySource
from besnn.training.device import make_fabric
from besnn.training.progress import Reporter
from besnn.training.record import hardware, model_fields, provenance, read_record, write_record
from besnn.training.split import split_data
from experiments.runs import Run, Workspace, reproduction_recipe
from experiments.table2 import IMAGES, time_methods

COST = "cost"


class EnoughError(Exception):
    """Ends training when its steps were timed."""


class Stopwatch(Reporter):
    """Times a window of training steps, and as many before it, in which CUDA graphs are recorded; then ends training.

    Args:
        steps: how many to time.
        device: where training goes on.
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        self.steps, self.device = steps, device
        self.taken = 0
        self.marks: list[float] = []

    def start(self, done: int, total: int) -> None:
        """Starts the clock."""
        self.marks.append(time.perf_counter())

    def step(self) -> None:
        """Looks at the clock at both ends of the window."""
        self.taken += 1
        if self.taken % self.steps == 0:
            synchronise(self.device)
            self.marks.append(time.perf_counter())
        if len(self.marks) == 3:
            raise EnoughError

    @property
    def seconds_per_step(self) -> float:
        """On average over the window."""
        _, begin, end = self.marks
        return (end - begin) / self.steps

    def seconds(self, total: int) -> float:
        """Of so many steps: the first ones as they were, and the others at the pace of the window."""
        start, begin, _ = self.marks
        return begin - start + (total - self.steps) * self.seconds_per_step


def measure_cost(
    in_name: str,
    methods: Sequence[str],
    workspace: Workspace,
    *,
    overrides: Sequence[str] = (),
    steps: int = 48,
    rounds: int = 50,
    say: Callable[[str], None] = print,
) -> list[Run]:
    """Measures every method by its recipe and writes a record of each.

    Nothing is trained to the end: the time to train is that of the first steps, compiling included, and of the recipe's other
    steps at the pace of a window of real training steps, with all terms of the objective at work. `pretraining` has a window of
    its own, and its time is in the sum; memory is that of the training behind it. The time to score is Table 2's.

    Args:
        in_name: the benchmark.
        methods: which methods.
        workspace: where to read and write, and what to run on.
        overrides: to every recipe.
        steps: the window, a multiple of `training.gradient_every`, so that it holds its share of penalties.
        rounds: scoring passes of each method.
        say: told of each record.

    Returns:
        The methods as runs, by whose names the records are called.
    """
    training = load(in_name, split="train", data_dir=workspace.data_dir)
    scoring = time_methods(in_name, methods, workspace, overrides=overrides, rounds=rounds)
    runs = []
    for method, timed in zip(methods, scoring, strict=True):
        recipe = reproduction_recipe(in_name, method, 0, overrides)
        fabric = make_fabric(recipe.training.precision, workspace.accelerator)
        run = Run(COST, recipe, variant=hardware(fabric.device))
        learnt_from = split_data(training, recipe.data, recipe.training.seed).training
        assert isinstance(learnt_from, Dataset)
        fields = {
            "experiment": COST,
            "variant": run.variant,
            "in": in_name,
            "images": IMAGES,
            "score_seconds": read_record(workspace.record(timed))["seconds"],
            **_train_and_score(recipe, learnt_from, fabric, steps),
            "provenance": provenance(training.hashes, fabric.device),
        }
        write_record(workspace.record(run), fields)
        say(f"wrote {workspace.record(run)}")
        runs.append(run)
    return runs


def _train_and_score(recipe: Recipe, dataset: Dataset, fabric: Fabric, steps: int) -> dict[str, object]:
    """The fields of a record that a window of training and one pass of scoring give."""
    before = 0.0
    if recipe.pretraining is not None:
        watch = Stopwatch(steps, fabric.device)
        *_, total = _train(recipe.plain(), dataset, fabric, watch)
        before = watch.seconds(total)
    watch = Stopwatch(steps, fabric.device)
    with _peak_memory(fabric.device) as training_bytes:
        model, preprocessing, total = _train(recipe, dataset, fabric, watch)
    with _peak_memory(fabric.device) as score_bytes:
        _score(model, preprocessing, fabric.device)
    return {
        "seconds": before + watch.seconds(total),
        "pretraining_seconds": before,
        "seconds_per_step": watch.seconds_per_step,
        "steps": total,
        "training_bytes": training_bytes[0],
        "score_bytes": score_bytes[0],
        **model_fields(model, recipe),
    }


def _train(recipe: Recipe, dataset: Dataset, fabric: Fabric, watch: Stopwatch) -> tuple[OODClassifier, Preprocessing, int]:
    """The model after the window, its preprocessing, and how many steps the whole recipe takes."""
    source = ArraySource(dataset, fabric.device)
    preprocessing = Preprocessing.fit(source.sample())
    model, objective = build_method(recipe, preprocessing.input_shape, len(dataset.class_names))
    per_epoch = len(source) // min(recipe.batch_size, len(source))
    total = recipe.training.epochs * per_epoch
    # a window may be longer than a recipe that was cut short for a trial
    epochs = max(recipe.training.epochs, -(-2 * watch.steps // per_epoch))
    changes = {"epochs": epochs, "ramps": {}}  # terms that come in later are at work in the window too
    long_enough = recipe.model_copy(update={"training": recipe.training.model_copy(update=changes)})
    with contextlib.suppress(EnoughError):
        Trainer(long_enough, model, objective, preprocessing, fabric, RunOptions(reporter=watch)).fit(source)
    return model, preprocessing, total


@torch.inference_mode()
def _score(model: OODClassifier, preprocessing: Preprocessing, device: torch.device) -> None:
    network = InferenceNetwork(model.eval(), preprocessing).to(device)
    network(torch.zeros(IMAGES, *preprocessing.input_shape, dtype=torch.uint8, device=device))


@contextlib.contextmanager
def _peak_memory(device: torch.device) -> Iterator[list[int | None]]:
    """A list that holds, afterwards, the most bytes that the process held on a GPU meanwhile; None elsewhere."""
    peak: list[int | None] = [None]
    if device.type != "cuda":
        yield peak
        return
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    yield peak
    peak[0] = torch.cuda.max_memory_reserved(device)
