"""The smallest method that trainer, detector and evaluation could hold."""

import pytest
import torch
from torch import nn

from besnn.model import OODClassifier


class Smallest(OODClassifier):
    method = "smallest"
    default_score = "entropy"
    evidence_kind = "logits"
    members = 1
    num_classes = 3

    def __init__(self):
        super().__init__()
        self.feature_extractor = nn.Linear(2, 3)

    def features(self, x):
        return self.feature_extractor(x)[None]

    def evidence(self, features):
        return features

    def log_probabilities(self, evidence):
        return evidence.log_softmax(-1).mean(0)


def test_smallest_method():
    model, x = Smallest(), torch.rand(5, 2)
    assert torch.equal(model(x), model.evidence(model.features(x)))
    assert model.log_probabilities(model(x)).shape == (5, 3)
    assert model.extractors() == [model.feature_extractor]
    assert not model.mirror
    assert model.frozen
    before = model(x)
    model.freeze_classes()
    model.after_step(x, torch.zeros(5, dtype=torch.int64))
    assert torch.equal(model(x), before)


@pytest.mark.parametrize("missing", ["features", "evidence", "log_probabilities"])
def test_a_method_must_say_all_three(missing):
    unfinished = type("Unfinished", (Smallest,), {missing: getattr(OODClassifier, missing)})
    with pytest.raises(TypeError, match=missing):
        unfinished()
