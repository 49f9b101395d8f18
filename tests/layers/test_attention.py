"""Attention and torch's transformer layers, with their masks, against torch's modules with each member's explicit weights."""

import pytest
import torch
from torch import nn

from besnn.errors import InputError
from besnn.layers import batch_ensemble, fold, normal, tile

MEMBERS, BATCH, LENGTH, WIDTH, HEADS = 3, 2, 5, 8, 2


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def sequences(batch_first, width=WIDTH, length=LENGTH):
    x = randn(BATCH, length, width)
    return x if batch_first else x.transpose(0, 1)


def padding(length=LENGTH):
    mask = torch.zeros(BATCH, length, dtype=torch.bool)
    mask[0, -2:] = True
    return mask


CAUSAL = nn.Transformer.generate_square_subsequent_mask(LENGTH, dtype=torch.float64)
PADDING = padding()
SKIPPING = torch.eye(LENGTH, dtype=torch.bool).roll(1, 0)
EACH_HEAD = torch.randn(BATCH * HEADS, LENGTH, LENGTH, dtype=torch.float64)


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def tiled(mask):
    """Masks with a batch axis are tiled as the batch is; one for all rows is not."""
    return None if mask is None else mask if mask.shape[0] == LENGTH else tile(mask, MEMBERS)


@pytest.fixture(params=[True, False], ids=["batch-first", "sequence-first"])
def batch_first(request):
    return request.param


@pytest.fixture(params=["training", "no-grad"])  # torch's fused paths open in evaluation without gradients
def mode(request):
    with torch.set_grad_enabled(request.param != "no-grad"):
        yield request.param == "training"


@pytest.mark.parametrize("sizes", [{}, {"kdim": 6, "vdim": 4}, {"bias": False}], ids=["same", "kdim-vdim", "no-bias"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    ("attn_mask", "key_padding_mask"),
    [(None, None), (CAUSAL, PADDING), (SKIPPING, None), (EACH_HEAD, PADDING)],
    ids=["none", "float-padded", "bool", "each-head-padded"],
)
@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_attention(batch_first, mode, sizes, need_weights, attn_mask, key_padding_mask, oracle):
    plain = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **sizes).double().train(mode)
    ensemble = batch_ensemble(plain, MEMBERS, init=normal(0.5))
    inputs = [sequences(batch_first, width) for width in (WIDTH, plain.kdim, plain.vdim)]
    rows = 0 if batch_first else 1
    output, weights = ensemble(
        *(tile(x, MEMBERS, rows) for x in inputs),
        key_padding_mask=tiled(key_padding_mask), need_weights=need_weights, attn_mask=tiled(attn_mask),
    )  # fmt: skip
    expected = [
        oracle(ensemble, plain, n)(*inputs, key_padding_mask=key_padding_mask, need_weights=need_weights, attn_mask=attn_mask)
        for n in range(MEMBERS)
    ]
    close(output, torch.cat([y for y, _ in expected], dim=rows))
    if need_weights:
        close(weights, torch.cat([w for _, w in expected]))
    else:
        assert weights is None


def test_weights_of_each_head(oracle):
    plain = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    ensemble, x = batch_ensemble(plain, MEMBERS), sequences(True)
    rows = tile(x, MEMBERS)
    _, weights = ensemble(rows, rows, rows, average_attn_weights=False)
    close(weights, torch.cat([oracle(ensemble, plain, n)(x, x, x, average_attn_weights=False)[1] for n in range(MEMBERS)]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_dropout_only_in_training(training, need_weights):
    attention = batch_ensemble(nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, batch_first=True), 2).train(training)
    x = torch.randn(4, 50, WIDTH)
    first, second = (attention(x, x, x, need_weights=need_weights)[0] for _ in range(2))
    assert torch.equal(first, second) == (not training)
    if training:
        _, weights = attention(x, x, x, average_attn_weights=False)
        assert 0.4 < float((weights == 0).float().mean()) < 0.6


def test_unbatched_query():
    attention = batch_ensemble(nn.MultiheadAttention(WIDTH, HEADS), 2)
    x = torch.randn(4, WIDTH)
    with pytest.raises(InputError, match=r"query has shape \[4, 8\]: attention takes batches of sequences"):
        attention(x, x, x)


def test_causal_hint_without_mask():
    attention, x = batch_ensemble(nn.MultiheadAttention(WIDTH, HEADS), 2), torch.randn(4, 2, WIDTH)
    with pytest.raises(InputError, match="pass the causal mask as attn_mask"):
        attention(x, x, x, is_causal=True, need_weights=False)


MASKS = {
    "none": {},
    "padded": {"src_key_padding_mask": PADDING},
    "causal": {"mask": CAUSAL, "is_causal": True},
    "padded-and-masked": {"mask": SKIPPING, "src_key_padding_mask": PADDING},
}


def encoder_layer(batch_first, **options):
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 16, dropout=0.0, batch_first=batch_first, dtype=torch.float64, **options)


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}, {"bias": False}], ids=str)
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("stacked", [False, True], ids=["layer", "encoder"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_encoder(batch_first, mode, options, masks, stacked, oracle):
    plain = encoder_layer(batch_first, **options)
    if stacked:
        plain = nn.TransformerEncoder(plain, 2, norm=nn.LayerNorm(WIDTH, dtype=torch.float64))
    else:
        masks = {"src_mask" if name == "mask" else name: mask for name, mask in masks.items()}
    plain.train(mode)
    ensemble = batch_ensemble(plain, MEMBERS, init=normal(0.5))
    x, rows = sequences(batch_first), 0 if batch_first else 1
    ours = {name: tiled(mask) if isinstance(mask, torch.Tensor) else mask for name, mask in masks.items()}
    output = ensemble(tile(x, MEMBERS, rows), **ours)
    expected = torch.cat([oracle(ensemble, plain, n)(x, **masks) for n in range(MEMBERS)], dim=rows)
    if "src_key_padding_mask" in masks:  # torch's fused path leaves zeros where the padding is
        real = ~tile(masks["src_key_padding_mask"], MEMBERS)
        output, expected = (y[real] if batch_first else y.transpose(0, 1)[real] for y in (output, expected))
    close(output, expected)


def test_decoder(batch_first, mode, oracle):
    plain = nn.TransformerDecoderLayer(WIDTH, HEADS, 16, dropout=0.0, batch_first=batch_first, dtype=torch.float64).train(mode)
    ensemble, rows = batch_ensemble(plain, MEMBERS, init=normal(0.5)), 0 if batch_first else 1
    target, memory = sequences(batch_first), sequences(batch_first, length=7)
    expected = torch.cat([oracle(ensemble, plain, n)(target, memory, tgt_mask=CAUSAL) for n in range(MEMBERS)], dim=rows)
    close(ensemble(tile(target, MEMBERS, rows), tile(memory, MEMBERS, rows), tgt_mask=CAUSAL), expected)


def test_folded_encoder_never_takes_torchs_fused_path():
    ensemble = batch_ensemble(nn.TransformerEncoder(encoder_layer(True), 2), MEMBERS, init=normal(0.5)).eval()
    x = sequences(True)
    expected = ensemble(tile(x, MEMBERS))
    with torch.no_grad():
        close(fold(ensemble)(x), expected)
