"""Scoring: from raw images on the device to one score an image."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.peers import Entropy, NaiveBESNN, TextbookBatchEnsemble
from benchmarks.results import Check, Figure, Findings, Target
from benchmarks.roofline import Work, work_of
from benchmarks.setting import CLASSES, FEATURES, Setting
from benchmarks.timing import take_turns
from besnn.baselines import SoftmaxClassifier
from besnn.detection.scores import scores_for
from besnn.layers import BatchEnsembleLinear, batch_ensemble
from besnn.model import BESNN, InferenceNetwork, OODClassifier, Preprocessing

MEMBERS = 4


@torch.no_grad()
def besnn_model(setting: Setting, members: int = MEMBERS, samples: int = 64) -> BESNN:
    """An untrained BE-SNN for FashionMNIST: weights don't matter to the clock.

    Its classes stand where the features of some images lie, and these far apart, so that scores differ as a trained model's do.
    """
    torch.manual_seed(0)
    model = BESNN(setting.network(), CLASSES, FEATURES, members, samples=samples).to(setting.device).eval()
    model.feature_extractor.get_parameter("head.2.weight").mul_(6)
    model.class_mean = model.features(preprocessing_for(setting)(images_for(setting, CLASSES)))
    model.class_spread = torch.full_like(model.class_mean[..., 0], 0.1)
    return model


def softmax_model(setting: Setting) -> SoftmaxClassifier:
    """An untrained softmax network."""
    return SoftmaxClassifier(setting.network(), CLASSES, FEATURES).to(setting.device).eval()


def preprocessing_for(setting: Setting) -> Preprocessing:
    """FashionMNIST's mean and spread."""
    return Preprocessing((1, 28, 28), torch.tensor([73.0]), torch.tensor([90.0])).to(setting.device)


def images_for(setting: Setting, count: int) -> Tensor:
    """Random pixels, `[count, 1, 28, 28]`."""
    return torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8).to(setting.device)


class AsUsersScore(nn.Module):
    """What a detector runs to score a batch by the method's own score."""

    def __init__(self, model: OODClassifier, setting: Setting) -> None:
        super().__init__()
        self.network = InferenceNetwork(model, preprocessing_for(setting))
        self.weights = self.network.extractors
        self.score: Callable[[Tensor], Tensor] = scores_for(model.evidence_kind)[model.default_score]

    def forward(self, raw: Tensor) -> Tensor:
        """Raw images `[batch, ...]` → scores `[batch]`."""
        evidence, _ = self.network(raw)
        return self.score(evidence)


class Eager(nn.Module):
    """A network as it is mostly run: in evaluation mode, as it was trained."""

    def __init__(self, network: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.preprocessing, self.weights = preprocessing_for(setting), network.to(setting.device).eval()

    def forward(self, raw: Tensor) -> Tensor:
        """Raw images `[batch, ...]` → scores `[batch]`."""
        scores: Tensor = self.weights(self.preprocessing(raw))
        return scores


Score = AsUsersScore | Eager


def _with_head(setting: Setting) -> nn.Module:
    return nn.Sequential(setting.network(), nn.Linear(FEATURES, CLASSES))


@torch.inference_mode()
def score_many(setting: Setting) -> Findings:
    """A batch of images by BE-SNN, and by what a user would otherwise run."""
    work, raw = f"score {setting.images} images", images_for(setting, setting.images)
    model = besnn_model(setting)
    fast = AsUsersScore(model, setting)
    ensemble = nn.Sequential(
        batch_ensemble(setting.network(), MEMBERS), BatchEnsembleLinear(FEATURES, CLASSES, members=MEMBERS)
    )
    runs: dict[tuple[str, str, int], Score] = {
        ("be-snn", "besnn", MEMBERS): fast,
        ("softmax", "eager", 1): Eager(Entropy(_with_head(setting)), setting),
        ("softmax", "by besnn", 1): AsUsersScore(softmax_model(setting), setting),
        ("deep-ensemble", "eager", MEMBERS): Eager(Entropy(*(_with_head(setting) for _ in range(MEMBERS))), setting),
        ("batch-ensemble", "textbook", MEMBERS): Eager(TextbookBatchEnsemble(ensemble, MEMBERS), setting),
        ("be-snn", "naive", MEMBERS): Eager(NaiveBESNN(besnn_model(setting)), setting),
    }
    findings = _time(work, runs, raw, setting)
    own = findings.seconds(work, "be-snn", "besnn")
    deep, softmax = (findings.seconds(work, method, "eager") for method in ("deep-ensemble", "softmax"))
    findings.targets += [
        Target(work, "time over a deep ensemble's", own / deep, 0.8),
        Target(work, "time over one softmax network's", own / softmax, 1.0 if setting.device.type == "cuda" else 3.6),
    ]
    if setting.device.type == "cuda":
        findings.targets.append(Target(work, "milliseconds", 1e3 * own, 0.60))
    findings.checks.append(_equals_plain_model(work, model, fast, raw, setting))
    return findings


@torch.inference_mode()
def score_one(setting: Setting) -> Findings:
    """A single image, where launching work costs more than doing it."""
    work, raw = "score one image", images_for(setting, 1)
    model = besnn_model(setting)
    fast = AsUsersScore(model, setting)
    runs: dict[tuple[str, str, int], Score] = {
        ("be-snn", "besnn", MEMBERS): fast,
        ("softmax", "by besnn", 1): AsUsersScore(softmax_model(setting), setting),
        ("softmax", "eager", 1): Eager(Entropy(_with_head(setting)), setting),
    }
    findings = _time(work, runs, raw, setting)
    ratio = findings.seconds(work, "be-snn") / findings.seconds(work, "softmax", "by besnn")
    if setting.device.type == "cuda":
        findings.targets.append(Target(work, "time over one softmax network's, run the same way", ratio, 1.5))
    findings.checks.append(_equals_plain_model(work, model, fast, raw, setting))
    return findings


@torch.inference_mode()
def score_by_samples(setting: Setting) -> Findings:
    """As the number of class features grows: it is the moments that are kept, so nothing does."""
    work, raw = f"score {setting.images} images as M grows", images_for(setting, setting.images)
    runs: dict[tuple[str, str, int], Score] = {}
    for samples in setting.samples:
        model = besnn_model(setting, samples=samples)
        model.freeze_classes(samples)
        runs["be-snn", f"M = {samples}", MEMBERS] = AsUsersScore(model, setting)
    findings = _time(work, runs, raw, setting)
    few, many = (findings.seconds(work, "be-snn", f"M = {samples}") for samples in setting.samples)
    findings.targets.append(Target(work, f"time with M = {setting.samples[1]} over M = {setting.samples[0]}", many / few, 1.05))
    return findings


@torch.inference_mode()
def score_by_members(setting: Setting) -> Findings:
    """As the ensemble grows: what members share is done once."""
    work, raw = f"score {setting.images} images as N grows", images_for(setting, setting.images)
    runs: dict[tuple[str, str, int], Score] = {
        ("be-snn", f"N = {members}", members): AsUsersScore(besnn_model(setting, members), setting)
        for members in setting.ensemble_sizes
    }
    findings = _time(work, runs, raw, setting)
    first, *_, last = (figure.timing.seconds / figure.members for figure in findings.figures)
    claim = f"a member's time with N = {setting.ensemble_sizes[-1]} over N = {setting.ensemble_sizes[0]}"
    findings.targets.append(Target(work, claim, last / first, 1.0))
    return findings


def _time(work: str, runs: dict[tuple[str, str, int], Score], raw: Tensor, setting: Setting) -> Findings:
    # Counted first: a network that is replayed on a GPU shows no operations any more.
    floors = {key: floor_of(_on(run, raw), run.weights, raw, setting) for key, run in runs.items()}
    passes = {str(key): _on(run, raw) for key, run in runs.items()}
    timings = take_turns(passes, setting.device, setting.rounds, setting.warm_up, setting.burst)
    return Findings([Figure(work, key[0], key[1], timings[str(key)], floors[key], key[2]) for key in runs])


def floor_of(run: Callable[[], object], weights: nn.Module, raw: Tensor, setting: Setting) -> float:
    """Seconds for the operations of a pass, or for reading each weight and each pixel once."""
    size = sum(weight.numel() for weight in [*weights.parameters(), *weights.buffers()])
    counted = work_of(run, raw)
    return Work(counted.flops, counted.bytes + size * setting.products.itemsize).floor(setting.rates)


def _on(run: Score, raw: Tensor) -> Callable[[], Tensor]:
    return lambda: run(raw)


def _equals_plain_model(work: str, model: BESNN, fast: AsUsersScore, raw: Tensor, setting: Setting) -> Check:
    """The largest relative error of a distance against the model as it was trained, in double precision."""
    precise = copy.deepcopy(model).double()
    x = preprocessing_for(setting)(raw).double()
    expected = torch.cat([precise(part) for part in x.split(50)], dim=1)
    error = float((fast.network(raw)[0] / expected - 1).abs().max())
    return Check(work, "distances of the unfolded model in float64", error, 1e-4 if setting.products == torch.float32 else 5e-2)
