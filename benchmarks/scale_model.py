"""What scoring a thousand million images, or training on a set of ImageNet's size, would take: a model on paper.

Every stage of a run has a cost an item and a number of things that share it; the slowest stage sets the pace. Costs are
measured by benchmarks/scale_costs.py. A GPU's are of images 28×28. They are carried over to larger networks by the number of
multiplications, at the same share of the GPU's peak: larger networks use more of it, so these are upper bounds.
benchmarks/scale_page.py writes what comes of it into docs/scale.md.
"""

from dataclasses import dataclass
from typing import Any

MEMBERS = 4
CONVNET = 18.8e6
"""Multiplications of one member of the FashionMNIST network for one image, 28×28."""

RESNET18, RESNET18_PARAMETERS, FEATURES = 1.82e9, 11.7e6, 512
"""The same for ResNet-18 at 224×224; its parameters; the length of its features."""

# A cluster of the kind one rents; nobody measured these.
CORES_PER_GPU = 16
STORAGE = 20e9  # bytes a second, of all machines together
NETWORK = 50e9  # bytes a second between machines, of each GPU

IMAGES, CHUNK, ARRAY_BYTES = 1_000_000_000, 16_384, 784
IMAGENET, EPOCHS, BATCH = 1_281_167, 90, 128


@dataclass(frozen=True)
class Stage:
    """A part of the work.

    Attributes:
        name: what it is.
        seconds: an item, for one of those that share it.
        shared_by: how many those are.
        lane: stages of one lane wait for each other, those of different lanes overlap.
        phase: a phase begins when the one before it is over.
    """

    name: str
    seconds: float
    shared_by: float = 1
    lane: str = ""
    phase: int = 1

    def hours(self, items: float) -> float:
        """For so many items."""
        return items * self.seconds / self.shared_by / 3600


def slowest(stages: list[Stage]) -> str:
    """The name of the stage that a run waits for."""
    return max(stages, key=lambda stage: stage.hours(1)).name


def hours_of_run(stages: list[Stage], items: float) -> float:
    """All phases, each as long as its longest lane."""
    lanes: dict[tuple[int, str], float] = {}
    for stage in stages:
        key = stage.phase, stage.lane or stage.name
        lanes[key] = lanes.get(key, 0.0) + stage.hours(items)
    return sum(max(hours for (phase, _), hours in lanes.items() if phase == each) for each in {phase for phase, _ in lanes})


@dataclass(frozen=True)
class Costs:
    """Measured seconds and bytes an item, see benchmarks/scale_costs.py.

    Attributes:
        core: of one core.
        driver: of the process that drives a run on Ray.
        gpu: of one GPU.
    """

    core: dict[str, Any]
    driver: dict[str, Any]
    gpu: dict[str, Any]

    def score(self, multiplications: float) -> float:
        """Seconds of a GPU for an image."""
        return float(self.gpu["score_small"] * multiplications / CONVNET)

    def train(self, penalty_every: int | None) -> float:
        """Seconds of a GPU for a photo in training, with the gradient penalty in every so many steps (None: in none)."""
        plain, penalised = self.gpu["train_small_without_penalty"], self.gpu["train_small"]
        share = 0.0 if penalty_every is None else 1 / penalty_every
        return float((plain + share * (penalised - plain)) * RESNET18 / CONVNET)

    def scoring_stages(self, kind: str, gpus: int, listers: int = 1) -> list[Stage]:
        """What an image (`photo`, `small` or `array`) goes through to be scored, with so many folders at a time."""
        cores = gpus * CORES_PER_GPU
        multiplications = RESNET18 if kind == "photo" else CONVNET
        image_bytes = ARRAY_BYTES if kind == "array" else self.core[f"{kind}_bytes"]
        stages = [
            Stage("GPU", self.score(multiplications), gpus),
            Stage("storage", image_bytes / STORAGE),
            Stage("writing", self.core["write_row"], cores),
            Stage("driver", self.driver["chunk"] / CHUNK, listers),
        ]
        if kind == "array":  # a reader a GPU
            return [*stages, Stage("reading", self.core["read_array"], gpus)]
        # Once to know the input, and once more to read it.
        listing = Stage("listing", self.core["list_file"], listers, phase=0)
        again = Stage("listing again", self.core["list_file"], listers)
        return [listing, again, *stages, Stage("decoding", self.core[f"decode_{kind}"], cores)]

    def training_stages(self, gpus: int, penalty_every: int | None) -> list[Stage]:
        """What a photo goes through in training; what is done once a step is shared out among the step's photos."""
        batch = gpus * BATCH
        flops = 2 * MEMBERS * CONVNET / self.gpu["score_small"]  # what the GPU reached
        gradients = 2 * (gpus - 1) / gpus * 4 * RESNET18_PARAMETERS / NETWORK
        neighbours = 2 * MEMBERS * batch**2 * FEATURES / flops  # every process looks at the whole batch's features
        return [
            Stage("GPU", self.train(penalty_every), gpus),
            Stage("gradients", gradients / batch, lane="GPU"),
            Stage("entropy", neighbours / batch, lane="GPU"),
            Stage("decoding", self.core["decode_photo"], gpus * CORES_PER_GPU),
            Stage("storage", self.core["photo_bytes"] / STORAGE),
        ]
