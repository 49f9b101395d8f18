import pytest
import torch

from besnn.errors import InputError
from besnn.training import make_fabric


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
    with pytest.raises(InputError, match="'fp8' is unknown: use one of fp32, tf32, bf16"):
        make_fabric("fp8")
