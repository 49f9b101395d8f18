"""What every method owes the trainer, the detector and the evaluation: the same tests for all, the BE-SNN included."""

import copy
import math
from typing import Any

import pytest
import torch
from sklearn.datasets import make_blobs
from torch import Tensor, nn

from besnn.detection import scores_for
from besnn.errors import InputError
from besnn.model import OODClassifier

CLASSES, FEATURES, BATCH = 3, 16, 12


def blobs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three round classes, 3 away from the origin and 5.2 from each other, with a spread of 0.5."""
    angles = torch.arange(CLASSES) * 2 * math.pi / CLASSES
    centres = 3 * torch.stack([angles.cos(), angles.sin()], dim=1)
    points, labels = make_blobs(count, centers=centres.numpy(), cluster_std=0.5, random_state=seed)
    return torch.from_numpy(points).float(), torch.from_numpy(labels).long()


def extractor() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, FEATURES))


def build(method: Any, seed: int = 0) -> OODClassifier:
    torch.manual_seed(seed)
    model: OODClassifier = method.build(extractor, CLASSES, FEATURES)
    return model


@pytest.fixture(scope="module")
def trained(method: Any) -> OODClassifier:
    model = build(method)
    method.fit(model, *blobs(1200, seed=1), epochs=10, batch=60)
    return model


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return blobs(BATCH, seed=2)


def test_speaks_the_protocol(method: Any, batch: tuple[Tensor, Tensor]) -> None:
    model = build(method)
    x, _ = batch
    assert (model.method, model.members, model.num_classes) == (method.name, method.members, CLASSES)
    assert model.default_score in scores_for(model.evidence_kind)
    features = model.features(x)
    evidence = model.evidence(features)
    assert features.shape == (method.members, BATCH, FEATURES)
    assert all(extractor in set(model.modules()) for extractor in model.extractors())
    assert evidence.shape == model(x).shape == (method.members, BATCH, CLASSES)
    log_probabilities = model.log_probabilities(evidence)
    assert log_probabilities.shape == (BATCH, CLASSES)
    torch.testing.assert_close(log_probabilities.exp().sum(dim=1), torch.ones(BATCH))


def test_learns(method: Any, trained: OODClassifier) -> None:
    x, labels = blobs(600, seed=3)
    predicted = trained.log_probabilities(trained(x)).argmax(dim=1)
    assert (predicted == labels).float().mean() > 0.98


@torch.no_grad()
def test_scores_are_finite_near_and_far(trained: OODClassifier) -> None:
    x, _ = blobs(50, seed=3)
    for inputs in (x, 1e3 * x, torch.zeros_like(x)):
        for name, score in scores_for(trained.evidence_kind).items():
            assert score(trained(inputs)).isfinite().all(), name


@torch.no_grad()
def test_far_inputs_score_as_strange(trained: OODClassifier) -> None:
    if trained.evidence_kind == "logits":
        pytest.skip("a softmax of linear outputs grows surer with distance")
    score = scores_for(trained.evidence_kind)[trained.default_score]
    ordinary = score(trained(blobs(600, seed=3)[0])).quantile(0.95)
    angles = torch.linspace(0, 2 * math.pi, 400)
    ring = 30 * torch.stack([angles.cos(), angles.sin()], dim=1)
    assert (score(trained(ring)) > ordinary).float().mean() > 0.95


@torch.no_grad()
def test_is_a_function_of_its_input_once_classes_are_frozen(trained: OODClassifier, batch: tuple[Tensor, Tensor]) -> None:
    x, _ = batch
    evidence = trained(x)
    assert torch.equal(trained(x), evidence)
    one_by_one = torch.cat([trained(row[None]) for row in x], dim=1)
    torch.testing.assert_close(one_by_one, evidence, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_state_dict_round_trip(method: Any, trained: OODClassifier, batch: tuple[Tensor, Tensor]) -> None:
    x, _ = batch
    other = build(method, seed=7).eval()
    assert not torch.equal(other(x), trained(x))
    other.load_state_dict(trained.state_dict())
    assert torch.equal(other(x), trained(x))


def test_terms_are_scalars_that_reach_every_parameter(method: Any, batch: tuple[Tensor, Tensor]) -> None:
    model = build(method)
    x, labels = batch
    terms = method.objective(model, x, labels)
    assert all(term.shape == () and term.isfinite() for term in terms.values())
    sum(terms.values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert not x.requires_grad


def test_factors_scale_and_skip_terms(method: Any, batch: tuple[Tensor, Tensor]) -> None:
    model = build(method)

    def terms(**factors: float) -> dict[str, Tensor]:
        torch.manual_seed(0)
        result: dict[str, Tensor] = method.objective(model, *batch, factors=factors)
        return result

    whole = terms()
    for name in whole:
        assert terms(**{name: 0.0}).keys() == whole.keys() - {name}
        torch.testing.assert_close(terms(**{name: 3.0})[name], 3 * whole[name])
    with pytest.raises(InputError, match="'nonsense'"):
        terms(nonsense=1.0)


def test_a_skipped_penalty_costs_no_second_backward(method: Any, batch: tuple[Tensor, Tensor]) -> None:
    model = build(method)
    if "gradient" not in method.objective(model, *batch):
        pytest.skip("has no gradient penalty")
    watched: list[bool] = []
    first_layer = next(module for module in model.modules() if isinstance(module, nn.Linear))
    first_layer.register_forward_hook(lambda module, inputs, output: watched.append(inputs[0].requires_grad))
    method.objective(model, *batch, factors={"gradient": 0.0})
    method.objective(model, *batch)
    assert watched == [False, True]


def test_runs_in_float64(method: Any, batch: tuple[Tensor, Tensor]) -> None:
    model = build(method).double()
    x, labels = batch[0].double(), batch[1]
    sum(method.objective(model, x, labels).values()).backward()
    model.after_step(x, labels)
    model.eval()
    model.freeze_classes()
    assert model(x).dtype == torch.float64
    single = copy.deepcopy(model).float()
    torch.testing.assert_close(single(x.float()).double(), model(x), rtol=1e-4, atol=1e-4)


def test_after_step_leaves_modes_and_gradients_alone(method: Any, batch: tuple[Tensor, Tensor]) -> None:
    model = build(method)
    sum(method.objective(model, *batch).values()).backward()
    before = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.after_step(*batch)
    assert all(module.training for module in model.modules())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, before[name])  # type: ignore[arg-type]
    assert not any(buffer.requires_grad for buffer in model.buffers())


def test_exports_with_a_dynamic_batch(trained: OODClassifier) -> None:
    x, _ = blobs(20, seed=5)
    program = torch.export.export(trained, (x[:8],), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    for inputs in (x, x[:1]):
        torch.testing.assert_close(program.module()(inputs), trained(inputs))


@pytest.mark.parametrize("wrong", [torch.full((4, 2), math.nan), torch.zeros(4, 2, dtype=torch.long), torch.zeros(2)])
def test_refuses_wrong_inputs(method: Any, wrong: Tensor) -> None:
    with pytest.raises(InputError):
        build(method).features(wrong)


@pytest.mark.parametrize("wrong", [torch.full((BATCH,), CLASSES), torch.full((BATCH,), -1), torch.zeros(BATCH - 1).long()])
def test_refuses_wrong_labels(method: Any, batch: tuple[Tensor, Tensor], wrong: Tensor) -> None:
    with pytest.raises(InputError, match="label"):
        method.objective(build(method), batch[0], wrong)


def test_refuses_an_extractor_of_another_width(method: Any, batch: tuple[Tensor, Tensor]) -> None:
    model = method.build(lambda: nn.Sequential(nn.Linear(2, FEATURES + 1)), CLASSES, FEATURES)
    with pytest.raises(InputError, match=rf"feature_dim={FEATURES}"):
        model.features(batch[0])


@pytest.mark.parametrize(("classes", "features"), [(0, FEATURES), (CLASSES, 0), (2.0, FEATURES)])
def test_refuses_impossible_sizes(method: Any, classes: int, features: int) -> None:
    with pytest.raises(InputError, match=r"whole number"):
        method.build(extractor, classes, features)
