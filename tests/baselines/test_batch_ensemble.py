"""BatchEnsemble against its members written out, and how it treats the extractor it is given."""

import pytest
import torch
from torch import nn

from besnn.baselines import BatchEnsembleClassifier
from besnn.errors import InputError
from besnn.layers import MemberBatchNorm1d, batch_ensemble, fold, members_of, random_sign

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


def test_keeps_an_extractor_that_is_a_batch_ensemble_already() -> None:
    extractor = batch_ensemble(network(), MEMBERS)
    assert BatchEnsembleClassifier(extractor, CLASSES, FEATURES, MEMBERS).feature_extractor is extractor


def test_converts_a_plain_extractor_as_told() -> None:
    plain = network()
    model = BatchEnsembleClassifier(plain, CLASSES, FEATURES, MEMBERS, norm="member", init=random_sign())
    assert members_of(plain) is None
    assert any(isinstance(module, MemberBatchNorm1d) for module in model.modules())
    assert model.head.r.abs().eq(1).all()


def test_refuses_another_number_of_members() -> None:
    with pytest.raises(InputError, match="2 members but members=3"):
        BatchEnsembleClassifier(batch_ensemble(network(), 2), CLASSES, FEATURES, members=3)
