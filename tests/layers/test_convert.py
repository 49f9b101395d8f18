"""Conversion of whole networks, against running every member's explicit weights through torch's own modules."""

import copy

import pytest
import torch
from torch import nn

from besnn.layers import (
    BatchEnsembleLinear,
    batch_ensemble,
    fast_parameters,
    members_of,
    normal,
    tile,
)
from besnn.layers.layer import BatchEnsembleLayer
from tests.layers.conftest import NETWORKS

MEMBERS = 3
LAYERS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.MultiheadAttention)


def assert_same(got, expected, tolerance=1e-10):
    if isinstance(expected, tuple):
        for a, b in zip(got, expected, strict=True):
            assert_same(a, b, tolerance)
        return
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def by_member(outputs):
    """Member-major rows from one output per member."""
    if isinstance(outputs[0], tuple):
        return tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
    return torch.cat(outputs)


# --- the function ---


@pytest.mark.parametrize("norm", ["shared", "member"])
def test_equals_every_members_plain_network_and_leaves_the_original_alone(network, norm, oracle, shake):
    if network.members_meet and norm == "shared":
        pytest.skip("a norm without statistics normalises over all members' rows at once")
    plain = network.build().double().eval()
    before, types = copy.deepcopy(plain.state_dict()), [type(module) for module in plain.modules()]
    ensemble = shake(batch_ensemble(plain, MEMBERS, norm=norm, init=normal(0.5), share=network.share))
    assert members_of(ensemble) == MEMBERS
    assert any(type(module) in LAYERS for module in ensemble.modules()) == (network.share == ["trunk"])
    x = network.inputs(2)
    for grad in (True, False):  # torch's fused paths open without gradients
        with torch.set_grad_enabled(grad):
            expected = by_member([oracle(ensemble, plain, n)(x.clone()) for n in range(MEMBERS)])
            assert_same(ensemble(tile(x, MEMBERS)), expected)
    assert [type(module) for module in plain.modules()] == types
    assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())


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


# --- state that is kept ---


@pytest.mark.parametrize(
    ("dtype", "device", "training"), [(torch.float64, "cpu", True), (torch.bfloat16, "meta", False)], ids=str
)
@pytest.mark.parametrize("name", ["residual", "conv3d", "vision-transformer"])
def test_dtype_device_and_mode(name, dtype, device, training):
    network = NETWORKS[name]
    plain = network.build().to(device, dtype).train(training)
    ensemble = batch_ensemble(plain, MEMBERS, norm="member", share=network.share)
    assert {parameter.dtype for parameter in ensemble.parameters()} == {dtype}
    assert {value.device.type for value in ensemble.state_dict().values()} == {device}
    assert {module.training for module in ensemble.modules()} == {training}


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


@pytest.mark.parametrize("name", ["residual", "conv3d", "vision-transformer", "layer-used-twice"])
def test_keeps_or_redraws_weights(name):
    network = NETWORKS[name]
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


# --- tied weights ---


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
