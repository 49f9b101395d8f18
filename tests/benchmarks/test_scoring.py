"""The textbook peers compute what the library's own methods compute, only slower."""

import pytest
import torch
from torch import nn

from benchmarks.scoring import Entropy, NaiveBESNN, TextbookBatchEnsemble
from besnn.baselines import BatchEnsembleClassifier
from besnn.detection import tempered_entropy
from besnn.detection.scores import scores_for
from besnn.layers import BatchEnsembleLinear, batch_ensemble
from besnn.model import BESNN, mlp

X = torch.randn(6, 4)
predictive_entropy = scores_for("logits")["predictive-entropy"]


def test_entropy_of_an_ensemble():
    networks = [nn.Linear(4, 3) for _ in range(3)]
    expected = predictive_entropy(torch.stack([network(X) for network in networks]))
    torch.testing.assert_close(Entropy(*networks)(X), expected)


def test_textbook_batch_ensemble():
    trunk, head = batch_ensemble(mlp((4,), (8,), 5), 3), BatchEnsembleLinear(5, 3, members=3)
    own = BatchEnsembleClassifier(mlp((4,), (8,), 5), num_classes=3, feature_dim=5, members=3)
    own.feature_extractor, own.head = trunk, head
    torch.testing.assert_close(TextbookBatchEnsemble(nn.Sequential(trunk, head), 3)(X), predictive_entropy(own(X)))


def test_naive_besnn_equals_the_moments_of_the_same_draw():
    model = BESNN(mlp((4,), (8,), 5), num_classes=3, feature_dim=5, members=2, noise_dim=4, hidden_dim=8, samples=16).eval()
    torch.manual_seed(1)
    naive = NaiveBESNN(model)(X)
    torch.manual_seed(1)
    torch.testing.assert_close(naive, tempered_entropy(model.distances(X)), rtol=1e-4, atol=1e-5)
    assert not torch.equal(NaiveBESNN(model)(X), naive)  # drawn afresh


@pytest.mark.parametrize("members", [1, 4])
def test_entropy_is_between_0_and_log_classes(members):
    score = Entropy(*(nn.Linear(4, 3) for _ in range(members)))(X)
    assert bool(((score >= 0) & (score <= torch.log(torch.tensor(3.0)) + 1e-6)).all())
