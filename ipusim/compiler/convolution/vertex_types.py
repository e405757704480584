"""The vertex types that a chip and a stack offer for a convolution.

Sources: poplibs ``lib/poplin/ConvVertexType.cpp`` and, for era 0, ``ConvPlan.cpp`` of tag 1.0.136.
Of float8 ("quarter") AMP alone is offered: its SLIC, for 8 channels, is left out.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, product
from math import isqrt
from typing import NamedTuple

import numpy as np

from ipusim.compiler.convolution.params import ConvPass
from ipusim.compiler.convolution.record import CANDIDATE, joined
from ipusim.compiler.convolution.rules import PlannerRules
from ipusim.compiler.convolution.transforms import Transform
from ipusim.compiler.eras import ERA_1_0, ERA_2_4
from ipusim.compiler.vertices.amp import amp_vertex
from ipusim.compiler.vertices.conv import VERTEX
from ipusim.compiler.vertices.mac import (
    hmac_vertices,
    outer_product_vertex,
    slic_vertex,
    vmac_vertex,
)
from ipusim.machine import Chip

_MOST_UNREDUCED = 16
"""Most half input channels that an AMP vertex takes all at once (ConvVertexType.cpp)."""


class _Wanted(NamedTuple):
    """What the vertex types depend on: element sizes, kind of `ConvPass`, chip and rules."""

    in_bytes: int
    out_bytes: int
    kind: str
    chip: Chip
    rules: PlannerRules


def vertex_types(
    transforms: Iterable[Transform], asked: ConvPass, chip: Chip, rules: PlannerRules
) -> list[tuple[np.ndarray, ...]]:
    """List the vertex types for each transform: arrays of `VERTEX`, which transforms share."""
    wanted = _Wanted(asked.in_bytes, asked.out_bytes, asked.kind, chip, rules)
    in_bytes, partials = asked.in_bytes, _partial_bytes(asked, rules)
    types = []
    for (in_chans, _), way in ((one.channels, one.way) for one in transforms):
        few, stride = min(in_chans, _MOST_UNREDUCED + 1), min(way.stride, 2)
        arrays = [_without_hmac(wanted, partials, few, way.one_element, stride)]
        if in_bytes > 1:
            arrays.append(_hmac_types(in_chans, in_bytes, partials, rules.era))
        types.append(tuple(arrays))
    return types


def joint_types(
    plain: Sequence[Transform], passes: Sequence[ConvPass], chip: Chip, rules: PlannerRules
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """List the vertex types for a joint plan: of the forward pass, and of the weight gradient.

    With one item to sum over, the weight gradient may be an outer product, and the other passes dot
    products, whose channel groups are multiples of the conv units (ConvVertexType.cpp,
    getConvVertexHMACCandidates; ConvModel.cpp, getFullyConnectedWUMethod). Layers of several items,
    whose dot products go with AMP, are not modelled.
    """
    asked, partials = passes[0], _partial_bytes(passes[0], rules)
    # Without the dot products of plans that are not joint, which come last.
    forward, update = (
        vertex_types(plain[at : at + 1], passes[at], chip, rules)[0][:1] for at in (0, 2)
    )
    if asked.params.out_channels == 1 and partials == 4:
        size, units = asked.in_bytes, _units(chip, asked.in_bytes, partials)
        dots = _hmac_types(asked.params.in_channels, size, partials, rules.era, units)
        groups = dots["in_chans_per_group"]
        outer = [outer_product_vertex(int(one), size, size == 4) for one in groups]
        forward, update = (*forward, dots), (*update, *outer)
    return forward, update


def _partial_bytes(asked: ConvPass, rules: PlannerRules) -> int:
    """Return the bytes of a partial: of half inputs those that were asked for."""
    return {1: 2, 4: 4}.get(asked.in_bytes, rules.partials_bytes)


def candidates_of(
    problems: np.ndarray, types: Sequence[tuple[np.ndarray, ...]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return all vertex types, each array once, and a list of `CANDIDATE` for all problems.

    The fields `begin` and `end` of each of `problems` are set to its part of the list.
    """
    distinct = {id(one): one for arrays in types for one in arrays}
    every = joined(distinct.values(), VERTEX)
    ends = [*accumulate(map(len, distinct.values()))]
    places = dict(zip(distinct, np.split(np.arange(len(every)), ends[:-1]), strict=True))
    vertices = np.concatenate([places[id(one)] for arrays in types for one in arrays])
    candidates = np.zeros(len(vertices), CANDIDATE)
    candidates["vertex"] = vertices
    problems["end"] = np.cumsum([sum(map(len, arrays)) for arrays in types])
    problems["begin"][1:] = problems["end"][:-1]
    return every, candidates


@lru_cache(maxsize=256)
def _without_hmac(
    wanted: _Wanted, partials: int, in_chans: int, one_element: bool, stride: int
) -> np.ndarray:
    """List all vertex types but HMAC; `in_chans` may be capped where more make no difference."""
    in_bytes, out_bytes = wanted.in_bytes, wanted.out_bytes
    types = []
    if one_element and out_bytes < partials:
        types += _amp_without_reduction(wanted, in_chans)
    types += _amp_types(wanted, partials)
    types += _grouped_types(wanted, partials, stride)
    single = wanted.rules.era != ERA_1_0 and in_chans == 1 and one_element
    if in_bytes == partials or (single and in_bytes > 1):
        # Outer product, whose result has the input's type, where that loses nothing.
        is_float = in_bytes == 4 or out_bytes == 4
        types.append(outer_product_vertex(8 // in_bytes, in_bytes, is_float))
    return joined(types, VERTEX)


def _units(chip: Chip, in_bytes: int, partial_bytes: int) -> int:
    """Return the conv units for inputs and partials of these widths; of float8 as many as half."""
    if in_bytes == 4:
        return chip.float_float_conv_units
    return chip.half_half_conv_units if partial_bytes == 2 else chip.half_float_conv_units


@lru_cache(maxsize=256)
def _amp_types(wanted: _Wanted, partials: int) -> tuple[np.ndarray, ...]:
    """AMP vertices: units, and the channel groups that load them fully or in part."""
    in_bytes, _, kind, chip, rules = wanted
    depth = 32 // in_bytes
    lanes = 8 // in_bytes
    units_on_chip = _units(chip, in_bytes, partials)
    modern = rules.era != ERA_1_0
    unit_counts = [units_on_chip]
    if modern and units_on_chip == 16 and in_bytes > 1:
        unit_counts.append(8)
    one_pass = kind == "fc_inference" or in_bytes == 1
    groupings: dict[tuple[int, ...], None] = {}
    for units in unit_counts:
        used_depth = depth * units // units_on_chip
        ins = [n for n in (depth, depth // 2, lanes) if n == depth or used_depth % n == 0]
        outs = [n for n in (units_on_chip, depth, 8) if n % units == 0]
        if one_pass:
            outs = [units]
        elif modern:
            outs = [n for n in outs if n in (units, used_depth)]
        groupings |= dict.fromkeys(product(ins, outs, [units]))
    # The units that the planner reckons to share a pass are those of its own partials type.
    sharing = _units(chip, in_bytes, rules.partials_bytes)
    return tuple(
        amp_vertex((in_per, out_per), units, (in_bytes, partials), rules.era, sharing)
        for in_per, out_per, units in groupings
    )


def _amp_without_reduction(wanted: _Wanted, in_chans: int) -> list[np.ndarray]:
    """AMP vertices that take all input channels at once, and so may sum in the output's type."""
    if wanted.rules.era == ERA_1_0 or wanted.in_bytes != 2 or in_chans > _MOST_UNREDUCED:
        return []
    return [
        one
        for one in _amp_types(wanted, 2)
        if in_chans + -in_chans % one["in_chans_per_group"] == _MOST_UNREDUCED
    ]


@lru_cache(maxsize=256)
def _grouped_types(wanted: _Wanted, partials: int, stride: int) -> tuple[np.ndarray, ...]:
    """SLIC, but for fully connected layers, and VMAC: several groups of halves, not in 1.0."""
    in_bytes, _, kind, chip, rules = wanted
    if rules.era == ERA_1_0 or in_bytes != 2:
        return ()
    types: list[np.ndarray] = []
    late = rules.era >= ERA_2_4 and partials == 2
    if not kind.startswith("fc_"):
        wide = partials == 2 and _units(chip, 2, partials) == 16
        groupings = [(1, 4), (2, 2), (4, 1)]
        if late and wide:
            groupings += [(8, 1), (16, 1)]
        for chains in (4, 2) if wide else (2,):
            types += [slic_vertex(one, chains, partials, stride, rules.era) for one in groupings]
    if partials == 4 or late:
        types += [vmac_vertex(n, partials, rules.era) for n in ((4, 8, 16) if late else (4,))]
    return tuple(types)


@lru_cache(maxsize=1024)
def _hmac_types(
    in_chans: int, in_bytes: int, partials: int, era: int, units: int = 1
) -> np.ndarray:
    """HMAC vertices: of the input groupings that give the same count of groups, the smallest.

    Groups of several channels are multiples of `units`.
    """
    grain = 2 if in_bytes == 2 else 1
    step = max(grain, units)
    steps = -(-in_chans // step)
    # All up to the root, and those that give the few counts above it.
    small = np.arange(1, isqrt(steps) + 2)
    counts = -(-steps // np.concatenate((small, -(-steps // small))))
    sizes = np.unique(-(-steps // counts)) * step
    sizes = sizes[sizes < in_chans + grain]
    if units > grain == 1:
        sizes = np.concatenate(([1], sizes))
    out_per = 2 if (era != ERA_1_0 and partials == 2) else 1
    return hmac_vertices(sizes, out_per, in_bytes, partials, era)
