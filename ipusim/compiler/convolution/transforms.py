"""Transforms of a convolution before it is split, and the problem of each.

Sources: poplibs ``lib/poplin/ConvPlan.cpp`` (createPlan) and ``ConvModel.cpp`` (applyTransform,
addTransformCycleEstimate).
"""

import itertools
import math
from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ipusim.compiler.convolution.params import ConvParams, ConvPass, Dim, Operand, uses
from ipusim.compiler.convolution.record import PROBLEM, joined
from ipusim.compiler.convolution.rules import PlannerRules
from ipusim.compiler.eras import ERA_1_0, ERA_2_4
from ipusim.compiler.tiles import ceil_div
from ipusim.machine import Chip


class Way(NamedTuple):
    """A transform of the spatial dimensions of a convolution, with which the batch may be joined.

    `expand` are the dimensions whose kernel moves into the input channels, `flatten` those whose
    output moves into the output channels. The others describe the result: all its `dims`, whether
    its kernel has `one_element`, the `stride` of the innermost dimension. `sizes` are its batch and
    the factors on input and output channels; `row` is the part of a `PROBLEM` that depends on
    nothing else, as bytes.
    """

    expand: tuple[int, ...]
    flatten: tuple[int, ...]
    dims: tuple[Dim, ...]
    sizes: tuple[int, int, int]
    one_element: bool
    stride: int
    row: bytes


class Transform(NamedTuple):
    """What is done to a convolution before it is split over tiles.

    A `swap` exchanges input and kernel; `factor` groups are merged into one. `channels` are the
    input and output channels of a group of the result, `problem` is its `PROBLEM`, as bytes.
    """

    swap: bool
    way: Way
    factor: int
    channels: tuple[int, int]
    problem: bytes

    @property
    def name(self) -> str:
        """What is done, in order, "none" if nothing.

        "swap" for exchanged operands (of a product: for those that poplibs does not exchange),
        "expand" and the dimensions whose kernel moves into the input channels, "flatten" and those
        whose output moves into the output channels, "combine" and the number of groups merged.
        """
        words = ["swap"] if self.swap else []
        for word, dims in (("expand", self.way.expand), ("flatten", self.way.flatten)):
            if dims:
                words.append(f"{word} {''.join(map(str, dims))}")
        if self.factor > 1:
            words.append(f"combine {self.factor}")
        return ", ".join(words) or "none"


def problems_of(transforms: Iterable[Transform]) -> np.ndarray:
    """Return the `PROBLEM` of each transform."""
    return joined((one.problem for one in transforms), PROBLEM)


def _integers(*values: int) -> bytes:
    """Return integers as the bytes of a record: to join these is faster than to fill records."""
    return array("q", values).tobytes()


def transforms_of(asked: ConvPass, chip: Chip, rules: PlannerRules) -> list[Transform]:
    """List every transform worth trying."""
    transforms: list[Transform] = []
    given = _given(asked, chip, rules)
    whole = asked.params.without_dilation()
    for swap in (False, True):
        params = whole.swapped() if swap else whole
        views = params.in_channels, params.out_channels
        for way in _ways(params.dims, params.batch, rules.era):
            batch, deeper, wider = way.sizes
            in_chans, out_chans = views[0] * deeper, views[1] * wider
            for factor in (1, *_combine_factors(asked, in_chans)):
                groups = math.ceil(whole.groups / factor)
                sizes = groups, batch, in_chans * factor, out_chans * factor
                copies = _copies(asked, rules, swap, way, factor > 1)
                problem = _integers(*sizes, *views, *copies) + way.row + given
                transforms.append(Transform(swap, way, factor, sizes[2:], problem))
    return transforms


@lru_cache(maxsize=1024)
def _ways(dims: tuple[Dim, ...], batch: int, era: int) -> tuple[Way, ...]:
    """List the ways to transform a convolution over some dimensions, whatever its channels."""
    one = ConvParams(1, batch, 1, 1, dims)
    ways = []
    for expand in _subsets(_expandable(one)):
        expanded = one.expanded(expand)
        for flatten in _subsets(_flattenable(expanded)):
            made, free = expanded.outputs_flattened(flatten).flattened()
            moved = *expand, *flatten, *free
            sizes = made.batch, made.in_channels, made.out_channels
            one_element = all(dim.kernel.size == 1 for dim in made.dims)
            stride = 1 if len(dims) - 1 in moved else made.dims[-1].stride
            row = _row(made, moved, era)
            ways.append(Way(expand, flatten, made.dims, sizes, one_element, stride, row))
    return tuple(ways)


def _subsets(dims: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for count in range(len(dims) + 1):
        yield from itertools.combinations(dims, count)


def _expandable(params: ConvParams) -> tuple[int, ...]:
    """Dimensions whose kernel may yet move into the input channels (getExpandDimsCandidates)."""
    return tuple(
        d
        for d, dim in enumerate(params.dims)
        if dim != Dim(Operand(dim.out), Operand(1)) and dim.data.size >= dim.kernel.size
    )


def _flattenable(params: ConvParams) -> tuple[int, ...]:
    """Dimensions whose output may move into the channels (getOutChanFlattenDimsCandidates)."""
    return tuple(
        d for d, dim in enumerate(params.dims) if dim.out > 1 and dim.data.size <= dim.kernel.size
    )


def _combine_factors(asked: ConvPass, in_channels: int) -> list[int]:
    """Factors by which narrow groups are merged (getCombineConvGroupCandidates)."""
    narrow = (1,) if asked.in_bytes == 4 else (1, 2)
    if asked.params.groups == 1 or in_channels not in narrow:
        return []
    load = 8 // asked.in_bytes
    return [times * load // in_channels for times in (1, 2, 4)]


def _copies(
    asked: ConvPass, rules: PlannerRules, swap: bool, way: Way, combine: bool
) -> tuple[bool, bool, bool]:
    """Say which operands are rearranged for a transform; 1.0.136 did not count merged groups."""
    update = asked.kind == "conv_weight_gradient"
    combine = combine and rules.era != ERA_1_0
    # ConvParams.of has products with their operands exchanged already.
    expand, flatten = bool(way.expand), bool(way.flatten)
    swap_out = swap != update
    gradient = asked.kind in ("fc_data_gradient", "fc_weight_gradient")
    return (
        update or expand or swap or combine or gradient,
        update or expand or flatten or swap or combine,
        swap_out or flatten or combine or asked.kind == "fc_weight_gradient",
    )


def _row(params: ConvParams, moved: tuple[int, ...], era: int) -> bytes:
    """Return the integers of a `PROBLEM` that depend on its batch and dimensions alone.

    `moved` are the dimensions that were expanded, flattened or joined with the batch.  Later
    planners use the 1x1 vertex only if batch and all field dimensions but the innermost are of
    size 1.
    """
    dims = [_dim_of(dim, d in moved) for d, dim in enumerate(params.dims)]
    (outer, *middle, inner), *allowed = zip(*dims, strict=True)
    slides, plain, pointwise = map(all, allowed)
    slides = slides and params.dims[-1].stride <= 2
    if era != ERA_1_0 and pointwise:
        pointwise = params.batch == 1 and all(dim.data.size == 1 for dim in params.dims[:-1])
    middle = middle[0] if middle else _NO_DIM
    return _integers(slides, plain, pointwise, *outer, *middle, *inner)


_NO_DIM = (1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1)


@lru_cache(maxsize=4096)
def _dim_of(dim: Dim, moved: bool) -> tuple[tuple[int, ...], bool, bool, bool]:
    """Return a `DIM`, and whether it suits SLIC, the outer product and vertices for 1x1."""
    data, kernel = dim.data, dim.kernel
    inputs, _, _, covered = uses(dim)
    cut = dim.cut_low or dim.cut_high or dim.pad_low or dim.pad_high
    window = kernel.flip or kernel.pad_low or kernel.pad_high or kernel.dilation != 1
    row = (
        *(dim.out, kernel.size, inputs[1] - inputs[0], dim.stride, data.dilation, kernel.dilation),
        *(int(moved), int(covered), data.pad_low + data.pad_high, data.size),
        data.dilation // math.gcd(data.dilation, dim.stride),
    )
    slides, pointwise = not (data.flip or window), covered and dim.stride == data.dilation
    plain = not (cut or data.flip) and dim.stride == 1 and data.dilation == 1
    return row, slides, plain, moved or pointwise


def _given(asked: ConvPass, chip: Chip, rules: PlannerRules) -> bytes:
    """Return the integers of a `PROBLEM` that do not depend on its transform."""
    modern = rules.era != ERA_1_0
    return _integers(
        *(asked.params.in_channels, asked.params.out_channels, asked.in_bytes, asked.out_bytes),
        *(2 if asked.in_bytes == 1 else rules.partials_bytes, 32 // asked.in_bytes),
        *(asked.kind.startswith("fc_"), asked.kind == "conv_forward"),
        *(rules.era, chip.tiles, chip.exchange_bytes_per_cycle),
        *(chip.tiles_per_exchange_bus, chip.memcpy_bytes_per_cycle),
        *(_single_input_bytes(chip) if modern else -1, modern, rules.era >= ERA_2_4),
        *(0, 0, 0, 0, 0),
    )


def _single_input_bytes(chip: Chip) -> int:
    """Return the largest partials for the contiguous reduce vertex (ConvReducePlan.hpp).

    The partials, rounded up to memory elements, must stay below a sixteenth of the memory.
    """
    element = chip.memory_element_bytes
    return (ceil_div(chip.bytes_per_tile, 16 * element) - 1) * element
