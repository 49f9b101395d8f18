import copy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from besnn.data import two_moons
from besnn.model import BESNN, convnet
from besnn.objective import BESNNObjective
from besnn.training import load_recipe
from besnn.training.compiled import COMPILE_FROM, CompiledStep, numbers_written
from besnn.training.device import key_of, make_fabric
from besnn.training.fit import fit_detector
from besnn.training.schedule import factor_counts
from besnn.training.trainer import LossModule, Trainer

BACKEND = "inductor" if torch.cuda.is_available() else "aot_eager"  # a CPU's compiler takes a minute for the same check
MANY = COMPILE_FROM  # steps: worth compiling for whatever network
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def loss_module(norm: str = "member", own_inputs: bool = False) -> LossModule:
    torch.manual_seed(0)
    extractor = convnet((1, 8, 8), (4, 8), 16)
    model = BESNN(extractor, num_classes=3, feature_dim=16, members=2, noise_dim=8, hidden_dim=8, samples=8, norm=norm)
    objective = BESNNObjective(entropy_weight=0.1, gradient_weight=0.5, k=1, own_inputs=own_inputs)
    return LossModule(model.double().to(DEVICE).train(), objective)


def plain_step(module):
    def step(x, labels, factors):
        module.zero_grad(set_to_none=False)
        terms = module(x, labels, factors)
        sum(terms.values()).backward()
        return terms

    return step


@pytest.mark.parametrize(("norm", "own_inputs"), [("member", False), ("shared", True)])
def test_compiled_steps_give_the_gradients_and_statistics_of_plain_ones(norm, own_inputs):
    module = loss_module(norm, own_inputs)
    reference = copy.deepcopy(module)
    counts = {key_of({"gradient": factor}): MANY for factor in (0.0, 4.0)}
    compiled, plain = CompiledStep(plain_step(module), module, counts, backend=BACKEND), plain_step(reference)
    for number in range(6):
        factors = {"gradient": 4.0 * (number % 2)}
        x, labels = torch.rand(12, 1, 8, 8, dtype=torch.float64, device=DEVICE), torch.arange(12, device=DEVICE) % 3
        torch.manual_seed(number)
        terms = compiled(x, labels, factors)
        torch.manual_seed(number)
        expected = plain(x, labels, factors)
        torch.testing.assert_close(terms, expected, rtol=1e-9, atol=1e-12)
        for ours, theirs in zip(module.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-12)
        torch.testing.assert_close(dict(module.named_buffers()), dict(reference.named_buffers()), rtol=1e-9, atol=1e-12)
    assert not compiled.failed
    assert len(compiled.compiled) == 2


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_compiled_run_ends_with_the_weights_of_a_plain_one(precision, monkeypatch):
    recipe = load_recipe("two-moons", ["training.epochs=1", "data.limit=1000", f"training.precision={precision}"])
    plain = fit_detector(recipe, two_moons(), fabric=make_fabric(precision, "cpu")).detector.model

    def compiled(trainer):
        counts = dict.fromkeys(factor_counts(recipe.training, steps=100), MANY)
        steps.append(CompiledStep(trainer._gradients, trainer.terms, counts, trainer.fabric.autocast, "aot_eager"))
        return steps[0]

    steps = []
    monkeypatch.setattr(Trainer, "_fastest_step", compiled)
    model = fit_detector(recipe, two_moons(), fabric=make_fabric(precision, "cpu")).detector.model
    assert steps[0].compiled
    tolerance = 1e-5 if precision == "fp32" else 1e-2
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=tolerance, atol=tolerance)


def test_only_what_is_worth_it_and_comes_back_is_compiled():
    module = loss_module()
    once, often, rare = ({"gradient": factor} for factor in (0.1, 0.2, 0.3))
    # two convolutions with BatchNorm and ReLU of 6 · 2 rows write this much at least
    enough = COMPILE_FROM / (6 * 2 * 3 * (4 * 8 * 8 + 8 * 4 * 4))
    counts = {key_of(once): enough, key_of(often): enough, key_of(rare): 0.1 * enough}
    compiled = CompiledStep(plain_step(module), module, counts, backend=BACKEND)
    x, labels = torch.rand(6, 1, 8, 8, dtype=torch.float64, device=DEVICE), torch.arange(6, device=DEVICE) % 3
    for factors in (once, often, rare, often, rare, rare):
        compiled(x, labels, factors)
    assert set(compiled.compiled) == {key_of(often)}


def test_maps_are_left_to_the_compiler(monkeypatch):
    def note(x):
        noted.append(is_in_torch_dispatch_mode())
        return False

    noted = []
    monkeypatch.setattr("besnn.layers.layer.use_kernels", note)
    module = loss_module()
    compiled = CompiledStep(plain_step(module), module, {(): MANY}, backend=BACKEND)
    x, labels = torch.rand(6, 1, 8, 8, dtype=torch.float64, device=DEVICE), torch.arange(6, device=DEVICE) % 3
    for is_compiled in (False, True):
        noted.clear()
        compiled(x, labels, {})
        assert set(noted) == {is_compiled}
    assert not compiled.failed


class Branching(nn.Module):
    """Goes two ways depending on the values that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x, labels, factors):
        y = self.layer(x).mean()
        return {"loss": y * y if bool(y > 0) else -y}


def test_a_network_that_cannot_be_compiled_trains_all_the_same():
    module = Branching().to(DEVICE)
    compiled, plain = CompiledStep(plain_step(module), module, {(): MANY}, backend=BACKEND), plain_step(module)
    x = torch.rand(4, 2, device=DEVICE)
    for _ in range(3):
        terms = compiled(x, x, {})
        gradient = module.layer.weight.grad.clone()
        torch.testing.assert_close(terms, plain(x, x, {}))
        torch.testing.assert_close(gradient, module.layer.weight.grad)
    assert compiled.failed


def test_what_layers_write_is_counted_whatever_they_return():
    network = nn.ModuleList([nn.GRU(2, 3, batch_first=True), nn.Linear(3, 4)])
    with numbers_written(network) as written:
        states, _ = network[0](torch.rand(5, 7, 2))
        network[1](states)
    assert written == [5 * 7 * 3 + 5 * 3, 5 * 7 * 4]  # all states and the last, then the linear layer's
    assert not any(module._forward_hooks for module in network)
