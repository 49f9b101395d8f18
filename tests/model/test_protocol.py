"""The smallest method that trainer, detector and evaluation could hold; and methods of batch-ensemble layers."""

import copy

import pytest
import torch
from torch import nn

from besnn.baselines import BatchEnsembleClassifier
from besnn.errors import InputError
from besnn.model import BESNN, OODClassifier


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


@pytest.mark.parametrize("missing", ["features", "evidence"])
def test_a_method_must_define_both(missing):
    unfinished = type("Unfinished", (Smallest,), {missing: getattr(OODClassifier, missing)})
    with pytest.raises(TypeError, match=missing):
        unfinished()


# --- methods of batch-ensemble layers ---

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


# --- mirror images for every second member ---


@pytest.fixture(params=METHODS)
def with_and_without_mirror(request):
    """Build a model of images and its twin with mirror images for every second member; both untrained."""

    def build(members):
        torch.manual_seed(0)
        extractor = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
        models = [METHODS[request.param](extractor, 2, 4, members=members, mirror=mirror).double() for mirror in (False, True)]
        models[1].load_state_dict(models[0].state_dict())
        return models

    return build


@pytest.fixture
def images():
    return torch.randn(5, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("members", [1, 2, 3, 4])
def test_every_second_member_sees_mirror_images_in_evaluation(members, with_and_without_mirror, images):
    for model in (models := with_and_without_mirror(members)):
        model.eval().freeze_classes(16)
    plain, mirrored = models
    before = images.clone()
    for use in ("features", "__call__"):
        found, upright, flipped = (getattr(mirrored, use)(images), *(getattr(plain, use)(x) for x in (images, images.flip(3))))
        assert len(found) == members
        for member in range(members):
            torch.testing.assert_close(found[member], (upright, flipped)[member % 2][member])
        assert members == 1 or not torch.allclose(upright[1], flipped[1])
    assert torch.equal(images, before)


def test_no_mirror_images_in_training(with_and_without_mirror, images):
    plain, mirrored = (model.train() for model in with_and_without_mirror(MEMBERS))
    twin = copy.deepcopy(mirrored).eval().train()
    expected = plain.features(images)
    assert torch.equal(mirrored.features(images), expected)
    assert torch.equal(twin.features(images), expected)


@pytest.mark.parametrize("members", [1, 3])
def test_only_images_have_mirror_images(members):
    model = BESNN(nn.Linear(2, 4), num_classes=2, feature_dim=4, members=members, mirror=True)
    with pytest.raises(InputError, match=r"shape \[2\] are not images and have no mirror images: set mirror=False") as caught:
        model.eval()(torch.zeros(7, 2))
    assert "\n" not in str(caught.value)
