"""Row on the nearest-neighbour density: distances from a batch of features to all stored ones."""

from collections.abc import Callable

import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from torch.nn import functional as F

from benchmarks.findings import Check, Figure, Findings, Setting, Target
from benchmarks.timing import Work, take_turns
from besnn.detection import NearestNeighbourDensity
from besnn.detection.densities.nearest_neighbour import decode_rows

MEMBERS, DIMENSIONS, NEIGHBOUR, CHECKED = 4, 512, 20, 50


@torch.inference_mode()
def find_neighbours(setting: Setting) -> Findings:
    """Time scoring by the k-th nearest stored feature, on a CPU beside scikit-learn's brute force."""
    work = f"{setting.queries:,} features against {setting.stored:,} stored, {DIMENSIONS} dimensions"
    torch.manual_seed(0)
    known, queries = like_features(setting.stored, setting.device), like_features(setting.queries, setting.device)
    density = NearestNeighbourDensity(k=NEIGHBOUR).fit(known)
    runs: dict[str, Callable[[], object]] = {"besnn": lambda: density.score(queries)}
    on_cpu = setting.device.type == "cpu"
    if on_cpu:
        brute = [NearestNeighbors(n_neighbors=NEIGHBOUR, algorithm="brute").fit(rows) for rows in _stored(density).float()]
        directions = F.normalize(queries, dim=-1).numpy()
        runs["scikit-learn"] = lambda: [each.kneighbors(part) for each, part in zip(brute, directions, strict=True)]
    rounds = min(setting.rounds, 3) if on_cpu else setting.rounds
    timings = take_turns(runs, setting.device, rounds, warm_up=1)
    least = Work(2.0 * MEMBERS * DIMENSIONS * setting.stored * setting.queries, 4.0 * (known.numel() + queries.numel()))
    floors = {name: least.floor(setting.rates) for name in runs}
    if on_cpu:
        del floors["besnn"]  # it multiplies numbers of 8 or 16 bits; the machine's rate is for 32
    figures = [Figure(work, "nearest-neighbour", name, timing, floors.get(name), MEMBERS) for name, timing in timings.items()]
    own = timings["besnn"].seconds
    target = (
        Target(work, "time over scikit-learn's brute force", own / timings["scikit-learn"].seconds, 0.2)
        if on_cpu
        else Target(work, "milliseconds", 1e3 * own, 30.0)
    )
    return Findings(figures, [target], [_check(work, density, queries)])


def like_features(count: int, device: torch.device) -> Tensor:
    """Return features like those of networks: non-negative, clustered, with far fewer directions than dimensions."""
    basis = torch.Generator().manual_seed(0)
    centres = torch.randn(MEMBERS, 10, DIMENSIONS, generator=basis)
    directions = torch.randn(MEMBERS, 24, DIMENSIONS, generator=basis) / 5
    noise = torch.randn(MEMBERS, count, 24)
    features = centres[:, torch.arange(count) % 10] + noise @ directions + 0.05 * torch.randn(MEMBERS, count, DIMENSIONS)
    return features.relu().to(device)


def _stored(density: NearestNeighbourDensity) -> Tensor:
    """Return the rows that a density compares with, of unit length, in float64."""
    state = density.state()
    return F.normalize(decode_rows(state["codes"], state["scale"]), dim=-1).double()


def _check(work: str, density: NearestNeighbourDensity, queries: Tensor) -> Check:
    """Compare the scores of some queries with all distances in float64; the error is the largest one."""
    few = queries[:, :CHECKED]
    stored, directions = _stored(density).to(few.device), F.normalize(few, dim=-1).double()
    squared = torch.stack([torch.cdist(q, r).square() for q, r in zip(directions, stored, strict=True)])
    expected = (squared.kthvalue(density.k, dim=-1).values / 2).mean(0)
    error = float((density.score(few).double() - expected).abs().max())
    return Check(work, "all distances in float64", error, 1e-5)
