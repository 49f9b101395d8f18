import pytest
import torch

from besnn.training.graphs import GraphedStep

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="records CUDA graphs")


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
