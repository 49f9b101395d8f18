"""Rows on scoring, from raw images on the device to one score per image, beside the textbook's way to do it."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.findings import CLASSES, FEATURES, Check, Figure, Findings, Setting, Target
from benchmarks.timing import Work, take_turns, work_of
from besnn.baselines import SoftmaxClassifier
from besnn.detection.scores import scores_for
from besnn.layers import BatchEnsembleLinear, batch_ensemble, tile
from besnn.model import BESNN, InferenceNetwork, OODClassifier, Preprocessing

MEMBERS = 4


@torch.no_grad()
def besnn_model(setting: Setting, members: int = MEMBERS, samples: int = 64) -> BESNN:
    """Return an untrained BE-SNN for FashionMNIST, which is as fast as a trained one.

    Its class means are the features of some images, far apart from each other, so that scores differ as a trained model's do.
    """
    torch.manual_seed(0)
    model = BESNN(setting.network(), CLASSES, FEATURES, members, samples=samples).to(setting.device).eval()
    model.feature_extractor.get_parameter("head.2.weight").mul_(6)
    model.class_mean = model.features(preprocessing_for(setting)(images_for(setting, CLASSES)))
    model.class_spread = torch.full_like(model.class_mean[..., 0], 0.1)
    return model


def softmax_model(setting: Setting) -> SoftmaxClassifier:
    """Return an untrained softmax network."""
    return SoftmaxClassifier(setting.network(), CLASSES, FEATURES).to(setting.device).eval()


def preprocessing_for(setting: Setting) -> Preprocessing:
    """Return the preprocessing with FashionMNIST's mean and standard deviation."""
    return Preprocessing((1, 28, 28), torch.tensor([73.0]), torch.tensor([90.0])).to(setting.device)


def images_for(setting: Setting, count: int) -> Tensor:
    """Return images of random pixels, `[count, 1, 28, 28]`."""
    return torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8).to(setting.device)


class Entropy(nn.Module):
    """One softmax network or several, `[batch, ...]` → logits, scored by the entropy of the mean prediction."""

    def __init__(self, *networks: nn.Module) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """Return the predictive entropy, `[batch]`."""
        probabilities = torch.stack([network(x).softmax(-1) for network in self.networks]).mean(0)
        return _entropy(probabilities)


class TextbookBatchEnsemble(nn.Module):
    """BatchEnsemble as in its paper: the input is tiled, and every layer scales its input and its output."""

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__()
        self.network, self.members = network, members

    def forward(self, x: Tensor) -> Tensor:
        """Return the predictive entropy, `[batch]`."""
        logits: Tensor = self.network(tile(x, self.members))
        probabilities = logits.unflatten(0, (self.members, -1)).softmax(-1).mean(0)
        return _entropy(probabilities)


class NaiveBESNN(nn.Module):
    """BE-SNN as in its paper: the input is tiled, class features are drawn anew, and distances go to each of them."""

    def __init__(self, model: BESNN) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return the tempered entropy, `[batch]`."""
        features, samples = self.model.features(x), self.model.class_features()
        differences = features[:, :, None, None] - samples[:, None]  # [members, batch, classes, samples, d]
        distances = differences.square().sum(-1).mean(-1)
        tempered = -distances * torch.exp(-distances.amin(-1, keepdim=True))
        return _entropy(tempered.softmax(-1).mean(0))


def _entropy(probabilities: Tensor) -> Tensor:
    each: Tensor = torch.special.entr(probabilities)
    return each.sum(-1)


class AsUsersScore(nn.Module):
    """Scores a batch by the method's own score, as a detector does."""

    def __init__(self, model: OODClassifier, setting: Setting) -> None:
        super().__init__()
        self.network = InferenceNetwork(model, preprocessing_for(setting))
        self.weights = self.network.extractors
        self.score: Callable[[Tensor], Tensor] = scores_for(model.evidence_kind)[model.default_score]

    def forward(self, raw: Tensor) -> Tensor:
        """Score raw images: `[batch, ...]` → `[batch]`."""
        evidence, _ = self.network(raw)
        return self.score(evidence)


class Eager(nn.Module):
    """Runs a network as is usual: the trained modules in evaluation mode."""

    def __init__(self, network: nn.Module, setting: Setting) -> None:
        super().__init__()
        self.preprocessing, self.weights = preprocessing_for(setting), network.to(setting.device).eval()

    def forward(self, raw: Tensor) -> Tensor:
        """Score raw images: `[batch, ...]` → `[batch]`."""
        scores: Tensor = self.weights(self.preprocessing(raw))
        return scores


Score = AsUsersScore | Eager


def _with_head(setting: Setting) -> nn.Module:
    return nn.Sequential(setting.network(), nn.Linear(FEATURES, CLASSES))


@torch.inference_mode()
def score_many(setting: Setting) -> Findings:
    """Time a batch of images scored by BE-SNN, and by what one would otherwise run."""
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
    """Time a single image, where launching kernels costs more than running them."""
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
    """Time scoring as the number of class features grows; only their moments are kept, so it should not."""
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
    """Time scoring as the ensemble grows; what members share is done once."""
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
    # Operations are counted first: a CUDA graph that is replayed shows none.
    floors = {key: floor_of(_on(run, raw), run.weights, raw, setting) for key, run in runs.items()}
    passes = {str(key): _on(run, raw) for key, run in runs.items()}
    timings = take_turns(passes, setting.device, setting.rounds, setting.warm_up, setting.burst)
    return Findings([Figure(work, key[0], key[1], timings[str(key)], floors[key], key[2]) for key in runs])


def floor_of(run: Callable[[], object], weights: nn.Module, raw: Tensor, setting: Setting) -> float:
    """Return the least seconds of a pass: its operations, or reading each weight and each pixel once."""
    size = sum(weight.numel() for weight in [*weights.parameters(), *weights.buffers()])
    counted = work_of(run, raw)
    return Work(counted.flops, counted.bytes + size * setting.products.itemsize).floor(setting.rates)


def _on(run: Score, raw: Tensor) -> Callable[[], Tensor]:
    return lambda: run(raw)


def _equals_plain_model(work: str, model: BESNN, fast: AsUsersScore, raw: Tensor, setting: Setting) -> Check:
    """Compare distances with those of the unfolded model in float64; the error is the largest relative one."""
    precise = copy.deepcopy(model).double()
    x = preprocessing_for(setting)(raw).double()
    expected = torch.cat([precise(part) for part in x.split(50)], dim=1)
    error = float((fast.network(raw)[0] / expected - 1).abs().max())
    return Check(work, "distances of the unfolded model in float64", error, 1e-4 if setting.products == torch.float32 else 5e-2)
