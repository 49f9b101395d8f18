"""Kernels for NVIDIA GPUs, in Triton: what torch runs as several passes over memory, in one.

Used only where there is such a GPU. Each has an equal in plain PyTorch in `besnn.layers.folding.fuse`.
"""

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]  # not on every machine, and without types
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]  # likewise
except ImportError:  # a machine without a GPU need not have it
    triton = None

_BLOCK = 1024
_PLACES = 64


def max_pool(x: Tensor) -> Tensor:  # pragma: no cover - needs a GPU
    """2×2 max-pooling of `[batch, channels, h, w]` in channels-last memory."""
    batch, channels, height, width = x.shape
    y = torch.empty(
        (batch, channels, height // 2, width // 2), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    count = y.numel()
    _max_pool[(triton.cdiv(count, _BLOCK),)](x, y, count, height, width, channels, _BLOCK)
    return y


def first_block(  # pragma: no cover - needs a GPU
    x: Tensor, weight: Tensor, bias: Tensor, kernel: int, padding: int
) -> Tensor:
    """All members' first convolution (stride 1), ReLU and 2×2 max-pooling of one batch.

    Args:
        x: `[batch, channels, h, w]`, contiguous.
        weight: `[members, depth, out]`: the taps (channel, row, column) of every filter, filled up with zeros to a depth that
            is a power of two, at least 16.
        bias: `[members, out]`, float32.
        kernel: rows and columns of a filter.
        padding: on each side.

    Returns:
        `[members, batch, out, h', w']`, each member's part in channels-last memory.
    """
    batch, inputs, height, width = x.shape
    members, depth, channels = weight.shape
    rows, columns = ((side + 2 * padding - kernel + 1) // 2 for side in (height, width))
    y = torch.empty((members, batch, rows, columns, channels), dtype=x.dtype, device=x.device)
    places = batch * rows * columns
    _first_block[(triton.cdiv(places, _PLACES), members)](
        x, weight, bias, y, places, inputs, height, width, rows, columns,
        kernel, padding, depth, channels, _PLACES,
    )  # fmt: skip
    return y.permute(0, 1, 4, 2, 3)


if triton is not None:  # pragma: no cover - needs a GPU

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _max_pool(x, y, count, height, width, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = index < count
        channel = index % CHANNELS
        place = index // CHANNELS
        column = place % (width // 2)
        line = place // (width // 2)
        row = line % (height // 2)
        image = line // (height // 2)
        corner = x + ((image * height + 2 * row) * width + 2 * column) * CHANNELS + channel
        below = width * CHANNELS
        upper = tl.maximum(tl.load(corner, inside), tl.load(corner + CHANNELS, inside), propagate_nan=tl.PropagateNan.ALL)
        lower = tl.maximum(
            tl.load(corner + below, inside), tl.load(corner + below + CHANNELS, inside), propagate_nan=tl.PropagateNan.ALL
        )
        tl.store(y + index, tl.maximum(upper, lower, propagate_nan=tl.PropagateNan.ALL), inside)

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _first_block(  # type: ignore[no-untyped-def]
        x, weight, bias, y, places, inputs, height, width, rows, columns,
        KERNEL: tl.constexpr, PADDING: tl.constexpr, DEPTH: tl.constexpr, CHANNELS: tl.constexpr, PLACES: tl.constexpr,
    ):  # fmt: skip
        member = tl.program_id(1).to(tl.int64)
        place = tl.program_id(0).to(tl.int64) * PLACES + tl.arange(0, PLACES)
        inside = place < places
        column = place % columns
        row = (place // columns) % rows
        image = place // (columns * rows)
        tap = tl.arange(0, DEPTH)
        channel = tl.arange(0, CHANNELS)
        source = tap // (KERNEL * KERNEL)
        down = (tap // KERNEL) % KERNEL
        right = tap % KERNEL
        filters = tl.load(weight + (member * DEPTH + tap[:, None]) * CHANNELS + channel[None, :])
        best = tl.full((PLACES, CHANNELS), float("-inf"), tl.float32)
        for i in tl.static_range(2):
            for j in tl.static_range(2):
                at_row = 2 * row[:, None] + (i - PADDING) + down[None, :]
                at_column = 2 * column[:, None] + (j - PADDING) + right[None, :]
                there = (at_row >= 0) & (at_row < height) & (at_column >= 0) & (at_column < width)
                there = there & inside[:, None] & (source < inputs)[None, :]
                pixel = x + ((image[:, None] * inputs + source[None, :]) * height + at_row) * width + at_column
                patch = tl.load(pixel, there, other=0.0)
                best = tl.maximum(best, tl.dot(patch, filters), propagate_nan=tl.PropagateNan.ALL)
        shift = tl.load(bias + member * CHANNELS + channel)
        out = tl.maximum(best + shift[None, :], 0.0, propagate_nan=tl.PropagateNan.ALL)
        target = y + (member * places + place[:, None]) * CHANNELS + channel[None, :]
        tl.store(target, out.to(y.dtype.element_ty), inside[:, None])
