"""Scores against float64 oracles, at the extremes, and under the compilers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import logsumexp, softmax
from scipy.stats import entropy

from besnn.detection import scores_for
from besnn.detection.scores import mutual_information, softmax_entropy, tempered_entropy
from besnn.errors import InputError

KINDS = ("distances", "logits", "log-likelihoods")
ALL = [pytest.param(kind, name, id=f"{kind}/{name}") for kind in KINDS for name in scores_for(kind)]
MEMBERS, BATCH, CLASSES = 3, 50, 5


def evidence_of(kind: str, seed: int = 0) -> torch.Tensor:
    values = np.random.default_rng(seed).gamma(1.0, 4.0, (MEMBERS, BATCH, CLASSES))
    return torch.from_numpy(values if kind == "distances" else -values)


def oracle(kind: str, name: str, evidence: np.ndarray) -> np.ndarray:
    """Every score once more, as its formula reads, in NumPy and SciPy."""
    logits = -evidence if kind == "distances" else evidence
    probabilities = softmax(logits, axis=-1)
    match name:
        case "tempered-entropy":
            xi = -evidence / np.exp(evidence.min(-1, keepdims=True))
            return entropy(softmax(xi, axis=-1).mean(0), axis=-1)
        case "softmax-entropy" | "predictive-entropy":
            return entropy(probabilities.mean(0), axis=-1)
        case "kernel-confidence":
            return -np.exp(-evidence).mean(0).max(-1)
        case "smallest-distance":
            return evidence.mean(0).min(-1)
        case "mutual-information":  # as the mean divergence of the members from their mean
            return entropy(probabilities, probabilities.mean(0, keepdims=True), axis=-1).mean(0)
        case "max-softmax-probability":
            return -probabilities.mean(0).max(-1)
        case "max-logit":
            return -logits.max(-1).mean(0)
        case "generalised-entropy":
            p = probabilities.mean(0)
            return ((p * (1 - p)) ** 0.1).sum(-1)
        case "energy":
            return -logsumexp(logits, axis=-1).mean(0)
        case "negative-log-likelihood":
            return -np.log(np.exp(evidence).mean(0)).max(-1)
    raise AssertionError(name)


@pytest.mark.parametrize(("kind", "name"), ALL)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 2e-6)])
def test_equals_its_formula(kind: str, name: str, dtype: torch.dtype, tolerance: float) -> None:
    evidence = evidence_of(kind).to(dtype)
    score = scores_for(kind)[name](evidence)
    assert score.dtype == torch.promote_types(dtype, torch.float32)
    np.testing.assert_allclose(score, oracle(kind, name, evidence.double().numpy()), rtol=tolerance, atol=tolerance)


EXTREMES = st.sampled_from([0.0, 1e-30, 1.0, 1e4, 1e30, 3e38, math.inf]) | st.floats(0, 200, width=32)


@pytest.mark.parametrize(("kind", "name"), ALL)
@settings(max_examples=40)
@given(values=arrays(np.float32, (2, 3, 4), elements=EXTREMES))
def test_is_never_nan(kind: str, name: str, values: np.ndarray) -> None:
    evidence = torch.from_numpy(values)
    signed = [evidence] if kind == "distances" else [evidence, -evidence, torch.where(evidence > 1, -evidence, evidence)]
    for case in signed:
        assert not scores_for(kind)[name](case).isnan().any()


@pytest.mark.parametrize("value", [1e4, 1e38, math.inf])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_tempered_entropy_of_far_inputs_is_log_classes(value: float, dtype: torch.dtype) -> None:
    far = torch.full((2, 1, 7), value).to(dtype)
    torch.testing.assert_close(tempered_entropy(far), torch.tensor([math.log(7)]), check_dtype=False)


@pytest.mark.parametrize("nearest", [0.0, 1e-30])
def test_tempered_entropy_of_a_sure_input_is_zero(nearest: float) -> None:
    distances = torch.tensor([[[nearest, 1e4, math.inf]]])
    assert tempered_entropy(distances).item() == 0.0


def test_tempered_entropy_rises_smoothly_with_distance() -> None:
    away = torch.linspace(0, 30, 500, dtype=torch.float64)
    distances = torch.stack([away, away + 3], dim=-1)[None]
    score = tempered_entropy(distances)
    assert (score.diff() > -1e-15).all()
    assert score.diff().max() < 0.05
    assert score[-1].item() == pytest.approx(math.log(2))


@given(values=arrays(np.float32, (3, 4, 5), elements=EXTREMES))
def test_entropies_keep_their_ranges(values: np.ndarray) -> None:
    distances = torch.from_numpy(values)
    for score in (tempered_entropy, softmax_entropy):
        assert ((score(distances) >= 0) & (score(distances) <= math.log(5) + 1e-7)).all()
    disagreement = mutual_information(distances)
    assert ((disagreement >= 0) & (disagreement <= math.log(3) + 1e-6)).all()


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_stays_within_each_input(kind: str, name: str) -> None:
    evidence, score = evidence_of(kind), scores_for(kind)[name]
    one_by_one = torch.cat([score(evidence[:, [row]]) for row in range(BATCH)])
    torch.testing.assert_close(score(evidence), one_by_one, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(score(evidence.flip(0)), score(evidence), rtol=1e-12, atol=1e-12)
    assert score(evidence[:, :0]).shape == (0,)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_exports_with_a_dynamic_batch(kind: str, name: str) -> None:
    class Scorer(torch.nn.Module):
        def forward(self, evidence: torch.Tensor) -> torch.Tensor:
            return scores_for(kind)[name](evidence)

    batch = torch.export.Dim("batch")
    program = torch.export.export(Scorer(), (evidence_of(kind),), dynamic_shapes=({1: batch},))
    other = evidence_of(kind, seed=1)[:, :17]
    torch.testing.assert_close(program.module()(other), Scorer()(other))


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_compiles_into_one_graph(kind: str, name: str) -> None:
    score = scores_for(kind)[name]
    compiled = torch.compile(score, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(evidence_of(kind)), score(evidence_of(kind)))


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_refuses_what_is_not_evidence(kind: str, name: str) -> None:
    for wrong in (torch.zeros(2, 3), torch.zeros(2, 3, 4, dtype=torch.long), torch.full((1, 1, 2), math.nan), [[[1.0]]]):
        with pytest.raises(InputError):
            scores_for(kind)[name](wrong)  # type: ignore[arg-type]


def test_refuses_an_unknown_kind() -> None:
    with pytest.raises(InputError, match=r"'votes'.*'logits'"):
        scores_for("votes")


def test_the_registry_cannot_be_changed_from_outside() -> None:
    scores_for("logits").clear()
    assert scores_for("logits")
