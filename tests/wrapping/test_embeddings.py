"""Precomputed features instead of a network."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from besnn.data import Dataset, load
from besnn.errors import DataError
from besnn.wrapping.embeddings import network_of


def embeddings(classes: int, n: int = 90) -> Dataset:
    rng = np.random.default_rng(0)
    labels = np.arange(n) % classes
    rows = rng.normal(size=(n, 5)) + 3 * rng.normal(size=(classes, 5))[labels]
    return Dataset(rows.astype(np.float32), labels, tuple("abcd"[:classes]), "rows", feature_names=tuple("vwxyz"))


@pytest.mark.parametrize("classes", [2, 3])
def test_linear_discriminants(classes):
    data = embeddings(classes)
    expected = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(data.inputs.astype(float), data.labels)
    with torch.no_grad():
        found = network_of(data)(torch.from_numpy(data.inputs)).softmax(1)
    np.testing.assert_allclose(found, expected.predict_proba(data.inputs.astype(float)), atol=1e-4)


def test_a_class_without_rows_is_never_predicted():
    data = embeddings(3)
    rows = np.flatnonzero(data.labels != 1)
    with torch.no_grad():
        logits = network_of(data.subset(rows))(torch.from_numpy(data.inputs))
    assert not (logits.argmax(1) == 1).any()


def test_logits_that_came_with_the_features():
    data = embeddings(2)
    named = Dataset(data.inputs, data.labels, data.class_names, "rows", feature_names=("a", "logits.0", "b", "logits.1", "c"))
    network, rows = network_of(named), torch.from_numpy(data.inputs)
    assert torch.equal(network(rows), rows[:, [1, 3]])
    assert torch.equal(network.features(rows), rows[:, [0, 2, 4]])


def test_a_column_of_lists(tmp_path):
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)
    columns = {"v": list(vectors), "species": ["a", "b", "a", "b"]}
    for kind in (pa.list_(pa.float32()), pa.list_(pa.float32(), 3), pa.large_list(pa.float64())):
        schema = pa.schema([("v", kind), ("species", pa.string())])
        pa.parquet.write_table(pa.table(columns, schema=schema), tmp_path / "v.parquet")
        data = load(tmp_path / "v.parquet", label="species")
        assert data.feature_names == ("v.0", "v.1", "v.2")
        np.testing.assert_array_equal(data.inputs, vectors)
        chosen = load(tmp_path / "v.parquet", label="species", columns=["v.2", "v.0"])
        np.testing.assert_array_equal(chosen.inputs, vectors[:, [2, 0]])


def test_a_list_of_another_length_is_a_bad_row(tmp_path):
    pa.parquet.write_table(pa.table({"v": [[1.0, 2.0], [1.0], None], "label": ["a", "b", "a"]}), tmp_path / "v.parquet")
    with pytest.raises(DataError, match=r"v\.0"):
        load(tmp_path / "v.parquet")
