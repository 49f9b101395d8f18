"""The networks under which the baselines' sizes are those that the paper's table of parameters states, to the last one."""

from torch import nn

from besnn.baselines import DUQ, GaussianClassifier, SoftmaxClassifier
from besnn.model import fashion_convnet


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_duq_on_its_published_network() -> None:
    assert parameters(DUQ(fashion_convnet(head_dim=None), num_classes=10, feature_dim=256)) == 1_009_408


def test_softmax_on_that_network_at_twice_the_width() -> None:
    backbone = fashion_convnet(head_dim=None, widths=(128, 256, 256))
    assert parameters(SoftmaxClassifier(backbone, num_classes=10, feature_dim=256)) == 1_152_778


def test_gaussian_with_a_wider_last_kernel() -> None:
    assert parameters(GaussianClassifier(fashion_convnet(last_kernel=7), num_classes=10, feature_dim=256)) == 1_080_320
