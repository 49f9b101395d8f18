"""Rows on all that users run, from raw pixels or files to a decision, beside what else there is."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.findings import CLASSES, FEATURES, Check, Figure, Findings, Setting, Target
from benchmarks.scoring import (
    MEMBERS,
    AsUsersScore,
    Eager,
    Entropy,
    floor_of,
    images_for,
    preprocessing_for,
    softmax_model,
)
from benchmarks.timing import take_turns
from besnn.batch import IMAGE_ROWS, score_file
from besnn.data import Dataset, ImageSpec, stream
from besnn.detector import Detector
from besnn.training.examples import keep_examples

SHIPPED = Path(__file__).parent.parent / "models" / "fashion-mnist.safetensors"
STORED = 10_000  # training features that pytorch-ood's detectors see, as many as the shipped detector keeps
SIDE = 96  # of the JPEG files in a folder
SINGLE = 100  # times as many rounds for single images, so that the slowest of a hundred is seen

Key = tuple[str, str, int]


def decide_many(setting: Setting) -> Findings:
    """Time decisions about a batch of images, beside the network alone and beside other libraries."""
    work, raw = f"decide about {setting.images} images", images_for(setting, setting.images).cpu()
    detector = Detector.load(SHIPPED).to(setting.device)
    runs, weights = _runs(detector, setting, raw)
    labels = np.arange(setting.images) % CLASSES
    keep_examples(detector, Dataset(raw.numpy(), labels, detector.class_names, "images"))
    runs["be-snn", "explained, without heat maps", MEMBERS] = lambda: detector.explain(raw, heat_map=False)
    peers, left_out = other_libraries(setting, raw)
    findings = _time(work, runs | peers, weights, raw, setting, setting.rounds)
    own = findings.seconds(work, "be-snn", "decision")
    ratios = {
        "the paper's score alone": (findings.seconds(work, "be-snn", "paper's score"), 1.25),
        "the eager softmax network alone": (findings.seconds(work, "softmax", "eager"), 1.0),
        **{f"{name} ({library})": (findings.seconds(work, name, library), 1.0) for name, library, _ in peers},
    }
    findings.targets += [Target(work, f"time over {name}", own / seconds, most) for name, (seconds, most) in ratios.items()]
    explained = findings.seconds(work, "be-snn", "explained, without heat maps")
    findings.targets.append(Target(work, "time of explanations over it", explained / own, 2.0))
    findings.checks.append(_is_what_the_parts_give(work, detector, raw))
    findings.left_out += left_out
    return findings


def decide_one(setting: Setting) -> Findings:
    """Time decisions about single images, the slowest of a hundred included."""
    work, raw = "decide about one image", images_for(setting, 1).cpu()
    runs, weights = _runs(Detector.load(SHIPPED).to(setting.device), setting, raw)
    findings = _time(work, runs, weights, raw, setting, SINGLE * setting.rounds)
    own, softmax = (
        next(figure.timing for figure in findings.figures if (figure.method, figure.variant) == names)
        for names in (("be-snn", "decision"), ("softmax", "eager"))
    )
    if setting.device.type == "cuda":
        findings.targets.append(Target(work, "milliseconds, median", 1e3 * own.seconds, 0.35))
    else:
        findings.targets.append(Target(work, "time over the eager softmax network alone", own.seconds / softmax.seconds, 2.0))
        findings.targets.append(Target(work, "the same, 99th percentiles", own.p99 / softmax.p99, 2.0))
    return findings


def score_folder(setting: Setting) -> Findings:
    """Time `besnn score` over a folder of JPEG files, beside its halves: reading them, and deciding about them."""
    work, rng = f"score a folder of {setting.files:,} JPEGs", np.random.default_rng(0)
    detector = Detector.load(SHIPPED).to(setting.device)
    channels, *size = detector.input_shape
    spec = ImageSpec(size[0], channels=channels)
    with tempfile.TemporaryDirectory() as name:
        folder, output = Path(name) / "folder", Path(name) / "scores.parquet"
        folder.mkdir()
        for number in range(setting.files):
            pixels = rng.integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((SIDE, SIDE)).save(folder / f"{number:06}.jpg")
        batches = [batch.inputs for batch in stream(str(folder), image=spec, batch_size=IMAGE_ROWS)]
        runs: dict[Key, Callable[[], object]] = {
            ("be-snn", "besnn score", MEMBERS): lambda: score_file(detector, str(folder), output),
            ("be-snn", "reading alone", MEMBERS): lambda: list(stream(str(folder), image=spec, batch_size=IMAGE_ROWS)),
            ("be-snn", "deciding alone", MEMBERS): lambda: [detector.predict(batch) for batch in batches],
        }
        findings = _time(work, runs, {}, torch.zeros(()), setting, min(setting.rounds, 5))
    whole, *halves = (figure.timing.seconds for figure in findings.figures)
    findings.targets.append(Target(work, "time over the slower half's", whole / max(halves), 1 / 0.85))
    return findings


def _runs(detector: Detector, setting: Setting, raw: Tensor) -> tuple[dict[Key, Callable[[], object]], dict[Key, nn.Module]]:
    """Return what besnn and a plain network run, and the weights that each reads."""
    network = nn.Sequential(setting.network(), nn.Linear(FEATURES, CLASSES))
    scorers: dict[Key, AsUsersScore | Eager] = {
        ("softmax", "eager", 1): Eager(Entropy(network), setting),
        ("softmax", "by besnn", 1): AsUsersScore(softmax_model(setting), setting),
    }
    runs: dict[Key, Callable[[], object]] = {
        ("be-snn", "decision", MEMBERS): lambda: detector.predict(raw),
        ("be-snn", "paper's score", MEMBERS): lambda: detector.score(raw, detector.model.default_score),
    }
    runs |= {key: _scored(scorer, raw, setting.device) for key, scorer in scorers.items()}
    return runs, dict.fromkeys(runs, detector.model) | {key: scorer.weights for key, scorer in scorers.items()}


def _scored(scorer: Callable[[Tensor], Tensor], raw: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """Return a pass from raw images of the host to scores there, as a decision needs them."""

    @torch.inference_mode()
    def run() -> Tensor:
        return scorer(raw.to(device)).cpu()

    return run


def other_libraries(setting: Setting, raw: Tensor) -> tuple[dict[Key, Callable[[], object]], list[str]]:
    """Return the detectors of pytorch-ood on a softmax network and torch-uncertainty's BatchEnsemble, if they are installed."""
    runs: dict[Key, Callable[[], object]] = {}
    left_out = []
    preprocessing = preprocessing_for(setting)

    def run(scorer: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
        return _scored(lambda images: scorer(preprocessing(images)), raw, setting.device)

    try:
        from pytorch_ood.detector import KNN, ViM
    except ImportError:
        left_out.append("decisions by pytorch-ood: it is not installed")
    else:
        encoder, head = setting.network().to(setting.device).eval(), nn.Linear(FEATURES, CLASSES).to(setting.device)
        known = preprocessing(images_for(setting, min(STORED, setting.stored)))
        loader: Any = DataLoader(TensorDataset(known, torch.arange(len(known)) % CLASSES), batch_size=500)
        knn, vim = KNN(encoder, k=20, algorithm="brute"), ViM(encoder, FEATURES // 2, head.weight, head.bias)
        for name, peer in {"nearest-neighbour": knn, "vim": vim}.items():
            runs[name, "pytorch-ood", 1] = run(peer.fit(loader).predict)
    try:
        from torch_uncertainty.layers import BatchConv2d, BatchLinear
        from torch_uncertainty.methods import BatchEnsemble
    except ImportError:
        left_out.append("decisions by torch-uncertainty: it is not installed")
    else:
        network = nn.Sequential(setting.network(), nn.Linear(FEATURES, CLASSES))
        for module in list(network.modules()):  # its own conversion takes no networks with modules inside modules
            for name, layer in list(module.named_children()):
                if isinstance(layer, nn.Conv2d):
                    setattr(module, name, BatchConv2d.from_conv2d(layer, MEMBERS))
                elif isinstance(layer, nn.Linear):
                    setattr(module, name, BatchLinear.from_linear(layer, MEMBERS))
        ensemble = BatchEnsemble(network, MEMBERS).to(setting.device).eval()
        runs["batch-ensemble", "torch-uncertainty", MEMBERS] = run(ensemble)
    return runs, left_out


def _time(
    work: str,
    runs: dict[Key, Callable[[], object]],
    weights: dict[Key, nn.Module],
    raw: Tensor,
    setting: Setting,
    rounds: int,
) -> Findings:
    floors = {key: floor_of(runs[key], module, raw, setting) for key, module in weights.items()}
    timings = take_turns({str(key): run for key, run in runs.items()}, setting.device, rounds, setting.warm_up)
    return Findings([Figure(work, key[0], key[1], timings[str(key)], floors.get(key), key[2]) for key in runs])


def _is_what_the_parts_give(work: str, detector: Detector, raw: Tensor) -> Check:
    """Count the decisions that differ from comparing the exact scores of single images with the threshold."""
    scores = torch.cat([torch.from_numpy(detector.score(image[None])) for image in raw[:50]])
    assert detector.threshold is not None
    wrong = detector.threshold.is_ood(scores).numpy() != detector.predict(raw[:50]).is_ood
    return Check(work, "decisions about single images", float(wrong.mean()), 0.0)
