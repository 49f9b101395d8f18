"""Kernels for NVIDIA GPUs, in Triton, that sum up and combine maps by member and channel: see `besnn.layers.gpu.scale_and_norm`.

A map is read in the memory layout that it has, contiguous or channels-last, as `[members, lines, channels, places]`: the first
has an image a line and its pixels as places, the second a pixel a line and one place.
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]  # not on every machine, and without types
    import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]  # likewise
except ImportError:  # a machine without a GPU need not have it
    triton = None

_logger = logging.getLogger(__name__)
_TILE = 2048
"""Numbers that a program reads at a time."""
_PROGRAMS = 2048
"""About as many as keep a large GPU busy."""
_works: dict[torch.device, bool] = {}
"""What the trial on each device showed."""


def available(device: torch.device) -> bool:
    """Whether Triton is there and works on a device: it takes a C compiler, and a GPU that is not too old."""
    if triton is None:
        return False
    if device not in _works:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False  # no time to compile
        one = torch.ones((1, 1, 1), device=device)
        try:
            combine([(one, one[0])], None)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # whatever ails the compiler, torch's own operations do the same
            _logger.warning("layers go on without Triton on %s, slower (%s: %s)", device, type(error).__name__, error)
            _works[device] = False
        else:
            _works[device] = True
    return _works[device]


class _Layout(NamedTuple):
    """How a map lies in memory, and how a kernel goes through it."""

    members: int
    lines: int
    channels: int
    places: int
    wide: int
    """Channels that a program takes."""
    long: int
    """(line, place) pairs that it takes at a time."""
    last: bool
    """Whether the memory is channels-last."""

    @property
    def groups(self) -> int:
        """Programs beside one another: members times blocks of channels."""
        return self.members * int(triton.cdiv(self.channels, self.wide))

    @property
    def tiles(self) -> int:
        """Tiles of one program, if it went through all of its channels alone."""
        return int(triton.cdiv(self.lines * self.places, self.long))

    def dense(self, x: Tensor) -> Tensor:
        """The tensor in this layout."""
        return x.contiguous(memory_format=torch.channels_last if self.last else torch.contiguous_format)


def _layout(x: Tensor, members: int) -> _Layout:
    channels = x.shape[1]
    last = x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    places = 1 if last else x.shape[2:].numel()
    wide = 1 if places >= 16 else min(64, int(triton.next_power_of_2(channels)))
    return _Layout(members, x.numel() // (members * channels * places), channels, places, wide, _TILE // wide, last)


def combine(terms: Sequence[tuple[Tensor, Tensor]], shift: Tensor | None) -> Tensor:
    """Σ x · scale + shift over up to three pairs of a map and its `[members, channels]`, in the type of the first map."""
    layout = _layout(terms[0][0], len(terms[0][1]))
    maps = [layout.dense(x) for x, _ in terms]
    scales = [scale.contiguous() for _, scale in terms]
    out = torch.empty_like(maps[0])
    filled: list[Any] = [maps[index] if index < len(maps) else None for index in range(3)]
    filled += [scales[index] if index < len(scales) else None for index in range(3)]
    # all programs on one axis: on the others CUDA takes no more than 65,535, and a large map has more tiles
    with torch.cuda.device_of(out):
        _combine[(layout.groups * layout.tiles,)](
            *filled, None if shift is None else shift.contiguous(), out, layout.groups, *layout[1:4],
            WIDE=layout.wide, LONG=layout.long, TERMS=len(maps), SHIFTED=shift is not None, DOUBLE=out.dtype == torch.float64,
        )  # fmt: skip
    return out


def sums(  # pragma: no cover - tests run it in another process
    a: Tensor, x: Tensor, members: int, mean: Tensor | None, b: Tensor | None
) -> tuple[Tensor, ...]:
    """Σ a, Σ a · (x − mean) and, where there is b, Σ a · b over each member's channel, `[members, channels]` each."""
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
    """Mean and variance (biased) of each member's channel, `[members, channels]` each."""
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
    """Room for what the programs that share a channel find, `[kinds, programs, members, channels]`."""
    programs = max(1, min(layout.tiles // 4, _PROGRAMS // layout.groups))
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.empty((kinds, programs, layout.members, layout.channels), dtype=dtype, device=x.device)


if triton is not None:  # pragma: no cover - tests run it in another process

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _own_channels(group, channels, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
        """The member and the channels that a program takes, and which of them there are."""
        blocks = tl.cdiv(channels, WIDE)
        channel = (group % blocks) * WIDE + tl.arange(0, WIDE)
        return group // blocks, channel, channel < channels

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _own_numbers(  # type: ignore[no-untyped-def]
        tile, member, channel, wanted, lines, channels, places: tl.constexpr, LONG: tl.constexpr
    ):
        """Where a tile's numbers lie in a map, and which of them there are."""
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
        # Welford's recurrence in every lane, then all lanes of a channel put together: no cancellation where |mean| ≫ deviation
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
