"""What two processes tell each other, over gloo, against what one process would have had."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from besnn.objective.processes import gather_rows, process_count, share_buffers, sum_over_processes

PROCESS = """
import json, sys
import torch
import torch.distributed as dist
from besnn.objective.processes import gather_rows, process_count, share_buffers, sum_over_processes

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(f"{folder}/store", 2))
batch = torch.arange(24.0).view(2, 6, 2).requires_grad_()   # [members, rows, d]
mine = batch[:, 3 * rank : 3 * rank + 3]
gathered = gather_rows(mine, dim=1)
norm = torch.nn.BatchNorm1d(2)
norm(torch.full((4, 2), float(rank)).add(torch.arange(4.0)[:, None]))
share_buffers(norm)
found = {
    "processes": process_count(),
    "gathered": gathered.tolist(),
    "has_gradient": gathered.requires_grad,
    "labels": gather_rows(torch.tensor([rank, rank + 10])).tolist(),
    "sum": sum_over_processes(torch.tensor([1.0, 10.0 * rank])).tolist(),
    "running_mean": norm.running_mean.tolist(),
    "steps": int(norm.num_batches_tracked),
}
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(found, file)
dist.destroy_process_group()
"""


@pytest.mark.slow  # new processes import everything anew
def test_two_processes_have_what_one_would_have(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "COVERAGE_"))}
    command = [sys.executable, "-W", "ignore", "-c", PROCESS]
    processes = [subprocess.Popen([*command, str(rank), str(tmp_path)], env=environment) for rank in (0, 1)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert first["processes"] == 2
    assert first["gathered"] == torch.arange(24.0).view(2, 6, 2).tolist()  # the undivided batch, in order
    assert first["labels"] == [0, 10, 1, 11]
    assert not first["has_gradient"]
    assert first["sum"] == [2.0, 10.0]
    assert first["running_mean"] == pytest.approx([0.1 * 1.5] * 2)  # the first process's: 0.9 · 0 + 0.1 · mean(0, 1, 2, 3)
    assert first["steps"] == 1


def test_a_process_alone_keeps_what_it_has():
    rows = torch.ones(3, 2, requires_grad=True)
    assert process_count() == 1
    assert gather_rows(rows, dim=1).equal(rows)
    assert not gather_rows(rows).requires_grad
    total = sum_over_processes(rows)
    total += 1  # a copy
    assert rows.equal(torch.ones(3, 2))
    norm = nn.BatchNorm1d(2)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    share_buffers(norm)
    assert all(value.equal(before[name]) for name, value in norm.state_dict().items())
