"""What the tests of the layers share: networks of many kinds, and explicit per-member weights as the oracle."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from besnn.layers import BatchEnsembleMultiheadAttention, batch_ensemble, normal
from besnn.layers.gpu import scale_and_norm
from besnn.layers.layer import BatchEnsembleLayer
from besnn.layers.norm import MemberBatchNorm
from tests.layers.gpu import plain_kernels

torch.set_num_threads(1)  # the tensors are tiny


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def member_weight(layer: BatchEnsembleLayer, n: int) -> Tensor:
    """W ∘ (r_n s_nᵀ) number by number: which input and which output a weight joins is worked out from torch's documentation."""
    weight = layer.weight.detach().clone()
    r, s = layer.r[n].detach(), layer.s[n].detach()
    groups, transposed = getattr(layer, "groups", 1), getattr(layer, "transposed", False)
    rows_of_group = weight.shape[0] // groups
    for row in range(weight.shape[0]):
        for column in range(weight.shape[1]):
            other = (row // rows_of_group) * weight.shape[1] + column
            weight[row, column] *= r[row] * s[other] if transposed else s[row] * r[other]
    return weight


def explicit_member(ensemble: nn.Module, plain: nn.Module, n: int) -> nn.Module:
    """A copy of the plain network with the weights that member n has in the ensemble."""
    member = copy.deepcopy(plain)
    forms = dict(ensemble.named_modules(remove_duplicate=False))
    for name, module in member.named_modules(remove_duplicate=False):
        form = forms[name]
        if isinstance(form, BatchEnsembleLayer):
            module.weight = nn.Parameter(member_weight(form, n))
            module.bias = None if form.bias is None else nn.Parameter(form.bias[n].detach().clone())
        elif isinstance(form, BatchEnsembleMultiheadAttention):
            _set_attention_weights(module, form, n)
        elif isinstance(form, MemberBatchNorm):
            for key, value in form.state_dict().items():
                part = value if value.ndim == 0 else value.unflatten(0, (form.members, -1))[n]
                getattr(module, key).data = part.clone()
        else:  # shared by the members
            for key in (*module._parameters, *module._buffers):
                if (value := getattr(form, key)) is not None:
                    getattr(module, key).data = value.detach().clone()
    return member.train(ensemble.training)


def _set_attention_weights(plain: nn.MultiheadAttention, form: BatchEnsembleMultiheadAttention, n: int) -> None:
    projections = [form.q_proj, form.k_proj, form.v_proj]
    weights = [member_weight(projection, n) for projection in projections]
    if plain.in_proj_weight is not None:
        plain.in_proj_weight.data = torch.cat(weights)
    else:
        for name, weight in zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), weights, strict=True):
            getattr(plain, name).data = weight
    if plain.in_proj_bias is not None:
        plain.in_proj_bias.data = torch.cat([projection.bias[n].detach() for projection in projections])


def shaken(module: nn.Module) -> nn.Module:
    """The module with random norms, so that nothing in them is 0 or 1."""
    for part in module.modules():
        if isinstance(part, _BatchNorm | _InstanceNorm | nn.LayerNorm | nn.GroupNorm):
            for name, low, high in (("running_mean", -1, 1), ("running_var", 0.5, 2), ("weight", 0.5, 2), ("bias", -0.5, 1)):
                if (value := getattr(part, name, None)) is not None:
                    value.data.uniform_(low, high)
    return module


@pytest.fixture
def oracle() -> Callable[[nn.Module, nn.Module, int], nn.Module]:
    return explicit_member


@pytest.fixture
def shake() -> Callable[[nn.Module], nn.Module]:
    return shaken


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """When called, layers pass over maps as they do on a GPU, in plain PyTorch."""

    def switch() -> None:
        for module in ("layer", "norm"):
            monkeypatch.setattr(f"besnn.layers.{module}.use_kernels", lambda x: x.ndim > 2 and x.numel() > 0)
        monkeypatch.setattr(scale_and_norm, "_kernels", lambda: plain_kernels)

    return switch


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.gate = nn.Sequential(nn.Linear(channels, 2), nn.ReLU(), nn.Linear(2, channels), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, _, _ = x.size()
        gate = self.gate(self.pool(x).view(batch, channels)).view(batch, channels, 1, 1)
        return x * gate.expand_as(x)


class Applied(nn.Module):
    """Layers by name, and a function that says how they are used."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor, scale: float | None = None) -> Any:
        return self.function(self, x if scale is None else x * scale)


class WithPosition(nn.Module):
    """A small vision transformer: patches, a class token and positions of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 3, stride=3)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(1, 5, 8))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        return self.head(self.encoder(tokens + self.position)[:, 0])


@dataclass(frozen=True)
class Network:
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...] = (3, 6, 6)
    traced: bool = True  # whether fold can follow its forward
    members_meet: bool = False  # whether shared norms see all members' rows at once, even in evaluation
    share: list[Any] = field(default_factory=list)

    def ensemble(self, members: int = 3, norm: str = "shared", dtype: torch.dtype = torch.float64) -> nn.Module:
        """Converted, in evaluation mode, with norms whose state differs from member to member."""
        converted = batch_ensemble(shaken(self.build()), members, norm=norm, init=normal(0.5), share=self.share)
        return shaken(converted).to(dtype).eval()

    def inputs(self, batch: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(batch, *self.input_shape, dtype=dtype)


def _conv3(outputs: int = 4, **arguments: Any) -> nn.Conv2d:
    return nn.Conv2d(arguments.pop("inputs", 3), outputs, 3, padding=1, **arguments)


def _encoder_layer(**options: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **options)


def _tokens(encoder: nn.Module, sequence_first: bool = False) -> nn.Module:
    def forward(self: Applied, x: Tensor) -> Tensor:
        tokens = self.embed(x)
        return self.encoder(tokens.transpose(0, 1)).mean(dim=0) if sequence_first else self.encoder(tokens).mean(dim=1)

    return Applied(forward, embed=nn.Linear(6, 8), encoder=encoder)


def _reads_what_it_overwrote(self: Applied, x: Tensor) -> Tensor:
    y = self.conv(x)
    same = y
    y += 1
    return torch.cat([same, self.other(y)], dim=1)


def _overwrites_a_view(self: Applied, x: Tensor) -> Tensor:
    y = self.conv(x)
    y[:, 0].zero_()
    return self.other(y)


def _overwrites_under_a_view(self: Applied, x: Tensor) -> Tensor:
    y = self.conv(x)
    channels = y.flatten(2)
    y.relu_()
    return self.head(channels.flatten(1))


# fmt: off
NETWORKS = {
    # convolutions
    "residual": Network(lambda: nn.Sequential(
        _conv3(), nn.BatchNorm2d(4), nn.ReLU(True), Residual(4, 4), Residual(4, 6, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(1),
        nn.Linear(6, 5))),
    "depthwise-separable": Network(lambda: nn.Sequential(
        _conv3(), nn.ReLU6(), _conv3(8, inputs=4, groups=4), nn.BatchNorm2d(8), nn.Conv2d(8, 5, 1))),
    "transposed-first": Network(lambda: nn.Sequential(
        nn.ConvTranspose2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), _conv3(inputs=4))),
    "output-size": Network(lambda: Applied(
        lambda self, x: self.up(self.down(x), output_size=x.size()[2:]),
        down=nn.Conv2d(3, 4, 3, stride=2, padding=1), up=nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1))),
    "conv1d": Network(lambda: nn.Sequential(
        nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.ELU(), nn.MaxPool1d(2), nn.Conv1d(4, 2, 2)), (3, 9)),
    "conv3d": Network(lambda: nn.Sequential(
        nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.GELU(), nn.AvgPool3d(2)), (2, 4, 4, 4)),
    # norms
    "norm-after-linear": Network(lambda: nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4, bias=False), nn.BatchNorm1d(4)), (6,)),
    "norm-over-positions": Network(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(5)), (5, 6)),
    "norm-not-after-layer": Network(lambda: nn.Sequential(_conv3(), nn.ReLU(), nn.BatchNorm2d(4), _conv3(inputs=4))),
    "norm-first": Network(lambda: nn.Sequential(nn.BatchNorm2d(3), _conv3(), nn.BatchNorm2d(4, affine=False))),
    "norm-used-by-two": Network(lambda: Applied(
        lambda self, x: (lambda y: self.a(y) + self.b(y))(self.norm(self.conv(x))),
        conv=_conv3(), norm=nn.BatchNorm2d(4), a=_conv3(inputs=4), b=_conv3(inputs=4))),
    "layer-used-by-norm-and-other": Network(lambda: Applied(
        lambda self, x: (lambda y: self.norm(y) + y)(self.conv(x)), conv=_conv3(), norm=nn.BatchNorm2d(4))),
    "norm-called-twice": Network(lambda: Applied(
        lambda self, x: self.norm(self.b(self.norm(self.a(x)))), a=_conv3(), b=_conv3(inputs=4), norm=nn.BatchNorm2d(4))),
    "norm-without-statistics": Network(lambda: nn.Sequential(
        _conv3(), nn.BatchNorm2d(4, track_running_stats=False), nn.ReLU(), _conv3(inputs=4)), members_meet=True),
    "row-norms": Network(lambda: nn.Sequential(
        nn.GroupNorm(3, 3), _conv3(), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.LayerNorm(6))),
    # idioms of forward
    "squeeze-excite": Network(lambda: nn.Sequential(_conv3(), SqueezeExcite(4), _conv3(inputs=4))),
    "spatial-attention": Network(lambda: Applied(
        lambda self, x: (lambda y: y * torch.sigmoid(self.gate(y)))(self.conv(x)), conv=_conv3(), gate=nn.Conv2d(4, 1, 1))),
    "adds-its-input": Network(lambda: Applied(lambda self, x: self.tail(x + self.conv(x)), conv=_conv3(3), tail=_conv3())),
    "adds-one-channel": Network(lambda: Applied(lambda self, x: x + self.conv(x), conv=_conv3(inputs=1)), (1, 6, 6)),
    "functional": Network(lambda: Applied(
        lambda self, x: self.head(F.avg_pool2d(F.max_pool2d(F.relu(self.conv(x)), 2), 3).flatten(1)),
        conv=_conv3(), head=nn.Linear(4, 2))),
    "mean-over-positions": Network(lambda: Applied(
        lambda self, x: self.head(torch.relu(self.conv(x)).mean([2, 3])), conv=_conv3(), head=nn.Linear(4, 2))),
    "view-by-size": Network(lambda: Applied(
        lambda self, x: (lambda y: self.head(y.view(y.size(0), -1)))(self.conv(x)), conv=_conv3(), head=nn.Linear(144, 2))),
    "pool-with-indices": Network(lambda: Applied(
        lambda self, x: self.pool(self.conv(x))[0], conv=_conv3(), pool=nn.MaxPool2d(2, return_indices=True))),
    "concatenates-branches": Network(lambda: Applied(
        lambda self, x: self.tail(torch.cat([self.a(x), self.b(x)], dim=1)), a=_conv3(2), b=_conv3(3), tail=_conv3(inputs=5))),
    "layer-used-twice": Network(lambda: Applied(lambda self, x: self.conv(torch.relu(self.conv(x))), conv=_conv3(3))),
    "block-used-twice": Network(lambda: nn.Sequential(*[nn.Sequential(_conv3(3), nn.BatchNorm2d(3), nn.ReLU())] * 2)),
    "mlp-flatten": Network(lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 8), nn.ReLU(), nn.Linear(8, 2))),
    "mlp-flatten-method": Network(lambda: Applied(lambda self, x: self.head(x.flatten(1)), head=nn.Linear(108, 2))),
    "mlp-flatten-function": Network(lambda: Applied(
        lambda self, x: self.head(torch.flatten(x, start_dim=1)), head=nn.Linear(108, 2))),
    "mlp-view-size": Network(lambda: Applied(lambda self, x: self.head(x.view(x.size(0), -1)), head=nn.Linear(108, 2))),
    "mlp-reshape-shape": Network(lambda: Applied(
        lambda self, x: self.head(torch.reshape(x, (x.shape[0], -1))), head=nn.Linear(108, 2))),
    "mlp-view-literal": Network(lambda: Applied(lambda self, x: self.head(x.view(-1, 108)), head=nn.Linear(108, 2))),
    "overwrites-its-input": Network(lambda: nn.Sequential(nn.ReLU(inplace=True), _conv3())),
    "overwrites-a-sum": Network(lambda: Applied(
        lambda self, x: (lambda y: self.tail(y.add_(self.conv(y))))(self.stem(x)),
        stem=_conv3(), conv=_conv3(inputs=4), tail=_conv3(inputs=4))),
    "overwrites-a-view-and-goes-on": Network(lambda: Applied(
        lambda self, x: self.head(self.conv(x).flatten(1).relu_()), conv=_conv3(), head=nn.Linear(144, 2))),
    "two-outputs": Network(lambda: Applied(
        lambda self, x: (lambda y: (y, self.head(y.flatten(1))))(self.conv(x)), conv=_conv3(), head=nn.Linear(144, 2))),
    "shared-trunk": Network(lambda: Applied(
        lambda self, x: self.head(self.trunk(x).flatten(1)),
        trunk=nn.Sequential(_conv3(), nn.BatchNorm2d(4), nn.ReLU(True), nn.PReLU(4)), head=nn.Linear(144, 2)), share=["trunk"]),
    # what tracing cannot follow
    "depends-on-data": Network(lambda: Applied(
        lambda self, x: (lambda y: y.relu() if y.mean() > 100 else self.other(y))(self.conv(x)),
        conv=_conv3(), other=_conv3(inputs=4)), traced=False),
    "reads-what-it-overwrote": Network(lambda: Applied(
        _reads_what_it_overwrote, conv=_conv3(), other=_conv3(inputs=4)), traced=False),
    "relu-unassigned": Network(lambda: Applied(
        lambda self, x: (lambda y: (self.relu(y), self.other(y))[1])(self.conv(x)),
        conv=_conv3(), relu=nn.ReLU(inplace=True), other=_conv3(inputs=4)), traced=False),
    "overwrites-a-view": Network(lambda: Applied(_overwrites_a_view, conv=_conv3(), other=_conv3(inputs=4)), traced=False),
    "overwrites-under-a-view": Network(lambda: Applied(
        _overwrites_under_a_view, conv=_conv3(), head=nn.Linear(144, 2)), traced=False),
    "overwrites-dropped-out": Network(lambda: Applied(
        lambda self, x: (lambda y: (self.drop(y).relu_(), self.other(y))[1])(self.conv(x)),
        conv=_conv3(), drop=nn.Dropout(), other=_conv3(inputs=4)), traced=False),
    # sequences
    "encoder-layer": Network(lambda: _tokens(_encoder_layer(batch_first=True)), (5, 6)),
    "encoder": Network(lambda: _tokens(nn.TransformerEncoder(_encoder_layer(batch_first=True), 2, nn.LayerNorm(8))), (5, 6)),
    "encoder-sequence-first": Network(lambda: _tokens(
        nn.TransformerEncoder(_encoder_layer(batch_first=False), 2, enable_nested_tensor=False), sequence_first=True), (5, 6)),
    "self-attention": Network(lambda: Applied(
        lambda self, x: self.attention(x, x, x)[0] + x, attention=nn.MultiheadAttention(6, 3, batch_first=True)), (5, 6)),
    "vision-transformer": Network(WithPosition, share=["token", "position"]),
    "shared-embedding": Network(lambda: Applied(
        lambda self, x: self.head(self.embed(x.long().abs()).mean(1)), embed=nn.Embedding(9, 8), head=nn.Linear(8, 2)),
        (5,), share=[nn.Embedding]),
}
# Before their first layer they need member-major rows.
TILED_FIRST = ["output-size", "self-attention", "shared-embedding", "mlp-view-size", "mlp-reshape-shape"]
# fmt: on


IMAGES = {name: network for name, network in NETWORKS.items() if len(network.input_shape) == 3}
UNTILED = {name: network for name, network in NETWORKS.items() if network.traced and name not in TILED_FIRST}


@pytest.fixture(params=NETWORKS.values(), ids=NETWORKS.keys())
def network(request: pytest.FixtureRequest) -> Network:
    return request.param


@pytest.fixture(params=IMAGES.values(), ids=IMAGES.keys())
def image_network(request: pytest.FixtureRequest) -> Network:
    """One that takes images."""
    return request.param


@pytest.fixture(params=UNTILED.values(), ids=UNTILED.keys())
def untiled_network(request: pytest.FixtureRequest) -> Network:
    """One whose folded form takes the input untiled into its first layer."""
    return request.param
