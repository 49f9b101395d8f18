"""Wrap trained softmax networks: every score on the OOD sets, and what wrapping and scoring cost.

The network is that of Table 1. Half of the images that are held out from its training choose the score, together with outliers
made up from them; the other half set the threshold.
"""

import importlib.util
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from besnn import wrap
from besnn.baselines import SoftmaxClassifier
from besnn.detector import Detector
from besnn.evaluation import ood_metrics
from besnn.model import WrappedNetwork
from besnn.training.batches import open_source
from besnn.training.fit import Fitted
from besnn.wrapping import FoundLayers, ScoreFit, find_layers
from experiments.detection import accuracy_of, official_test_set
from experiments.runs import Measured, Run, Workspace, reproduction_recipe, task_of

WRAPPED = "wrapped"
NEAR = {"cifar10": ("cifar100-sample",)}
BATCH, IMAGES, ROUNDS = 512, 500, 20

Scores = dict[str, NDArray[np.float32]]


def wrapped_runs(in_name: str, seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """Return a run of a plain softmax network for every seed, which `measure_wrapped` wraps afterwards.

    >>> [run.name for run in wrapped_runs("cifar10", seeds=[0])]
    ['cifar10-softmax-wrapped-seed0']
    """
    unknown = (*task_of(in_name).unknown, *NEAR.get(in_name, ()))
    return [Run(WRAPPED, reproduction_recipe(in_name, "softmax", seed, overrides), unknown, WRAPPED) for seed in seeds]


def measure_wrapped(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    """Wrap the network, and measure accuracy, every score on every OOD set, and seconds."""
    network, plain, split = plain_network(fitted), fitted.detector, fitted.split
    assert split.validation is not None
    began = time.perf_counter()
    detector = wrap(network, split.training, held_out=split.validation, preprocessing=plain.preprocessing)
    seconds = _synchronised(detector.device) - began
    examples = plain.preprocessing(torch.from_numpy(split.validation.inputs[:16]).to(plain.device))
    found = find_layers(network, examples)
    every = Detector(WrappedNetwork(network, len(plain.class_names)), plain.preprocessing, plain.class_names)
    ScoreFit(every, found, open_source(split.training, torch.device("cpu")), split.validation.inputs).fit()
    others = _pytorch_ood(every, found, fitted)
    sets = {name: official_test_set(name, run, workspace) for name in (run.in_name, *run.unknown)}
    measured = {
        name: every.scores(data.inputs) | {other: score(data.inputs) for other, score in others.items()}
        for name, data in sets.items()
    }
    known = measured.pop(run.in_name)
    scores = {name: {out: ood_metrics(known[name], of_out[name]) for out, of_out in measured.items()} for name in known}
    fields: dict[str, object] = {
        "accuracy": accuracy_of(detector, sets[run.in_name]),
        "default_score": detector.scoring.name,
        "layers": list(found.names),
        "false_alarms": float(detector.predict(sets[run.in_name].inputs).is_ood.mean()),
        "score_choice": detector.provenance["score_choice"],
        "scores": scores,
        "wrapping": {"seconds": seconds, "images": len(split.training)}
        | _costs(detector, network, split.validation.inputs, len(split.training)),
    }
    return Measured(fields, list(sets.values()))


def plain_network(fitted: Fitted) -> nn.Module:
    """Return the trained network as one module from prepared images to logits."""
    model = fitted.detector.model
    assert isinstance(model, SoftmaxClassifier)
    return nn.Sequential(OrderedDict(body=model.feature_extractor, head=model.head)).eval()


@torch.inference_mode()
def _costs(detector: Detector, network: nn.Module, images: NDArray[Any], training: int) -> dict[str, float]:
    """Time one forward pass over as many images as were wrapped, and scoring 500 images with and without the detector."""
    raw = torch.from_numpy(np.resize(images, (BATCH, *images.shape[1:]))).to(detector.device)

    def bare(batch: torch.Tensor) -> None:
        network(detector.preprocessing(batch))

    inputs = raw[:IMAGES].cpu().numpy()
    one = _seconds(lambda: bare(raw), detector.device)
    plain = _seconds(lambda: bare(torch.from_numpy(inputs).to(detector.device)), detector.device)
    scoring = _seconds(lambda: detector.score(inputs), detector.device)
    return {"pass_seconds": one * training / BATCH, "bare_seconds_500": plain, "scoring_seconds_500": scoring}


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the median time of some work."""
    times = []
    for _ in range(ROUNDS):
        began = _synchronised(device)
        work()
        times.append(_synchronised(device) - began)
    return float(np.median(times[ROUNDS // 4 :]))


def _synchronised(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _pytorch_ood(
    detector: Detector, found: FoundLayers, fitted: Fitted
) -> dict[str, Callable[[NDArray[Any]], NDArray[np.float32]]]:
    """Return the scores of pytorch-ood's detectors on the features that go into the classifier, where it is installed."""
    if importlib.util.find_spec("pytorch_ood") is None or found.head is None or found.features is None:
        return {}
    from pytorch_ood import detector as theirs

    def features(inputs: Any) -> torch.Tensor:
        return torch.cat([rows[0].cpu() for _, rows in detector.outputs(inputs, found.features)])

    training = fitted.split.training
    rows, labels = features(training.inputs), torch.as_tensor(training.labels)  # type: ignore[union-attr]
    weight, bias = (value.detach().cpu() for value in found.head)
    fits = {
        "knn": theirs.KNN(None, k=min(50, len(rows))).to("cpu"),
        "vim": theirs.ViM(None, rows.shape[1] // 2, weight, bias).to("cpu"),
        "mahalanobis": theirs.Mahalanobis(None).to("cpu"),
    }
    fitted_scores = {f"pytorch-ood {name}": each.fit_features(rows, labels).predict_features for name, each in fits.items()}
    fitted_scores["pytorch-ood energy"] = lambda z: theirs.EnergyBased.score(z @ weight.T + bias)
    return {name: lambda inputs, score=score: score(features(inputs)).numpy() for name, score in fitted_scores.items()}  # type: ignore[misc]
