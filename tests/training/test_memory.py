"""Kept memory, by what the system counts: pages that it had to clear, and bytes that a process holds.

In processes of their own, whose memory is as malloc finds it at the start.
"""

import json
import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's malloc")
SIZE, TIMES = 64 * 2**20, 20
SCRIPT = f"""
import json, os, resource, torch
from besnn.training.memory import kept_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range({TIMES}):
        torch.ones({SIZE}, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def held():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

found = {{"usual": faults(), "before": held()}}
with kept_memory():
    faults()  # pieces in use here and there keep the first ones from being taken again
    found["kept"] = faults()
    torch.ones(4 * {SIZE}, dtype=torch.uint8)
    found["within"] = held()
found["after"] = held()
print(json.dumps(found))
"""


def in_a_process(**own):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "LD_"))}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment | own, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_pages_are_cleared_once_and_go_back_in_the_end():
    found = in_a_process()
    assert found["kept"] < found["usual"] / 4
    assert found["within"] - found["before"] > 3 * SIZE
    assert found["after"] - found["before"] < SIZE


def test_what_users_set_themselves_stays():
    found = in_a_process(MALLOC_MMAP_MAX_="65536")
    assert found["kept"] > found["usual"] / 2
    assert found["within"] - found["before"] < SIZE
