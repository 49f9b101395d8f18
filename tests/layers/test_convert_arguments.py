"""What conversion shares, takes and refuses."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from besnn.errors import InputError
from besnn.layers import (
    BatchEnsembleConv2d,
    BatchEnsembleLinear,
    BatchEnsembleMultiheadAttention,
    MemberBatchNorm1d,
    MemberBatchNorm2d,
    batch_ensemble,
    fast_parameters,
    fold,
    initialiser,
    members_of,
    tile,
)

MEMBERS = 3


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


# --- norms ---


def test_norms():
    plain = nn.Sequential(
        nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm3d(2), nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.RMSNorm(2)
    )
    shared = [type(module).__name__ for module in batch_ensemble(plain, 2)]
    assert shared == [type(module).__name__ for module in plain]
    member = [type(module).__name__ for module in batch_ensemble(plain, 2, norm="member")]
    assert member == ["MemberBatchNorm1d", "MemberBatchNorm2d", "MemberBatchNorm3d", "LayerNorm", "GroupNorm", "RMSNorm"]


def test_synchronised_norm():
    plain = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    assert isinstance(batch_ensemble(plain, 2)[1], nn.SyncBatchNorm)
    with pytest.raises(InputError, match=r"layer '1' \(SyncBatchNorm\) has no per-member form: use norm='shared'"):
        batch_ensemble(plain, 2, norm="member")


def test_unknown_norm():
    with pytest.raises(InputError, match=r"norm='both' is unknown: use 'shared'.* or 'member'"):
        batch_ensemble(nn.Linear(2, 2), 2, norm="both")


# --- what cannot be converted ---


class OwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x) ** 2


class OwnConvolution(nn.Conv2d):
    pass


class OwnParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(2))


class ParametersBesideLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Parameter(torch.zeros(1, 4)), nn.Parameter(torch.zeros(5, 4))
        self.head = nn.Linear(4, 2)


UNCONVERTIBLE = [
    nn.Embedding(3, 4), nn.LSTM(2, 3), nn.GRUCell(2, 3), nn.Bilinear(2, 2, 2), nn.ConvTranspose1d(1, 1, 1), nn.PReLU(),
    OwnForward(2, 2), OwnConvolution(1, 1, 1, bias=False), OwnParameter(), nn.ParameterList([torch.zeros(1)]),
    nn.MultiheadAttention(4, 2, add_bias_kv=True), nn.MultiheadAttention(4, 2, add_zero_attn=True),
]  # fmt: skip


@pytest.mark.parametrize("layer", UNCONVERTIBLE, ids=lambda layer: type(layer).__name__)
def test_unconvertible_layer_is_named_and_can_be_shared(layer):
    plain = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"inner": layer}))
    kind = type(layer).__name__
    with pytest.raises(
        InputError, match=rf"layer '1.inner' \({kind}\) has parameters .*no batch-ensemble form: .*share=\['1.inner"
    ):
        batch_ensemble(plain, 2)
    for share in (["1.inner"], [type(layer)], {type(layer)}, ("1.inner",), ["1"]):
        ensemble = batch_ensemble(plain, 2, share=share)
        assert type(ensemble[1]["inner"]) is type(layer)
        assert ensemble[1]["inner"].state_dict().keys() == layer.state_dict().keys()
        assert isinstance(ensemble[0], BatchEnsembleLinear) or type(layer) is OwnForward or nn.Linear in share


def test_own_parameters_beside_layers_are_shared_by_name():
    plain = ParametersBesideLayers()
    with pytest.raises(
        InputError, match=r"the module \(Parameters.*\) has parameters of its own .*share=\['token', 'position'\]"
    ):
        batch_ensemble(plain, 2)
    with pytest.raises(InputError, match=r"share=\['0.position'\]"):
        batch_ensemble(nn.Sequential(plain), 2, share=["0.token"])
    ensemble = batch_ensemble(nn.Sequential(plain), 2, share=["0.token", "0.position"])
    assert isinstance(ensemble[0].head, BatchEnsembleLinear)
    assert ensemble[0].position.shape == (5, 4)


@pytest.mark.parametrize("lazy", [nn.LazyLinear(2), nn.LazyConv2d(2, 3), nn.LazyBatchNorm1d()], ids=lambda m: type(m).__name__)
def test_lazy_layers(lazy):
    with pytest.raises(InputError, match=rf"layer '0' \({type(lazy).__name__}\) has no weights yet: run one batch"):
        batch_ensemble(nn.Sequential(lazy), 2)


@pytest.mark.parametrize("bias", [True, False])
def test_parametrised_before_conversion(bias):
    plain = nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 4, bias=bias)))
    with pytest.raises(InputError, match=r"layer '0' \(ParametrizedLinear\) is parametrised: convert the module first"):
        batch_ensemble(plain, 2)


@pytest.mark.parametrize("parametrise", [parametrizations.spectral_norm, parametrizations.weight_norm])
def test_parametrised_after_conversion(parametrise, oracle):
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(36, 2)).double()
    ensemble = batch_ensemble(plain, 2)
    parametrise(ensemble[0])
    parametrise(ensemble[2])
    ensemble.eval()
    x = torch.randn(5, 3, 5, 5, dtype=torch.float64)
    expected = torch.cat([oracle(ensemble, plain, n)(x) for n in range(2)])
    assert_same(ensemble(tile(x, 2)), expected)
    assert_same(fold(ensemble)(x), expected)
    if parametrise is parametrizations.spectral_norm:
        assert float(torch.linalg.matrix_norm(ensemble[2].weight.detach(), 2)) < 1.2
    assert len(list(fast_parameters(ensemble))) == 4


@pytest.mark.parametrize(
    "converted",
    [BatchEnsembleLinear(2, 2, members=2), MemberBatchNorm1d(2, members=2), batch_ensemble(nn.MultiheadAttention(2, 1), 2)],
    ids=lambda m: type(m).__name__,
)
def test_converting_twice(converted):
    with pytest.raises(InputError, match="is already a batch-ensemble layer: convert the plain module"):
        batch_ensemble(nn.Sequential(converted), 2)


def test_converting_the_rest_of_a_network():
    partly = nn.Sequential(BatchEnsembleConv2d(1, 2, 3, members=2), MemberBatchNorm2d(2, members=2), nn.Conv2d(2, 3, 3))
    ensemble = batch_ensemble(partly, 2, share=["0", MemberBatchNorm2d])
    assert members_of(ensemble) == 2
    assert ensemble(torch.rand(4, 1, 6, 6)).shape == (4, 3, 2, 2)


# --- the arguments ---


def test_shared_inside_torchs_transformer_layer(oracle):
    plain = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double().eval()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    for share in ([nn.MultiheadAttention], ["linear1"], ["self_attn.out_proj"]):
        ensemble = batch_ensemble(plain, MEMBERS, share=share)
        with torch.no_grad():  # torch's fused path would read the members' weights as plain ones
            expected = torch.cat([oracle(ensemble, plain, n)(x) for n in range(MEMBERS)])
            assert_same(ensemble(tile(x, MEMBERS)), expected)
            assert_same(fold(ensemble)(x), expected)
    assert type(ensemble.self_attn.out_proj) is type(plain.self_attn.out_proj)
    assert isinstance(ensemble.self_attn, BatchEnsembleMultiheadAttention)


@pytest.mark.parametrize("name", ["head", "0.weights", 3, nn.Linear(2, 2)])
def test_share_of_what_is_not_there(name):
    with pytest.raises(InputError, match=r"share names .*, but the module has no such layer or parameter"):
        batch_ensemble(nn.Sequential(nn.Linear(2, 2)), 2, share=[name])


def test_share_as_one_string():
    with pytest.raises(InputError, match=r"share='0': pass a collection of names or types, as in share=\['0'\]"):
        batch_ensemble(nn.Sequential(nn.Linear(2, 2)), 2, share="0")


def test_initialiser_is_used():
    ensemble = batch_ensemble(nn.Sequential(nn.Linear(50, 50), nn.MultiheadAttention(4, 2)), 4, init=initialiser("sign"))
    assert {float(value) for parameter in fast_parameters(ensemble) for value in parameter.detach().flatten()} == {-1.0, 1.0}
