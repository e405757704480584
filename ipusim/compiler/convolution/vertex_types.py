"""The vertex types that a chip and a stack offer for a convolution.

References
----------
poplibs ``lib/poplin/ConvVertexType.cpp`` and, for era 0, ``ConvPlan.cpp`` of tag 1.0.136.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ipusim.compiler.convolution import record as lay
from ipusim.compiler.convolution.shape import ConvShape, PlannerChip, PlannerRules
from ipusim.compiler.vertices.conv import ERA_1_0, ERA_2_4

Row = tuple[int, ...]
"""One vertex type, indexed by the vertex constants of `record`."""


def vertex_types(
    problem: np.ndarray, shape: ConvShape, chip: PlannerChip, rules: PlannerRules
) -> np.ndarray:
    """List the vertex types as rows, most promising first.

    Returns
    -------
    numpy.ndarray
        int64, shape (types, VERTEX_SIZE).

    Notes
    -----
    Order: padded peak rate, then padding, then partial size (sortConvVertexTypeCandidates).
    """
    kernel = problem[lay.KERNEL : lay.KERNEL + problem[lay.DIMS]].tolist()
    return _sorted_types(
        (int(problem[lay.IN_CHANS]), int(problem[lay.OUT_CHANS])),
        max(kernel) == 1,
        shape.in_bytes,
        shape.out_bytes,
        shape.kind,
        chip,
        rules,
    )


@lru_cache(maxsize=16384)
def _sorted_types(
    channels: tuple[int, int],
    one_element: bool,
    in_bytes: int,
    out_bytes: int,
    kind: str,
    chip: PlannerChip,
    rules: PlannerRules,
) -> np.ndarray:
    """List and sort the vertex types of one size of channels; shared, so not to be written to."""
    in_chans, out_chans = channels
    partials = 4 if in_bytes == 4 else rules.partials_bytes
    rows: list[Row] = []
    if one_element and out_bytes < partials:
        rows += _amp_without_reduction(in_chans, in_bytes, kind, chip, rules)
    rows += _amp_types(in_bytes, partials, kind, chip, rules)
    rows += _grouped_types(in_bytes, partials, kind, chip, rules)
    rows += _outer_product(in_chans == 1 and one_element, in_bytes, partials, rules)
    types = np.concatenate(
        (np.array(rows, np.int64), _hmac_types(in_chans, in_bytes, partials, rules))
    )
    in_per, out_per = types[:, lay.IN_CHANS_PER_GROUP], types[:, lay.OUT_CHANS_PER_GROUP]
    padded = -(-in_chans // in_per) * in_per * (-(-out_chans // out_per) * out_per)
    padding = (padded - in_chans * out_chans) / padded
    promise = types[:, lay.PEAK_MACS] * (1 - padding)
    return types[np.lexsort((types[:, lay.PARTIAL_BYTES], padding, -promise))]


@lru_cache(maxsize=256)
def _amp_types(
    in_bytes: int, partials: int, kind: str, chip: PlannerChip, rules: PlannerRules
) -> tuple[Row, ...]:
    """AMP vertices: units, and the channel groups that load them fully or in part."""
    depth = 16 if in_bytes == 2 else 8
    lanes = 8 // in_bytes
    units_on_chip = chip.units(in_bytes, partials)
    modern = rules.era != ERA_1_0
    unit_counts = [units_on_chip]
    if modern and units_on_chip == 16:
        unit_counts.append(8)
    rows: dict[Row, None] = {}
    for units in unit_counts:
        used_depth = depth * units // units_on_chip
        for in_per in range(depth, 0, -1):
            if depth % in_per or in_per % lanes:
                continue
            if in_per != depth and used_depth % in_per:
                continue
            for out_per in (units_on_chip, depth, 8):
                if out_per % units or (kind == "fc_inference" and out_per != units):
                    continue
                if modern and out_per not in (units, used_depth):
                    continue
                peak = min(units_on_chip, out_per) * lanes
                rows[(lay.AMP, 1, in_per, out_per, units, partials, peak)] = None
    return tuple(rows)


def _amp_without_reduction(
    in_chans: int, in_bytes: int, kind: str, chip: PlannerChip, rules: PlannerRules
) -> list[Row]:
    """AMP vertices that take all input channels at once, and so may sum in the output's type."""
    if rules.era == ERA_1_0 or in_bytes != 2 or in_chans > 16:
        return []
    return [
        row
        for row in _amp_types(in_bytes, 2, kind, chip, rules)
        if -(-in_chans // row[lay.IN_CHANS_PER_GROUP]) * row[lay.IN_CHANS_PER_GROUP] == 16
    ]


@lru_cache(maxsize=256)
def _grouped_types(
    in_bytes: int, partials: int, kind: str, chip: PlannerChip, rules: PlannerRules
) -> tuple[Row, ...]:
    """SLIC and VMAC: vertices for half data that take several convolution groups at once.

    SLIC is off for fully connected layers.  Both came after stack 1.0.
    """
    if rules.era == ERA_1_0 or in_bytes != 2:
        return ()
    rows: list[Row] = []
    late = rules.era >= ERA_2_4 and partials == 2
    if not kind.startswith("fc_"):
        wide = partials == 2 and chip.units(2, partials) == 16
        groupings = [(1, 4), (2, 2), (4, 1)]
        if late and wide:
            groupings += [(8, 1), (16, 1)]
        for chains in (4, 2) if wide else (2,):
            for groups, per in groupings:
                rows.append((lay.SLIC, groups, per, per, chains, partials, per * 4 * 2))
    if partials == 4 or late:
        for groups in (4, 8, 16) if late else (4,):
            rows.append((lay.VMAC, groups, 1, 1, 0, partials, 4))
    return tuple(rows)


def _outer_product(
    nothing_to_sum: bool, in_bytes: int, partials: int, rules: PlannerRules
) -> list[Row]:
    """Outer product, whose result has the input's type, where that loses nothing."""
    if in_bytes == partials or (rules.era != ERA_1_0 and nothing_to_sum):
        lanes = 8 // in_bytes
        return [(lay.OUTER_PRODUCT, 1, 1, lanes, 0, in_bytes, lanes)]
    return []


@lru_cache(maxsize=1024)
def _hmac_types(in_chans: int, in_bytes: int, partials: int, rules: PlannerRules) -> np.ndarray:
    """HMAC vertices: of the input groupings that give the same count of groups, the smallest."""
    grain = 2 if in_bytes == 2 else 1
    grains = -(-in_chans // grain)
    counts = -(-grains // np.arange(1, grains + 1))
    smallest = np.flatnonzero(np.diff(counts, prepend=0)) + 1
    out_per = 2 if (rules.era != ERA_1_0 and partials == 2) else 1
    types = np.empty((len(smallest), lay.VERTEX_SIZE), np.int64)
    types[:] = (lay.HMAC, 1, 0, out_per, 0, partials, 8 // in_bytes)
    types[:, lay.IN_CHANS_PER_GROUP] = smallest * grain
    return types
