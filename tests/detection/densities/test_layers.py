"""Densities of one layer's features equal the same density of these columns alone."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from besnn.detection import DENSITIES, Density, NearestNeighbourDensity, ScoreSet
from besnn.detection.densities import LayerDensity, density_from_state, density_kind, name_at_layer
from besnn.errors import InputError

MAKERS = DENSITIES | {"nearest-neighbour": lambda: NearestNeighbourDensity(k=3, storage="int8")}
LABELS = torch.arange(60) % 3
PLACES = [(0, 4), (3, 2), (5, 4), (0, 9)]
"""Columns of a layer among nine features, `(first, width)`: first, in the middle, last, all of them."""


def draw(n: int, seed: int) -> Tensor:
    """Features `[2, n, 9]` of two members, each column with a scale and a mean of its own."""
    drawn = torch.randn(2, n, 9, generator=torch.Generator().manual_seed(seed))
    return drawn * torch.arange(1.0, 10) + torch.arange(9.0)


@dataclasses.dataclass
class Fits:
    """A density of a layer, and one fitted to the columns of that layer alone."""

    of_layer: LayerDensity
    of_columns: Density
    columns: list[int]


@pytest.fixture(params=PLACES, ids=str)
def place(request: pytest.FixtureRequest) -> tuple[int, int]:
    return request.param


@pytest.fixture(params=MAKERS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def fits(kind: str, place: tuple[int, int]) -> Fits:
    columns = list(range(9))[place[0] :][: place[1]]
    of_layer = LayerDensity(MAKERS[kind](), *place)
    assert of_layer.fit(draw(60, 0), LABELS) is of_layer
    return Fits(of_layer, MAKERS[kind]().fit(draw(60, 0)[:, :, columns], LABELS), columns)


def test_a_layer_scores_as_its_columns_alone(fits: Fits) -> None:
    queries = draw(25, 1)
    found = fits.of_layer.score(queries)
    assert torch.equal(found, fits.of_columns.score(queries[:, :, fits.columns]))
    assert len(found.unique()) > 20


def test_other_columns_do_not_matter_and_its_own_do(fits: Fits) -> None:
    queries = draw(25, 1)
    others = [column for column in range(9) if column not in fits.columns]
    changed = queries.clone()
    changed[:, :, others] += 100 * draw(25, 2)[:, :, others]
    assert torch.equal(fits.of_layer.score(changed), fits.of_layer.score(queries))
    for column in (fits.columns[0], fits.columns[-1]):
        changed = queries.clone()
        changed[:, :, column] += 50
        assert not torch.isclose(fits.of_layer.score(changed), fits.of_layer.score(queries)).all()


def test_a_density_made_of_its_state_scores_the_same(kind: str, fits: Fits) -> None:
    state = fits.of_layer.state()
    assert state.keys() > fits.of_columns.state().keys()
    assert all(tensor.device.type == "cpu" for tensor in state.values())
    again = density_from_state(name_at_layer(kind, "trunk.3+trunk"), state)
    assert isinstance(again, LayerDensity)
    assert type(again.density) is DENSITIES[kind]
    queries = draw(25, 1)
    assert torch.equal(again.score(queries), fits.of_layer.score(queries))
    assert all(torch.equal(value, state[key]) for key, value in again.state().items())


def test_a_state_without_a_layer_is_of_all_features(kind: str) -> None:
    density = MAKERS[kind]().fit(draw(60, 0), LABELS)
    again = density_from_state(kind, density.state())
    assert type(again) is DENSITIES[kind]
    assert torch.equal(again.score(draw(25, 1)), density.score(draw(25, 1)))


@given(kind=st.sampled_from(list(DENSITIES)), layer=st.text("abt. 0+", min_size=1, max_size=12))
def test_the_name_of_a_layers_density_contains_its_kind(kind: str, layer: str) -> None:
    assert density_kind(name_at_layer(kind, layer)) == density_kind(kind) == kind
    assert name_at_layer(kind, layer).endswith(layer)


def test_features_that_are_too_few_are_refused_by_the_inner_density(kind: str) -> None:
    density = LayerDensity(MAKERS[kind](), first=5, width=4).fit(draw(60, 0), LABELS)
    with pytest.raises(InputError, match=r"^[^\n]+$"):
        density.score(draw(5, 1)[:, :, :7])


def test_a_score_set_keeps_layers_apart_in_its_state() -> None:
    """Names of which one begins as another does, and tensors of other blocks in the same file."""
    names = {
        name_at_layer(kind, layer): place for kind in MAKERS for layer, place in zip(["t", "t.3"], PLACES[:2], strict=True)
    }
    densities = {
        name: LayerDensity(MAKERS[density_kind(name)](), *place).fit(draw(60, 0), LABELS) for name, place in names.items()
    }
    scoring = ScoreSet("logits", "nearest-neighbour at t.3", densities)
    again = ScoreSet.from_state("logits", *scoring.state())
    assert again.names == scoring.names
    evidence, features = torch.randn(2, 25, 3), draw(25, 1)
    for name in names:
        assert torch.equal(again.score(evidence, features, name), scoring.score(evidence, features, name))
    assert again.name == scoring.name
