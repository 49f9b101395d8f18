"""BatchNorm per member, against one of torch's per member.

Every test runs twice: with torch's operations, and as on a GPU.
"""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from besnn.errors import InputError
from besnn.layers import MemberBatchNorm1d, MemberBatchNorm2d, MemberBatchNorm3d, batch_ensemble, tile

MEMBERS, BATCH, CHANNELS = 3, 4, 5
NORMS = {
    "1d": (MemberBatchNorm1d, nn.BatchNorm1d, ()),
    "1d-sequence": (MemberBatchNorm1d, nn.BatchNorm1d, (6,)),
    "2d": (MemberBatchNorm2d, nn.BatchNorm2d, (3, 4)),
    "3d": (MemberBatchNorm3d, nn.BatchNorm3d, (2, 3, 2)),
}
OPTIONS = [{}, {"eps": 0.1}, {"momentum": 0.5}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}]


@pytest.fixture(params=["torch", "kernels"], autouse=True)
def use_kernels(request, as_on_a_gpu):
    if request.param == "kernels":
        as_on_a_gpu()
    return request.param == "kernels"


@pytest.fixture(params=NORMS.values(), ids=NORMS.keys())
def kind(request):
    return request.param


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_one_norm_for_each_member(kind, options, shake):
    member_norm, plain_norm, spatial = kind
    options = {**options, "dtype": torch.float64}
    plain = [shake(plain_norm(CHANNELS, **options)) for _ in range(MEMBERS)]
    norm = member_norm(CHANNELS, members=MEMBERS, **options)
    norm.load_state_dict(
        {
            name: value if value.ndim == 0 else torch.cat([p.state_dict()[name] for p in plain])
            for name, value in plain[0].state_dict().items()
        }
    )

    def same():
        x = 2 + 3 * torch.randn(MEMBERS * BATCH, CHANNELS, *spatial, dtype=torch.float64)
        expected = torch.cat([p(rows) for p, rows in zip(plain, x.chunk(MEMBERS), strict=True)])
        torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-12)

    for _ in range(3):  # training: batch statistics, and running ones that move
        same()
    for name, value in norm.state_dict().items():
        parts = [p.state_dict()[name] for p in plain]
        torch.testing.assert_close(value, parts[0] if value.ndim == 0 else torch.cat(parts), rtol=1e-12, atol=1e-12)
    norm.eval()
    for p in plain:
        p.eval()
    same()


def test_conversion_copies_the_state_to_every_member(kind, shake):
    _, plain_norm, spatial = kind
    plain = shake(plain_norm(CHANNELS)).eval()
    norm = batch_ensemble(plain, MEMBERS, norm="member")
    x = torch.randn(BATCH, CHANNELS, *spatial)
    torch.testing.assert_close(norm(tile(x, MEMBERS)), tile(plain(x), MEMBERS))
    assert norm.num_batches_tracked == plain.num_batches_tracked


def test_kernels_are_used_in_training_of_maps(kind, use_kernels):
    member_norm, _, spatial = kind
    norm, x = member_norm(CHANNELS, members=MEMBERS), torch.randn(MEMBERS * BATCH, CHANNELS, *spatial)
    assert (norm(x).grad_fn.name() == "_NormaliseBackward") == (use_kernels and bool(spatial))
    assert norm.eval()(x).grad_fn.name() != "_NormaliseBackward"


@pytest.mark.parametrize("affine", [True, False])
def test_gradients(kind, affine, shake):
    member_norm, _, spatial = kind
    norm = shake(member_norm(2, members=2, affine=affine, dtype=torch.float64))
    x = torch.randn(6, 2, *spatial, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in norm.named_parameters()]

    def forward(x, *values):
        return functional_call(norm, dict(zip(names, values, strict=True)), x)

    assert torch.autograd.gradcheck(forward, (x, *norm.parameters()), fast_mode=True)
    assert torch.autograd.gradgradcheck(forward, (x, *norm.parameters()), fast_mode=True)


@pytest.mark.parametrize("frozen", ["weight", "bias", "both"])
def test_frozen_parameters(kind, frozen, shake):
    member_norm, plain_norm, spatial = kind
    norm, plain = shake(member_norm(CHANNELS, members=1, dtype=torch.float64)), plain_norm(CHANNELS, dtype=torch.float64)
    plain.load_state_dict(norm.state_dict())
    x = torch.randn(BATCH, CHANNELS, *spatial, dtype=torch.float64)
    for module in (norm, plain):
        for name in ("weight", "bias"):
            getattr(module, name).requires_grad_(frozen not in (name, "both"))
    y, expected = norm(x), plain(x)
    assert y.requires_grad == expected.requires_grad
    if y.requires_grad:
        for output in (y, expected):
            output.sin().sum().backward()
    for name in ("weight", "bias"):
        torch.testing.assert_close(getattr(norm, name).grad, getattr(plain, name).grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("whole", [False, True], ids=["map", "model"])
def test_bfloat16(kind, whole, shake):
    member_norm, plain_norm, spatial = kind
    norm = shake(member_norm(CHANNELS, members=1, dtype=torch.bfloat16 if whole else torch.float32))
    plain = plain_norm(CHANNELS, dtype=torch.float64)
    plain.load_state_dict(norm.state_dict())
    x = (1 + torch.randn(64, CHANNELS, *spatial)).bfloat16()
    torch.testing.assert_close(norm(x).double(), plain(x.double()), rtol=0.02, atol=0.02)
    assert norm(x).dtype == torch.bfloat16
    plain(x.double())
    state = norm.state_dict()
    assert state["running_mean"].dtype == (torch.bfloat16 if whole else torch.float32)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(state[name].double(), value.double(), rtol=0.02, atol=0.02)


def test_without_gradients(kind):
    member_norm, _, spatial = kind
    norm = member_norm(CHANNELS, members=MEMBERS)
    twin = copy.deepcopy(norm)
    x = torch.randn(MEMBERS * BATCH, CHANNELS, *spatial)
    with torch.no_grad():
        y = norm(x)
    torch.testing.assert_close(y, twin(x).detach())
    torch.testing.assert_close(norm.state_dict(), twin.state_dict())


def test_shared_norm_sees_all_members_rows():
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    ensemble = batch_ensemble(plain, 2)
    rows = ensemble(torch.randn(8, 3))
    torch.testing.assert_close(rows.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    member = batch_ensemble(plain, 2, norm="member")(torch.randn(8, 3))
    torch.testing.assert_close(member.unflatten(0, (2, 4)).mean(1), torch.zeros(2, 3), atol=1e-5, rtol=0)


def test_repr_state_and_copy(kind):
    member_norm, _, spatial = kind
    norm = member_norm(CHANNELS, members=MEMBERS)
    assert repr(norm).startswith(f"{member_norm.__name__}({MEMBERS * CHANNELS}, eps=")
    assert repr(norm).endswith(f"members={MEMBERS})")
    x = torch.randn(MEMBERS * BATCH, CHANNELS, *spatial)
    norm(x)
    other = member_norm(CHANNELS, members=MEMBERS)
    other.load_state_dict(norm.state_dict())
    twin = copy.deepcopy(norm)
    assert torch.equal(other.eval()(x), norm.eval()(x))
    assert torch.equal(twin.eval()(x), norm(x))


def test_rows_that_members_do_not_divide(kind):
    member_norm, _, spatial = kind
    with pytest.raises(InputError, match="members=3 does not divide a batch of 4 rows"):
        member_norm(CHANNELS, members=3)(torch.randn(4, CHANNELS, *spatial))


def test_input_that_torch_rejects(kind):
    member_norm, _, spatial = kind
    norm = member_norm(CHANNELS, members=MEMBERS)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        norm(torch.randn(MEMBERS, CHANNELS, *[1] * len(spatial)))
    for channels in (1, CHANNELS + 1):
        with pytest.raises(RuntimeError, match=f"should contain {MEMBERS * channels} elements not {MEMBERS * CHANNELS}"):
            norm(torch.randn(MEMBERS * BATCH, channels, *spatial))
    with pytest.raises(ValueError, match=r"expected .* input"):
        norm(torch.randn(MEMBERS * BATCH, CHANNELS, 2, 2, 2, 2))
