import pytest

from besnn.errors import InputError
from besnn.serve import Settings
from besnn.serve.inputs import QUICK_BYTES, InputReader


def test_only_short_bodies_without_files_are_read_at_once():
    table, images = InputReader((2,), Settings()), InputReader((1, 2, 2), Settings())
    assert table.is_quick(b'{"inputs": [[1, 2]]}')
    assert images.is_quick(b'{"inputs": [[[[1, 2], [3, 4]]]]}')
    assert not images.is_quick(b'{"inputs": ["aGVsbG8="]}')
    for reader in (table, images):
        assert not reader.is_quick(b" " * (QUICK_BYTES + 1))


@pytest.mark.parametrize("shape", [(2, 8, 8), (3, 4), (1, 2, 3, 4)])
def test_models_of_other_inputs_are_refused(shape: tuple[int, ...]):
    with pytest.raises(InputError, match="cannot serve"):
        InputReader(shape, Settings())
