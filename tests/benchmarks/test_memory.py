"""Peak memory of `besnn score`, measured in a fresh process."""

import pytest

from benchmarks.table_memory import LIMIT_MB, measure_table_memory


@pytest.mark.slow  # new processes import everything anew
def test_scoring_a_table_adds_little_memory():
    record = measure_table_memory(2000)
    assert [(run["format"], run["rows"]) for run in record["runs"]] == [
        ("parquet", 20),
        ("parquet", 2000),
        ("csv", 20),
        ("csv", 2000),
    ]
    assert all(0 <= run["added_mb"] < LIMIT_MB for run in record["runs"])
