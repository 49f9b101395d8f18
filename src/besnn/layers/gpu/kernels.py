"""Triton kernels for NVIDIA GPUs: what torch runs as several passes over memory, in one.

For training, `combine`, `sums` and `moments` work on feature maps by member and channel (see
`besnn.layers.gpu.scale_and_norm`). They read a map in the memory layout it has, as `[members, lines, channels, places]`: in a
contiguous map a line is an image and its places are the pixels; in a channels-last map a line is a pixel and has one place.

For inference, `max_pool` and `first_block` do what `besnn.layers.folding.fuse` also has in plain PyTorch.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]  # not on every machine, and without types
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]  # the same
except ImportError:
    triton = None

_logger = logging.getLogger(__name__)
_TILE = 2048  # numbers that a program reads at a time
_PROGRAMS = 2048  # about as many as keep a large GPU busy
_BLOCK, _PLACES = 1024, 64  # numbers that one program of `max_pool` writes, and places that one of `first_block` does
_works: dict[torch.device, bool] = {}  # whether Triton worked


def available(device: torch.device) -> bool:
    """Return whether Triton is installed and works on a device: it needs a C compiler, and a GPU that is not too old."""
    if triton is None:
        return False
    if device not in _works:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False  # nothing can be compiled while a graph is captured
        one = torch.ones((1, 1, 1), device=device)
        try:
            combine([(one, one[0])], None)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # whatever is wrong with the compiler: torch's own operations do the same
            _logger.warning("training on %s runs without Triton, more slowly (%s: %s)", device, type(error).__name__, error)
            _works[device] = False
        else:
            _works[device] = True
    return _works[device]


class _Layout(NamedTuple):
    """How a map lies in memory, and how programs divide it."""

    members: int
    lines: int
    channels: int
    places: int
    wide: int  # channels per program
    long: int  # (line, place) pairs that a program reads at a time: a tile
    last: bool  # whether the memory is channels-last

    @property
    def groups(self) -> int:
        """Members times blocks of channels."""
        return self.members * int(triton.cdiv(self.channels, self.wide))

    @property
    def tiles(self) -> int:
        """Tiles per group."""
        return int(triton.cdiv(self.lines * self.places, self.long))

    def dense(self, x: Tensor) -> Tensor:
        """Return the tensor in this memory layout."""
        return x.contiguous(memory_format=torch.channels_last if self.last else torch.contiguous_format)


def _layout(x: Tensor, members: int) -> _Layout:
    channels = x.shape[1]
    last = x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    places = 1 if last else x.shape[2:].numel()
    wide = 1 if places >= 16 else min(64, int(triton.next_power_of_2(channels)))
    return _Layout(members, x.numel() // (members * channels * places), channels, places, wide, _TILE // wide, last)


def combine(terms: Sequence[tuple[Tensor, Tensor]], shift: Tensor | None) -> Tensor:
    """Compute Σ x · scale + shift over up to three pairs of a map and its `[members, channels]`, in the first map's dtype."""
    layout = _layout(terms[0][0], len(terms[0][1]))
    maps: list[Any] = [layout.dense(x) for x, _ in terms]
    scales = [scale.contiguous() for _, scale in terms]
    out = torch.empty_like(maps[0])
    unused = [None] * (3 - len(terms))
    # All programs stand on one axis: the others take no more than 65,535, and a large map has more tiles.
    with torch.cuda.device_of(out):
        _combine[(layout.groups * layout.tiles,)](
            *maps, *unused, *scales, *unused, None if shift is None else shift.contiguous(), out, layout.groups, *layout[1:4],
            WIDE=layout.wide, LONG=layout.long, TERMS=len(terms), SHIFTED=shift is not None, DOUBLE=out.dtype == torch.float64,
        )  # fmt: skip
    return out


def sums(  # pragma: no cover - tests run it in another process
    a: Tensor, x: Tensor, members: int, mean: Tensor | None = None, b: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Compute Σ a, Σ a · (x − mean) and, with b, Σ a · b over each member's channel, `[members, channels]` each."""
    layout = _layout(x, members)
    a, x, b = layout.dense(a), layout.dense(x), None if b is None else layout.dense(b)
    out = _partial(2 if b is None else 3, layout, x)
    with torch.cuda.device_of(x):
        _sums[layout.groups, out.shape[1]](
            a, x, b, None if mean is None else mean.contiguous(), out, *layout[1:4], WIDE=layout.wide, LONG=layout.long,
            CENTRED=mean is not None, PAIRED=b is not None, DOUBLE=x.dtype == torch.float64,
        )  # fmt: skip
    return out.sum(dim=1).unbind()


def moments(x: Tensor, members: int) -> tuple[Tensor, Tensor]:  # pragma: no cover - tests run it in another process
    """Compute the mean and the (biased) variance of each member's channel, `[members, channels]` each."""
    layout = _layout(x, members)
    x = layout.dense(x)
    out = _partial(3, layout, x)
    with torch.cuda.device_of(x):
        _moments[layout.groups, out.shape[1]](
            x, out, *layout[1:4], WIDE=layout.wide, LONG=layout.long, DOUBLE=x.dtype == torch.float64
        )
    counts, means, spreads = out
    total = layout.lines * layout.places
    mean = (counts * means).sum(dim=0) / total
    variance = (spreads + counts * (means - mean).square()).sum(dim=0) / total
    return mean, variance


def _partial(kinds: int, layout: _Layout, x: Tensor) -> Tensor:
    """Allocate the results of the programs that share a channel, `[kinds, programs, members, channels]`."""
    programs = max(1, min(layout.tiles // 4, _PROGRAMS // layout.groups))
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.empty((kinds, programs, layout.members, layout.channels), dtype=dtype, device=x.device)


def max_pool(x: Tensor) -> Tensor:  # pragma: no cover - tests run it in another process
    """Apply 2×2 max-pooling to `[batch, channels, h, w]` in channels-last memory."""
    batch, channels, height, width = x.shape
    y = torch.empty(
        (batch, channels, height // 2, width // 2), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    count = y.numel()
    _max_pool[(triton.cdiv(count, _BLOCK),)](x, y, count, height, width, channels, _BLOCK)
    return y


def first_block(  # pragma: no cover - tests run it in another process
    x: Tensor, weight: Tensor, bias: Tensor, kernel: int, padding: int
) -> Tensor:
    """Apply all members' first convolution (stride 1), ReLU and 2×2 max-pooling to one batch.

    Map `[batch, channels, h, w]`, contiguous, to `[members, batch, out, h', w']`, each member's part in channels-last memory.
    `weight` is `[members, depth, out]`: the weights (channel, row, column) of every filter, padded with zeros to a depth that
    is a power of two, at least 16. `bias` is `[members, out]`, float32.
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


if triton is not None:  # pragma: no cover - tests run it in another process
    # Every `type: ignore` below: Triton's decorator has no types, and a kernel's arguments are pointers and numbers of its own.

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _own_channels(group, channels, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
        """Return a program's member and channels, and which of the channels exist."""
        blocks = tl.cdiv(channels, WIDE)
        channel = (group % blocks) * WIDE + tl.arange(0, WIDE)
        return group // blocks, channel, channel < channels

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _own_numbers(  # type: ignore[no-untyped-def]
        tile, member, channel, wanted, lines, channels, places: tl.constexpr, LONG: tl.constexpr
    ):
        """Return the addresses of a tile's numbers in a map, and which of them exist."""
        pair = tile * LONG + tl.arange(0, LONG)
        line = (member * lines + pair // places).to(tl.int64)
        address = (line[:, None] * channels + channel[None, :]) * places + (pair % places)[:, None]
        return address, (pair < lines * places)[:, None] & wanted[None, :]

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _term(x, scale, address, there, coefficient, wanted, exact: tl.constexpr):  # type: ignore[no-untyped-def]
        return tl.load(x + address, there, other=0.0).to(exact) * tl.load(scale + coefficient, wanted, other=0.0)[None, :]

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _combine(  # type: ignore[no-untyped-def]
        x0, x1, x2, scale0, scale1, scale2, shift, out, groups, lines, channels, places: tl.constexpr,
        WIDE: tl.constexpr, LONG: tl.constexpr, TERMS: tl.constexpr, SHIFTED: tl.constexpr, DOUBLE: tl.constexpr,
    ):  # fmt: skip
        exact = tl.float64 if DOUBLE else tl.float32
        member, channel, wanted = _own_channels(tl.program_id(0) % groups, channels, WIDE)
        coefficient = member * channels + channel
        address, there = _own_numbers(tl.program_id(0) // groups, member, channel, wanted, lines, channels, places, LONG)
        total = _term(x0, scale0, address, there, coefficient, wanted, exact)
        if TERMS > 1:
            total += _term(x1, scale1, address, there, coefficient, wanted, exact)
        if TERMS > 2:
            total += _term(x2, scale2, address, there, coefficient, wanted, exact)
        if SHIFTED:
            total += tl.load(shift + coefficient, wanted, other=0.0)[None, :]
        tl.store(out + address, total.to(out.dtype.element_ty), there)

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _sums(  # type: ignore[no-untyped-def]
        a, x, b, mean, out, lines, channels, places: tl.constexpr,
        WIDE: tl.constexpr, LONG: tl.constexpr, CENTRED: tl.constexpr, PAIRED: tl.constexpr, DOUBLE: tl.constexpr,
    ):  # fmt: skip
        exact = tl.float64 if DOUBLE else tl.float32
        total = tl.zeros((LONG, WIDE), exact)
        product = tl.zeros((LONG, WIDE), exact)
        pair = tl.zeros((LONG, WIDE), exact)
        share, shares = tl.program_id(1), tl.num_programs(1)
        member, channel, wanted = _own_channels(tl.program_id(0), channels, WIDE)
        coefficient = member * channels + channel
        centre = tl.load(mean + coefficient, wanted, other=0.0) if CENTRED else tl.zeros((WIDE,), exact)
        for tile in range(share, tl.cdiv(lines * places, LONG), shares):
            address, there = _own_numbers(tile, member, channel, wanted, lines, channels, places, LONG)
            here = tl.load(a + address, there, other=0.0).to(exact)
            total += here
            product += here * (tl.load(x + address, there, other=0.0).to(exact) - centre[None, :])
            if PAIRED:
                pair += here * tl.load(b + address, there, other=0.0).to(exact)
        size = tl.num_programs(0) // tl.cdiv(channels, WIDE) * channels
        target = out + share * size + coefficient
        tl.store(target, tl.sum(total, axis=0), wanted)
        tl.store(target + shares * size, tl.sum(product, axis=0), wanted)
        if PAIRED:
            tl.store(target + 2 * shares * size, tl.sum(pair, axis=0), wanted)

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _moments(  # type: ignore[no-untyped-def]
        x, out, lines, channels, places: tl.constexpr, WIDE: tl.constexpr, LONG: tl.constexpr, DOUBLE: tl.constexpr
    ):
        # Welford's recurrence in every lane, then all lanes of a channel together: no cancellation where |mean| ≫ deviation.
        exact = tl.float64 if DOUBLE else tl.float32
        count = tl.zeros((LONG, WIDE), exact)
        mean = tl.zeros((LONG, WIDE), exact)
        spread = tl.zeros((LONG, WIDE), exact)
        share, shares = tl.program_id(1), tl.num_programs(1)
        member, channel, wanted = _own_channels(tl.program_id(0), channels, WIDE)
        coefficient = member * channels + channel
        for tile in range(share, tl.cdiv(lines * places, LONG), shares):
            address, there = _own_numbers(tile, member, channel, wanted, lines, channels, places, LONG)
            here = tl.load(x + address, there, other=0.0).to(exact)
            count += there.to(exact)
            off = tl.where(there, here - mean, 0.0)
            mean += off / tl.maximum(count, 1.0)
            spread += off * (here - mean)
        all_counts = tl.sum(count, axis=0)
        all_mean = tl.sum(count * mean, axis=0) / tl.maximum(all_counts, 1.0)
        away = mean - all_mean[None, :]
        size = tl.num_programs(0) // tl.cdiv(channels, WIDE) * channels
        target = out + share * size + coefficient
        tl.store(target, all_counts, wanted)
        tl.store(target + shares * size, all_mean, wanted)
        tl.store(target + 2 * shares * size, tl.sum(spread + count * away * away, axis=0), wanted)

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
