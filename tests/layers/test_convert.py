"""Conversion of whole networks, against running every member's explicit weights through torch's own modules."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from besnn.errors import InputError
from besnn.layers import (
    BatchEnsembleConv2d,
    BatchEnsembleLayer,
    BatchEnsembleLinear,
    BatchEnsembleMultiheadAttention,
    MemberBatchNorm1d,
    MemberBatchNorm2d,
    batch_ensemble,
    fast_parameters,
    fold,
    initialiser,
    members_of,
    normal,
    ones,
    tile,
)

MEMBERS = 3


def assert_same(got, expected, tolerance=1e-10):
    if isinstance(expected, tuple):
        for a, b in zip(got, expected, strict=True):
            assert_same(a, b, tolerance)
        return
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def by_member(outputs):
    """Member-major rows from one output a member."""
    if isinstance(outputs[0], tuple):
        return tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
    return torch.cat(outputs)


# --- the function ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["shared", "member"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no-grad"])  # torch's fused paths open without gradients
def test_equals_every_members_plain_network(network, norm, grad, oracle, shake):
    if network.members_meet and norm == "shared":
        pytest.skip("a norm without statistics normalises over all members' rows at once")
    plain = network.build().double().eval()
    ensemble = shake(batch_ensemble(plain, MEMBERS, norm=norm, init=normal(0.5), share=network.share))
    x = network.inputs(2)
    with torch.set_grad_enabled(grad):
        expected = by_member([oracle(ensemble, plain, n)(x.clone()) for n in range(MEMBERS)])
        assert_same(ensemble(tile(x, MEMBERS)), expected)


def test_training_with_a_norm_for_each_member(network, oracle):
    if network.share == ["trunk"]:
        pytest.skip("a shared BatchNorm normalises over all members' rows at once")
    plain = network.build().double().train()
    ensemble = batch_ensemble(plain, MEMBERS, norm="member", init=normal(0.5), share=network.share)
    members = [oracle(ensemble, plain, n) for n in range(MEMBERS)]
    x = network.inputs(4)
    assert_same(ensemble(tile(x, MEMBERS)), by_member([member(x.clone()) for member in members]))
    for n, member in enumerate(members):  # the running statistics moved alike
        after = oracle(ensemble, plain, n)
        for name, value in member.named_buffers():
            assert_same(after.get_buffer(name), value)


def test_ones_make_every_member_the_plain_network(network):
    plain = network.build().double().eval()
    ensemble = batch_ensemble(plain, MEMBERS, init=ones(), share=network.share)
    x = network.inputs(2)
    assert_same(ensemble(tile(x, MEMBERS)), by_member([plain(x.clone()) for _ in range(MEMBERS)]))


def test_leaves_the_original_alone(network):
    plain = network.build()
    before, types = copy.deepcopy(plain.state_dict()), [type(module) for module in plain.modules()]
    ensemble = batch_ensemble(plain, MEMBERS, norm="member", keep_weights=False, share=network.share)
    assert [type(module) for module in plain.modules()] == types
    assert plain.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())
    assert not {id(p) for p in plain.parameters()} & {id(p) for p in ensemble.parameters()}


def test_every_weight_gets_fast_weights(network):
    ensemble = batch_ensemble(network.build(), MEMBERS, share=network.share)
    assert members_of(ensemble) == MEMBERS
    plain_layers = [
        m for m in ensemble.modules() if type(m) in (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.MultiheadAttention)
    ]
    assert bool(plain_layers) == (network.share == ["trunk"])


# --- what is kept --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_training_mode(network, training):
    ensemble = batch_ensemble(network.build().train(training), MEMBERS, norm="member", share=network.share)
    assert {module.training for module in ensemble.modules()} == {training}


def test_mixed_training_modes_are_kept():
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3).eval(), nn.Dropout())
    assert [module.training for module in batch_ensemble(plain, 2, norm="member")] == [True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype(network, dtype):
    ensemble = batch_ensemble(network.build().to(dtype), MEMBERS, norm="member", share=network.share)
    assert {parameter.dtype for parameter in ensemble.parameters()} == {dtype}


def test_device(network):
    ensemble = batch_ensemble(network.build().to("meta"), MEMBERS, norm="member", share=network.share)
    assert {value.device.type for value in ensemble.state_dict().values()} == {"meta"}


def test_hooks():
    plain, calls = nn.Sequential(nn.Linear(2, 3), nn.Conv1d(1, 2, 1)), []
    plain[0].register_forward_hook(lambda module, *_: calls.append(type(module)))
    plain[0].register_forward_pre_hook(lambda module, *_: calls.append("before"))
    batch_ensemble(plain, 2)[0](torch.rand(4, 2))
    assert calls == ["before", BatchEnsembleLinear]


def test_requires_grad():
    plain = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.MultiheadAttention(4, 2), nn.Linear(3, 4)).requires_grad_(
        False
    )
    plain[3].bias.requires_grad_()
    ensemble = batch_ensemble(plain, 2, norm="member")
    fast = {id(parameter) for parameter in fast_parameters(ensemble)}
    trained = {name for name, parameter in ensemble.named_parameters() if parameter.requires_grad and id(parameter) not in fast}
    assert trained == {"3.bias"}
    assert all(parameter.requires_grad for parameter in fast_parameters(ensemble))  # fine-tuning trains them alone


def test_keeps_or_redraws_weights(network):
    plain = network.build()
    kept = batch_ensemble(plain, 2, share=network.share)
    redrawn = batch_ensemble(plain, 2, keep_weights=False, share=network.share)
    layers = dict(plain.named_modules())
    for (name, layer), other in zip(kept.named_modules(), redrawn.modules(), strict=True):
        if isinstance(layer, BatchEnsembleLayer) and name in layers:
            assert torch.equal(layer.weight, layers[name].weight), name
        if isinstance(layer, BatchEnsembleLayer):
            assert not torch.equal(layer.weight, other.weight), name
            assert layer.bias is None or torch.equal(layer.bias[0], layer.bias[1])


def test_redraws_norms():
    plain = nn.Sequential(nn.BatchNorm1d(3), nn.LayerNorm(3))
    with torch.no_grad():
        for value in plain.state_dict().values():
            value.fill_(7)
    for norm in ("shared", "member"):
        redrawn = batch_ensemble(plain, 2, keep_weights=False, norm=norm)
        assert not any(bool((value == 7).any()) for value in redrawn.state_dict().values())


def test_redrawn_attention_starts_as_torchs():
    plain = nn.MultiheadAttention(16, 2)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.fill_(7)
    redrawn = batch_ensemble(plain, 2, keep_weights=False)
    bound = (6 / (16 + 48)) ** 0.5  # Xavier, on the joint weight of query, key and value
    for projection in (redrawn.q_proj, redrawn.k_proj, redrawn.v_proj):
        assert 0.8 * bound < float(projection.weight.detach().abs().max()) <= bound
        assert not projection.bias.any()
    assert float(redrawn.out_proj.weight.detach().abs().max()) < 1


# --- what is tied ----------------------------------------------------------------------------------------------------------------


def test_module_used_in_two_places_is_one():
    layer = nn.Linear(3, 3)
    ensemble = batch_ensemble(nn.Sequential(layer, nn.ModuleList([layer]), nn.Sequential(nn.ReLU(), layer)), 2)
    assert ensemble[0] is ensemble[1][0] is ensemble[2][1]
    assert len(list(fast_parameters(ensemble))) == 2


def test_tied_parameters_stay_tied():
    plain = nn.ModuleDict(
        {"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "norm_a": nn.BatchNorm1d(3), "norm_b": nn.BatchNorm1d(3)}
    )
    plain.b.weight, plain.b.bias = plain.a.weight, plain.a.bias
    plain.norm_b.weight, plain.norm_b.bias = plain.norm_a.weight, plain.norm_a.bias
    ensemble = batch_ensemble(plain, 2, norm="member")
    assert ensemble["a"].weight is ensemble["b"].weight
    assert ensemble["a"].bias is ensemble["b"].bias
    assert ensemble["a"].r is not ensemble["b"].r  # fast weights belong to a layer
    assert ensemble["norm_a"].weight is ensemble["norm_b"].weight
    assert ensemble["norm_a"].bias is ensemble["norm_b"].bias


@pytest.mark.parametrize("sizes", [{}, {"kdim": 6, "vdim": 6}])
def test_tied_attention_stays_tied(sizes):
    plain = nn.ModuleList([nn.MultiheadAttention(4, 2, **sizes), nn.MultiheadAttention(4, 2, **sizes)])
    for name in list(plain[0]._parameters):
        setattr(plain[1], name, getattr(plain[0], name))
    a, b = batch_ensemble(plain, 2)
    for projection in ("q_proj", "k_proj", "v_proj"):
        assert getattr(a, projection).weight is getattr(b, projection).weight
        assert getattr(a, projection).bias is getattr(b, projection).bias
    assert a.q_proj.weight is not a.k_proj.weight
    assert a.out_proj.weight is not b.out_proj.weight


def test_output_layer_tied_to_a_shared_embedding():
    plain = nn.ModuleDict({"embedding": nn.Embedding(9, 4), "output": nn.Linear(4, 9)})
    plain.output.weight = plain.embedding.weight
    ensemble = batch_ensemble(plain, 2, share=["embedding"])
    assert ensemble["output"].weight is ensemble["embedding"].weight
    assert isinstance(ensemble["output"], BatchEnsembleLinear)


# --- norms -------------------------------------------------------------------------------------------------------------------------


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
    with pytest.raises(InputError, match="norm='both' is unknown: use 'shared'.* or 'member'"):
        batch_ensemble(nn.Linear(2, 2), 2, norm="both")


# --- what cannot be converted --------------------------------------------------------------------------------------------------------


class OwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x) ** 2


class OwnConvolution(nn.Conv2d):
    pass


class OwnParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(2))


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


def test_own_parameters_beside_layers_are_shared_by_name(vision_transformer):
    with pytest.raises(
        InputError, match=r"the module \(WithPosition\) has parameters of its own .*share=\['token', 'position'\]"
    ):
        batch_ensemble(vision_transformer, 2)
    with pytest.raises(InputError, match=r"share=\['0.position'\]"):
        batch_ensemble(nn.Sequential(vision_transformer), 2, share=["0.token"])
    ensemble = batch_ensemble(nn.Sequential(vision_transformer), 2, share=["0.token", "0.position"])
    assert isinstance(ensemble[0].head, BatchEnsembleLinear)
    assert ensemble[0].position.shape == (1, 5, 8)


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
    with pytest.raises(InputError, match="is a batch-ensemble layer already: convert the plain module"):
        batch_ensemble(nn.Sequential(converted), 2)


def test_converting_the_rest_of_a_network():
    partly = nn.Sequential(BatchEnsembleConv2d(1, 2, 3, members=2), MemberBatchNorm2d(2, members=2), nn.Conv2d(2, 3, 3))
    ensemble = batch_ensemble(partly, 2, share=["0", MemberBatchNorm2d])
    assert members_of(ensemble) == 2
    assert ensemble(torch.rand(4, 1, 6, 6)).shape == (4, 3, 2, 2)


# --- the arguments -----------------------------------------------------------------------------------------------------------------


def test_shared_by_name_wherever_it_is_used():
    layer = nn.Linear(3, 3)
    plain = nn.Sequential(nn.Sequential(layer), nn.Linear(3, 3), nn.Sequential(layer))
    for name in ("0.0", "2.0"):
        ensemble = batch_ensemble(plain, 2, share=[name])
        assert type(ensemble[0][0]) is nn.Linear
        assert ensemble[0][0] is ensemble[2][0]
        assert isinstance(ensemble[1], BatchEnsembleLinear)


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
    with pytest.raises(InputError, match="share names .*, but the module has no such layer or parameter"):
        batch_ensemble(nn.Sequential(nn.Linear(2, 2)), 2, share=[name])


def test_share_as_one_string():
    with pytest.raises(InputError, match=r"share='0': pass a collection of names or types, as in share=\['0'\]"):
        batch_ensemble(nn.Sequential(nn.Linear(2, 2)), 2, share="0")


@pytest.mark.parametrize("members", [0, 2.0, True])
def test_wrong_members(members):
    with pytest.raises(InputError, match="members="):
        batch_ensemble(nn.Linear(2, 2), members)


def test_initialiser_is_used():
    ensemble = batch_ensemble(nn.Sequential(nn.Linear(50, 50), nn.MultiheadAttention(4, 2)), 4, init=initialiser("sign"))
    assert {float(value) for parameter in fast_parameters(ensemble) for value in parameter.detach().flatten()} == {-1.0, 1.0}


def test_a_layer_alone():
    assert isinstance(batch_ensemble(nn.Linear(2, 3), 4), BatchEnsembleLinear)


def test_training_step_moves_shared_and_fast_weights():
    ensemble = batch_ensemble(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)), 2, norm="member"
    )
    ensemble(tile(torch.rand(4, 1, 4, 4), 2)).square().sum().backward()
    assert all(parameter.grad is not None and bool(parameter.grad.abs().sum() > 0) for parameter in fast_parameters(ensemble))
    assert all(parameter.grad is not None for parameter in ensemble.parameters())
