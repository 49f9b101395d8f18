import multiprocessing
import os
import platform
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from besnn.errors import InputError
from besnn.training import make_fabric
from besnn.training.device import GraphedStep, keep_freed_memory


@pytest.fixture(autouse=True)
def _precision_as_it_was():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("precision", "matmul"), [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")])
def test_precision(precision, matmul):
    fabric = make_fabric(precision, accelerator="cpu")
    assert fabric.device.type == "cpu"
    assert torch.get_float32_matmul_precision() == matmul
    module = fabric.setup(torch.nn.Linear(2, 2))
    with fabric.autocast():
        assert (module.weight @ torch.ones(2, 1)).dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accelerator": "abacus"}, "device 'abacus' is unknown: use auto"),
        ({"accelerator": "cpu", "strategy": "abacus"}, "strategy='abacus' is not available on this machine"),
    ],
)
def test_devices_that_are_not_available_are_refused_in_one_line(options, words):
    with pytest.raises(InputError, match=words) as caught:
        make_fabric(**options)
    assert "\n" not in str(caught.value)


def test_unknown_precision():
    with pytest.raises(InputError, match="precision 'fp8' is unknown: choose from 'fp32', 'tf32', 'bf16'"):
        make_fabric("fp8")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records CUDA graphs")
def test_recorded_steps_give_the_gradients_of_plain_ones():
    device = torch.device("cuda")
    layer = torch.nn.Linear(3, 2, device=device)

    def step(x, labels, factors):
        layer.zero_grad(set_to_none=False)
        noisy = x + torch.rand_like(x)
        terms = {"loss": factors["loss"] * torch.nn.functional.cross_entropy(layer(noisy), labels)}
        terms["loss"].backward()
        return terms

    graphed = GraphedStep(step, warm_up=2)
    for number in range(8):
        x, labels = torch.randn(5, 3, device=device), torch.randint(2, (5,), device=device)
        factors = {"loss": float(number % 2 + 1)}
        torch.manual_seed(number)
        loss = graphed(x, labels, factors)["loss"].clone()
        gradient = layer.weight.grad.clone()
        torch.manual_seed(number)
        torch.testing.assert_close(loss, step(x, labels, factors)["loss"])
        torch.testing.assert_close(gradient, layer.weight.grad)
    assert len(graphed.recorded) == 2


needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc's malloc")
SIZE, TIMES = 40 * 2**20, 6


def faults() -> int:
    import resource  # not on every system

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(TIMES):
        torch.ones(SIZE, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def held() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measured() -> dict[str, int]:
    torch.set_num_threads(1)  # a fork has no other threads
    found = {"usual": faults(), "before": held()}
    with keep_freed_memory():
        faults()  # blocks in use keep the first ones from being reused
        found["kept"] = faults()
        torch.ones(4 * SIZE, dtype=torch.uint8)
        found["within"] = held()
    return found | {"after": held()}


@needs_glibc
def test_pages_are_cleared_once_and_go_back_in_the_end(monkeypatch):
    """Measured in a fork, by the pages that the system had to clear and the bytes that the process holds."""
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))]:
        monkeypatch.delenv(name)
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        found = pool.submit(measured).result()
    assert found["kept"] < found["usual"] / 4
    assert found["within"] - found["before"] > 3 * SIZE
    assert found["after"] - found["before"] < SIZE


def test_malloc_options_of_the_user_stay(monkeypatch):
    def refuse(name):
        raise AssertionError("malloc's options were changed")

    monkeypatch.setenv("MALLOC_MMAP_MAX_", "65536")
    monkeypatch.setattr("ctypes.CDLL", refuse)
    with keep_freed_memory():
        pass
