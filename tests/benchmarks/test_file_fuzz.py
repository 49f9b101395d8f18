"""A small share of the mutated files; `python -m benchmarks file-fuzz` reads more of them."""

import pytest

from benchmarks.file_fuzz import formats, fuzz_format

FILES = 10_000


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return formats(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("name", ["model", "npz", "csv", "parquet", "png", "jpeg", "webp", "tiff", "gif"])
def test_a_mutated_file_is_read_or_refused_in_one_line(name, known):
    found = fuzz_format(*known[name], FILES, seed=7)
    assert found["read"] + found["refused"] == FILES
    assert min(found["read"], found["refused"]) > 0  # the mutations are neither too weak nor too strong


def test_a_reader_that_fails_otherwise_is_noticed():
    with pytest.raises(ZeroDivisionError):
        fuzz_format(lambda rng: b"", lambda content: 1 / 0, 1)
