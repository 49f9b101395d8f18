from benchmarks.soak import KILL_WINDOW, Soak, soak_table


def test_only_answers_of_a_killed_worker_may_be_lost():
    soak = Soak(lost=[9.9, 10.0, 10.0 + KILL_WINDOW / 2, 10.0 + KILL_WINDOW, 30.0], kills=[10.0])
    assert soak.lost_otherwise() == 3


def test_the_table_shows_what_was_not_answered_well():
    found = {
        "minutes": 2,
        "capacity_per_second": 100.0,
        "rate_per_second": 70.2,
        "answers": 1000,
        "statuses": {"200": 998, "429": 2},
    }
    found |= {"wrong": 0, "lost": 3, "lost_otherwise": 1, "faults": {"worker_killed": 4}, "p50_ms": 5.1, "p99_ms": 80.0}
    table = soak_table(found | {"memory_mib": [900, 910], "provenance": {"hardware": "cpu, 2 threads"}})
    assert table.rows == [("2", "70 of 100", "1,000", "2", "0", "3", "1", "5", "80", "900 to 910")]
    assert table.note.startswith("Two workers and their clients on cpu, 2 threads.")
    assert "worker killed 4×" in table.note
