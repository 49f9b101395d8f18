"""Peak memory of `besnn score`, measured in a fresh process."""

import pytest

from benchmarks import table_memory


@pytest.mark.slow  # new processes import everything anew
def test_scoring_a_table_adds_little_memory(monkeypatch):
    monkeypatch.setattr(table_memory, "FORMATS", ("csv",))
    record = table_memory.measure_table_memory(2000)
    assert [(run["format"], run["rows"]) for run in record["runs"]] == [("csv", 20), ("csv", 2000)]
    assert all(0 <= run["added_mb"] < table_memory.LIMIT_MB for run in record["runs"])
