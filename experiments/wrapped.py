"""Wrap trained softmax networks: every score on the OOD sets, and what wrapping and scoring cost.

The network is that of Table 1. Half of the images that are held out from its training choose the score, together with outliers
made up from them; the other half set the threshold. Beside the scores of `besnn.wrap` stands the 50th neighbour among all
training images, as pytorch-ood's `KNN` measures it. Its `ViM`, `Mahalanobis` and `EnergyBased` are scores of besnn, too; tests
hold all four against pytorch-ood.
"""

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
from besnn.detection.densities import LayerDensity, NearestNeighbourDensity
from besnn.detector import Detector
from besnn.evaluation import ood_metrics
from besnn.model import WrappedNetwork
from besnn.training.batches import open_source
from besnn.training.fit import Fitted
from besnn.wrapping import find_layers
from besnn.wrapping.layers import FoundLayers
from besnn.wrapping.scores import ScoreFit
from experiments.detection import accuracy_of, official_test_set
from experiments.runs import Measured, Run, Workspace, reproduction_recipe, task_of

WRAPPED = "wrapped"
NEAR = {"cifar10": ("cifar100-sample",)}
BATCH, IMAGES, ROUNDS = 512, 500, 20
PEER, PEER_NEIGHBOUR = "nearest-neighbour of pytorch-ood", 50


def wrapped_runs(in_name: str, seeds: Iterable[int], overrides: Sequence[str] = ()) -> list[Run]:
    """Return a run of a plain softmax network for every seed, which `measure_wrapped` wraps afterwards.

    >>> [run.name for run in wrapped_runs("cifar10", seeds=[0])]
    ['cifar10-softmax-wrapped-seed0']
    """
    unknown = (*task_of(in_name).unknown, *NEAR.get(in_name, ()))
    changes = ("score.name=energy", *overrides)  # by Table 1's recipe, its record would be taken for this one
    return [Run(WRAPPED, reproduction_recipe(in_name, "softmax", seed, changes), unknown, WRAPPED) for seed in seeds]


def measure_wrapped(fitted: Fitted, run: Run, workspace: Workspace) -> Measured:
    """Wrap the network, and measure accuracy, every score on every OOD set, seconds and bytes."""
    network, plain, split = plain_network(fitted), fitted.detector, fitted.split
    assert split.validation is not None
    began = _synchronised(plain.device)
    detector = wrap(network, split.training, held_out=split.validation, preprocessing=plain.preprocessing)
    seconds = _synchronised(plain.device) - began
    every, found = _every_score(network, fitted)
    sets = {name: official_test_set(name, run, workspace) for name in (run.in_name, *run.unknown)}
    measured = {name: every.scores(data.inputs) for name, data in sets.items()}
    known = measured.pop(run.in_name)
    scores = {name: {out: ood_metrics(known[name], of_out[name]) for out, of_out in measured.items()} for name in known}
    costs = _costs(detector, network, split.validation.inputs, len(split.training))
    fields: dict[str, object] = {
        "accuracy": accuracy_of(detector, sets[run.in_name]),
        "default_score": detector.scoring.name,
        "layers": list(found.names),
        "false_alarms": float(detector.predict(sets[run.in_name].inputs).is_ood.mean()),
        "score_choice": detector.provenance["score_choice"],
        "scores": scores,
        "wrapping": {
            "seconds": seconds,
            "images": len(split.training),
            **costs,
            "density_bytes": tensor_bytes(detector.scoring),
        },
    }
    return Measured(fields, list(sets.values()))


def _every_score(network: nn.Module, fitted: Fitted) -> tuple[Detector, FoundLayers]:
    """Return a detector with all scores, fitted to the same inputs as `wrap` does, and the layers that they look at."""
    plain, split = fitted.detector, fitted.split
    assert split.validation is not None
    found = find_layers(network, plain.preprocessing(torch.from_numpy(split.validation.inputs[:16]).to(plain.device)))
    every = Detector(WrappedNetwork(network, len(plain.class_names)), plain.preprocessing, plain.class_names)
    fit = ScoreFit(every, found, open_source(split.training, torch.device("cpu")), split.validation.inputs)
    fit.fit()
    features, _ = fit.training_features()
    for name, layer in ((PEER, found.features), (f"{PEER} at the last stage", found.stages[-1])):
        if layer is not None:
            columns = fit.columns[layer]
            own = features[..., columns].to(every.scoring_device)
            density = NearestNeighbourDensity(min(PEER_NEIGHBOUR, own.shape[1])).fit(own)
            every.scoring.densities[name] = LayerDensity(density, columns.start, columns.stop - columns.start)
    return every, found


def tensor_bytes(value: object, seen: set[int] | None = None) -> int:
    """Count the bytes of all tensors that an object holds, at any depth.

    >>> tensor_bytes({"a": [torch.zeros(3)], "b": (torch.zeros(2), "text")})
    20
    """
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.nbytes
    named = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    parts = value if isinstance(value, list | tuple) else named.values()
    return sum(tensor_bytes(part, seen) for part in parts)


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
