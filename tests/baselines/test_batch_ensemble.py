"""BatchEnsemble against its members written out, and how it treats the extractor it is given."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from besnn.baselines import BatchEnsembleClassifier, BatchEnsembleObjective, SoftmaxClassifier
from besnn.errors import InputError
from besnn.layers import MemberBatchNorm1d, fold, members_of, random_sign

MEMBERS, CLASSES, FEATURES = 3, 4, 5


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, FEATURES))


@torch.no_grad()
def test_equals_its_members_written_out() -> None:
    torch.manual_seed(0)
    model = BatchEnsembleClassifier(network(), CLASSES, FEATURES, MEMBERS).double().eval()
    x = torch.randn(7, 6, dtype=torch.float64)
    features = fold(model.feature_extractor)(x).unflatten(0, (MEMBERS, -1))
    torch.testing.assert_close(model.features(x), features)
    probabilities = torch.zeros(7, CLASSES, dtype=torch.float64)
    for member in range(MEMBERS):
        bias = model.head.bias[member]  # type: ignore[index]
        logits = features[member] @ model.head.member_weights()[member].T + bias
        torch.testing.assert_close(model(x)[member], logits)
        probabilities += logits.softmax(dim=1) / MEMBERS
    torch.testing.assert_close(model.log_probabilities(model(x)).exp(), probabilities)


def test_converts_a_plain_extractor() -> None:
    plain = network()
    model = BatchEnsembleClassifier(plain, CLASSES, FEATURES, MEMBERS, norm="member", init=random_sign())
    assert members_of(plain) is None
    assert any(isinstance(module, MemberBatchNorm1d) for module in model.modules())
    assert model.head.r.abs().eq(1).all()


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4 * MEMBERS, 6, dtype=torch.float64, generator=generator)
    return x, torch.randint(0, CLASSES, (4 * MEMBERS,), generator=generator)


@pytest.mark.parametrize("norm", ["shared", "member"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_own_inputs_by_hand(norm: str, smoothing: float, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = BatchEnsembleClassifier(network(), CLASSES, FEATURES, MEMBERS, norm).double()  # type: ignore[arg-type]
    x, labels = batch
    first, _, _, second = model.feature_extractor  # type: ignore[misc]
    hidden = [x[n::MEMBERS] @ first.member_weights()[n].T + first.bias[n] for n in range(MEMBERS)]
    whole = F.batch_norm(torch.cat(hidden), None, None, training=True).chunk(MEMBERS)
    loss = torch.zeros((), dtype=torch.float64)
    for n in range(MEMBERS):
        normal = whole[n] if norm == "shared" else F.batch_norm(hidden[n], None, None, training=True)
        features = normal.relu() @ second.member_weights()[n].T + second.bias[n]
        logits = features @ model.head.member_weights()[n].T + model.head.bias[n]  # type: ignore[index]
        loss += F.cross_entropy(logits, labels[n::MEMBERS], label_smoothing=smoothing) / MEMBERS
    terms = BatchEnsembleObjective(smoothing, own_inputs=True)(model, x, labels, {"classification": 3.0})
    torch.testing.assert_close(terms, {"classification": 3 * loss})


def test_without_own_inputs_it_is_the_cross_entropy_of_the_model(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model = BatchEnsembleClassifier(network(), CLASSES, FEATURES, MEMBERS).double()
    x, labels = batch
    expected = sum(F.cross_entropy(logits, labels) for logits in model(x)) / MEMBERS
    torch.testing.assert_close(BatchEnsembleObjective()(model, x, labels)["classification"], expected)
    assert BatchEnsembleObjective()(model, x, labels, {"classification": 0.0}) == {}


def test_refuses_a_batch_that_members_cannot_share(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model = BatchEnsembleClassifier(network(), CLASSES, FEATURES, MEMBERS).double()
    x, labels = batch
    with pytest.raises(InputError, match="cannot split 11 inputs among 3 members"):
        BatchEnsembleObjective(own_inputs=True)(model, x[:11], labels[:11])
    with pytest.raises(InputError, match="NaN or infinite"):
        BatchEnsembleObjective(own_inputs=True)(model, x / 0, labels)


def test_the_objective_is_for_its_own_model() -> None:
    plain = SoftmaxClassifier(network(), CLASSES, FEATURES)
    with pytest.raises(InputError, match="the model is a SoftmaxClassifier: this objective is for a BatchEnsembleClassifier"):
        BatchEnsembleObjective()(plain, torch.rand(4, 6), torch.zeros(4, dtype=torch.int64))
