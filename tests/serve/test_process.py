import gc

from besnn.serve.process import exempt_from_collection


def is_looked_through(thing: object) -> bool:
    return any(each is thing for each in gc.get_objects())


def test_what_there_is_is_no_longer_looked_through_and_what_comes_is():
    old: list[object] = []
    assert is_looked_through(old)
    try:
        exempt_from_collection()
        new: list[object] = []
        assert not is_looked_through(old)
        assert is_looked_through(new)
    finally:
        gc.unfreeze()
