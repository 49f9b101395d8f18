from dataclasses import replace

import numpy as np
import pytest

from besnn.data import Dataset, load_or_stream
from besnn.errors import InputError
from besnn.recipe.config import DataConfig
from besnn.training import split as module
from besnn.training.split import split_data

CLASSES = ("ant", "bee", "cat", "dog")


@pytest.fixture
def numbered():
    """400 rows whose one input is their number; classes are 40, 30, 20 and 10 per cent."""
    labels = np.repeat(np.arange(4), [160, 120, 80, 40])
    labels = np.random.default_rng(0).permutation(labels)
    return Dataset(np.arange(400, dtype=np.float32)[:, None], labels, CLASSES, "numbered")


def rows(part):
    return part.inputs[:, 0].astype(int).tolist()


def config(**settings):
    return DataConfig(source="numbered", **settings)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("limit", [None, 150])
@pytest.mark.parametrize("classes", [None, ("dog", "ant")])
def test_no_row_is_in_two_parts_and_none_is_lost(seed, limit, classes, numbered):
    divided = split_data(numbered, config(validation=0.2, calibration=0.1, limit=limit, classes=classes), seed)
    found = [rows(part) for part in (divided.training, divided.validation, divided.calibration)]
    together = [row for part in found for row in part]
    total = min(limit or 400, 400 if classes is None else 200)
    assert len(together) == len(set(together)) == total
    assert [len(part) for part in found] == [0.7 * total, 0.2 * total, 0.1 * total]
    for part in (divided.training, divided.validation, divided.calibration):
        names = [part.class_names[label] for label in part.labels]
        assert names == [CLASSES[label] for label in numbered.labels[rows(part)]]
        assert part.class_names == (CLASSES if classes is None else ("ant", "dog"))


def test_parts_follow_the_seed(numbered):
    divided = [split_data(numbered, config(), seed) for seed in (0, 0, 1)]
    for name in ("training", "validation", "calibration"):
        first, same, other = (rows(getattr(each, name)) for each in divided)
        assert first == same != other


def test_validation_has_every_class_in_its_share_and_calibration_is_drawn_blindly(numbered):
    shares, blind = np.array([0.4, 0.3, 0.2, 0.1]), []
    for seed in range(30):
        divided = split_data(numbered, config(validation=0.25, calibration=0.25), seed)
        held_out = numbered.labels[rows(divided.calibration)]
        rest = np.delete(numbered.labels, rows(divided.calibration))
        expected = np.bincount(rest, minlength=4) / len(rest)
        found = np.bincount(divided.validation.labels, minlength=4) / len(divided.validation)
        np.testing.assert_allclose(found, expected, atol=0.011)
        blind.append(np.bincount(held_out, minlength=4) / len(held_out))
    # 100 of 400 rows without replacement: the share of a class varies as the hypergeometric distribution says
    spread = np.sqrt(shares * (1 - shares) / 100 * 300 / 399)
    np.testing.assert_allclose(np.std(blind, axis=0), spread, rtol=0.5)


def test_parts_that_are_not_wanted(numbered):
    divided = split_data(numbered, config(validation=0.0, calibration=0.0), 0)
    assert divided.validation is None
    assert divided.calibration is None
    assert rows(divided.training) == list(range(400))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"classes": ("ant", "eel")}, r"numbered has no class 'eel': it has ant, bee, cat, dog"),
        ({"calibration": 0.001}, r"data.calibration=0.001 of 400 rows is less than one row: raise it, or set it to 0"),
        ({"limit": 5}, r"data.calibration=0.1 of 5 rows"),
    ],
)
def test_mistakes(settings, words, numbered):
    with pytest.raises(InputError, match=words):
        split_data(numbered, config(**settings), 0)


def test_a_table_that_float32_does_not_hold_is_not_trained_on(numbered):
    for classes in (None, ("ant", "bee")):
        with pytest.raises(InputError, match="numbered: column 0 reaches 9e99"):
            split_data(replace(numbered, lost="column 0 reaches 9e99"), config(classes=classes), 0)


def test_labels_are_needed(numbered):
    with pytest.raises(InputError, match="has no labels"):
        split_data(Dataset(numbered.inputs, None, (), "bare"), config(), 0)


def test_a_folder_is_divided_as_the_same_arrays_are(stripe_folder):
    settings = config(validation=0.25, calibration=0.25, limit=40)
    arrays = split_data(load_or_stream(stripe_folder), settings, 3)
    streamed = split_data(load_or_stream(stripe_folder, byte_budget=0), settings, 3)
    assert isinstance(arrays.training, Dataset)
    assert not isinstance(streamed.training, Dataset)
    assert len(streamed.training) == 20
    assert np.array_equal(streamed.training.labels, arrays.training.labels)
    for name in ("validation", "calibration"):
        one, other = getattr(arrays, name), getattr(streamed, name)
        assert isinstance(other, Dataset)
        assert np.array_equal(one.inputs, other.inputs)
        assert np.array_equal(one.labels, other.labels)


def test_held_out_parts_of_a_folder_stay_within_memory(stripe_folder, monkeypatch):
    monkeypatch.setattr(module, "HELD_OUT_BYTES", 64 * 5)  # five images
    divided = split_data(load_or_stream(stripe_folder, byte_budget=0), config(validation=0.25, calibration=0.25), 0)
    assert [len(divided.validation), len(divided.calibration), len(divided.training)] == [5, 5, 54]


def test_classes_of_a_folder(stripe_folder):
    folder = load_or_stream(stripe_folder, byte_budget=0)
    divided = split_data(folder, config(classes=("upright", "flat")), 0)
    assert divided.training.class_names == ("flat", "upright")
    assert split_data(folder, config(classes=("upright",)), 0).training.class_names == ("upright",)


@pytest.mark.parametrize(("rows", "held_out"), [(400, 40), (190, 19), (100, 19), (38, 19), (37, 4)])
def test_of_few_rows_as_many_are_held_out_as_the_rate_needs(numbered, rows, held_out):
    divided = split_data(numbered, config(calibration=0.1, limit=rows), 0, least_calibration=19)
    assert len(divided.calibration) == held_out
    assert split_data(numbered, config(calibration=0, limit=rows), 0, least_calibration=19).calibration is None
