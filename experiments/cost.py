"""What the methods cost: Table 2 (parameters and forward time), and time and memory to train and to score."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import torch
from lightning.fabric import Fabric
from torch import Tensor

from benchmarks.documents import Table
from benchmarks.timing import EnoughError, StepClock, take_turns
from besnn.data import Dataset, available, load
from besnn.model import InferenceNetwork, OODClassifier, Preprocessing
from besnn.model.inference import GPU_TYPE
from besnn.training import Recipe, RunOptions, Trainer, build_method
from besnn.training.batches import ArraySource
from besnn.training.device import make_fabric
from besnn.training.record import hardware, model_fields, provenance, read_record, write_record
from besnn.training.split import split_data
from experiments.records import Record, Setting, of_experiment
from experiments.runs import Run, Task, Workspace, reproduction_recipe, task_of

TABLE_2, COST = "table2", "cost"
IMAGES = 500
PRECISION = str(GPU_TYPE).removeprefix("torch.")  # of products on a GPU; a CPU computes them in float32


def time_methods(
    in_name: str,
    methods: Sequence[str],
    workspace: Workspace,
    *,
    overrides: Sequence[str] = (),
    rounds: int = 50,
) -> list[Run]:
    """Time one forward pass of 500 images of each method, in turns, and write a record of each.

    What is timed is what a detector runs: from raw images on the device to the evidence for each class, see
    `besnn.model.InferenceNetwork`. Speed does not depend on the weights, so nothing is trained. `seconds` is the median.
    """
    task = task_of(in_name)
    device = make_fabric("tf32", workspace.accelerator).device
    # The paper's table is about FashionMNIST; rows about other data say so.
    where = hardware(device) if in_name == "fashion-mnist" else f"{hardware(device)}, {in_name}"
    runs = [Run(TABLE_2, reproduction_recipe(in_name, method, 0, overrides), variant=where) for method in methods]
    models = [_untrained_model(run.recipe, task).to(device) for run in runs]
    images = torch.randint(0, 256, (IMAGES, *task.input_shape), dtype=torch.uint8).to(device)
    with torch.inference_mode():
        passes = {run.name: _forward_pass(model, images) for run, model in zip(runs, models, strict=True)}
        timings = take_turns(passes, device, rounds, burst=10 if device.type == "cuda" else 1)
    for run, model in zip(runs, models, strict=True):
        fields = {
            "experiment": run.experiment,
            "variant": run.variant,
            "in": run.in_name,
            "images": IMAGES,
            "precision": PRECISION if device.type == "cuda" else "fp32",
            **asdict(timings[run.name]),
            **model_fields(model, run.recipe),
            "provenance": provenance({}, device),
        }
        write_record(workspace.record(run), fields)
    return runs


def _untrained_model(recipe: Recipe, task: Task) -> OODClassifier:
    classes = next(len(info.class_names) for info in available() if info.name == task.name)
    model, _ = build_method(recipe, task.input_shape, classes)
    model.eval()
    model.freeze_classes()
    return model


def _forward_pass(model: OODClassifier, images: Tensor) -> Callable[[], object]:
    channels = images.shape[1]
    preprocessing = Preprocessing(tuple(images.shape[1:]), torch.zeros(channels), torch.ones(channels))
    network = InferenceNetwork(model, preprocessing).to(images.device)
    return lambda: network(images)


class Stopwatch(StepClock):
    """Times a number of training steps after as many others, in which CUDA graphs are recorded."""

    def __init__(self, steps: int, device: torch.device) -> None:
        super().__init__(device, every=steps, windows=2)

    @property
    def seconds_per_step(self) -> float:
        """The mean time of the timed steps."""
        _, begin, end = self.marks
        return (end - begin) / self.every

    def seconds(self, total: int) -> float:
        """Return the time of so many steps: the first ones as measured, the others at the pace of the timed ones."""
        start, begin, _ = self.marks
        return begin - start + (total - self.every) * self.seconds_per_step


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
    """Measure every method by its recipe and write a record of each.

    Nothing is trained to the end. The time to train is that of the first steps and of the recipe's other steps at the pace of
    some real training steps with all terms of the objective. `pretraining` is timed by itself, and its time is in the sum;
    memory is that of the training after it. The time to score is Table 2's.
    `steps` is a multiple of `training.gradient_every`, so that the timed steps include their share of penalties.
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
    """Return the fields of a record that some training steps and one scoring pass give."""
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
    """Return the model after the timed steps, its preprocessing, and the number of steps of the whole recipe."""
    source = ArraySource(dataset, fabric.device)
    preprocessing = Preprocessing.fit(source.sample())
    model, objective = build_method(recipe, preprocessing.input_shape, len(dataset.class_names))
    per_epoch = len(source) // min(recipe.batch_size, len(source))
    total = recipe.training.epochs * per_epoch
    # the timed steps may be more than a recipe shortened for a trial has
    epochs = max(recipe.training.epochs, -(-2 * watch.every // per_epoch))
    changes = {"epochs": epochs, "ramps": {}}  # terms that begin later are timed too
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
    """Yield a list that afterwards holds the peak of bytes that the process held on a GPU; None elsewhere."""
    peak: list[int | None] = [None]
    if device.type != "cuda":
        yield peak
        return
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    yield peak
    peak[0] = torch.cuda.max_memory_reserved(device)


def cost_table(records: Sequence[Record]) -> Table:
    """Return the table of costs."""
    rows = []
    for record in sorted(of_experiment(records, COST), key=lambda record: (record.in_name, record.variant, record.method)):
        name = Setting(COST, record.in_name, record.method, record.members).description
        figures = (
            f"{record.parameters:,}",
            f"{record.seconds:.0f}",
            _gibibytes(record.training_bytes),
            f"{1e3 * record.score_seconds:.2f}",
            _gibibytes(record.score_bytes),
        )
        rows.append((record.in_name, name, record.variant, *figures))
    scoring = ("500 images, ms", "its memory, GiB")
    header = ("Trained on", "Method", "Hardware", "Parameters", "Training, s", "its memory, GiB", *scoring)
    note = (
        "All methods on one kind of hardware are measured in one run. Training: the first steps, compiling included, and all "
        "others at the pace of some dozens. Memory: the most that the process held on the device, data included."
    )
    return Table("Cost of the methods", header, rows, note)


def _gibibytes(size: int | None) -> str:
    return "—" if size is None else f"{size / 2**30:.2f}"
