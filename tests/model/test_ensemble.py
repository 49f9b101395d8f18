"""The methods of batch-ensemble layers: rows that stand member-major belong to one member each."""

import pytest
import torch
from torch import nn

from besnn.baselines import BatchEnsembleClassifier
from besnn.errors import InputError
from besnn.model import BESNN

MEMBERS = 3
METHODS = {"be-snn": BESNN, "batch-ensemble": BatchEnsembleClassifier}


@pytest.fixture(params=METHODS)
def model(request):
    torch.manual_seed(0)
    extractor = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    return METHODS[request.param](extractor, num_classes=2, feature_dim=4, members=MEMBERS).double().eval()


def test_a_row_passes_through_its_own_member(model):
    own = torch.randn(MEMBERS, 5, 2, dtype=torch.float64)
    features = model.feature_rows(own.flatten(0, 1))
    assert features.shape == (MEMBERS, 5, 4)
    for member in range(MEMBERS):
        torch.testing.assert_close(features[member], model.features(own[member])[member])


def test_rows_that_do_not_divide_among_the_members(model):
    with pytest.raises(InputError, match="members=3 does not divide a batch of 7 rows"):
        model.feature_rows(torch.zeros(7, 2, dtype=torch.float64))
