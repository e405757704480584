"""Lookups in a table of rows, and the addition of gradients into it.

Sources: poplibs lib/popops/DynamicSlice.cpp (multiSlicePlanned, generatePlannedMultiUpdateOp) and
lib/popops/PerformanceEstimation.cpp, tags sdk/poplar/2.0.0 and sdk/poplar/2.4.0. Indices are taken
to be spread evenly over the table, as the planner takes them; IPUModel instead charges every index
as if one worker of each tile found it ("worst").
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from ipusim.compiler.operators.elementwise import scaled_add_steps
from ipusim.compiler.operators.gather_plan import INDEX_BYTES, EmbeddingPlan
from ipusim.compiler.operators.layout import fill_steps
from ipusim.compiler.superstep import (
    ChipLike,
    Era,
    Superstep,
    ceil_div,
    copy_cycles,
    element_bytes,
    parse_era,
)
from ipusim.compiler.vertices.elementwise import cast_cycles, fill_cycles
from ipusim.compiler.vertices.reduce import Region, tile_reduction
from ipusim.compiler.vertices.training import multi_slice_cycles, multi_update_add_cycles
from ipusim.errors import unknown_name

_EVEN = Fraction(0)
INDEX_DISTRIBUTIONS = ("uniform", "worst")
_REARRANGED_FROM_SPLIT = 4
"""From this many parts of the rows on, gradients are first brought into the plan's layout."""


def _hits(
    looked_at: int, part: int, rows: int, distribution: str, hottest: Fraction = _EVEN
) -> int:
    """Return how many of some indices fall into the part of the table that is hit most.

    A share `hottest` of them falls on one row, the rest evenly.
    """
    if distribution not in INDEX_DISTRIBUTIONS:
        raise unknown_name("distribution of indices", distribution, INDEX_DISTRIBUTIONS)
    if distribution == "worst":
        return looked_at
    same = min(looked_at, ceil(looked_at * hottest))
    return min(looked_at, same + ceil_div((looked_at - same) * part, rows))


def gather_steps(
    plan: EmbeddingPlan,
    rows: int,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    distribution: str = "uniform",
    hottest: Fraction = _EVEN,
    table_elsewhere: bool = False,
) -> list[Superstep]:
    """Return the supersteps of looking rows up in a table.

    Parameters
    ----------
    plan : EmbeddingPlan
        The split.
    rows : int
        Rows of the table.
    dtype : str
        Type of the table.
    chip : Chip
        The chip.
    era : str or Era
        Generation of poplibs.
    distribution : {"uniform", "worst"}, optional
        Where the indices fall.
    hottest : Fraction, optional
        Share of the indices that falls on one row; the rest is spread as `distribution` says.
    table_elsewhere : bool, optional
        Whether the table does not lie as planned, because an operation computed it.

    Returns
    -------
    list of Superstep
        A table that lies elsewhere is first copied into place (multiSlice, regroupBaseTensor).
        Each tile copies the rows that it holds; where the table's rows are split, a second step
        picks the one candidate that is right. Split indices need the table on several tiles.
    """
    era = parse_era(era)
    size = element_bytes(dtype)
    row_bytes = plan.width * size
    table_bytes = plan.rows * row_bytes
    received = plan.indices * INDEX_BYTES
    temporary = received
    if plan.index_split > 1:
        received += table_bytes - table_bytes // plan.index_split
        temporary += table_bytes
    per_worker = ceil_div(plan.indices, chip.workers)
    first = multi_slice_cycles(
        per_worker,
        _hits(per_worker, plan.rows, rows, distribution, hottest),
        plan.width,
        dtype,
        chip,
        generation=era.estimator,
    )
    candidates = plan.indices * row_bytes if plan.row_split > 1 else 0
    steps = _table_into_place(plan, dtype, chip) if table_elsewhere else []
    steps.append(
        Superstep(
            name="gather",
            vertex="popops::MultiSlice",
            compute_cycles=plan.groups * first,
            exchange_bytes=plan.groups * received,
            temp_bytes=plan.groups * (temporary + candidates),
        )
    )
    if plan.row_split == 1:
        return steps
    chosen = ceil_div(plan.indices, plan.row_split)
    arriving = plan.row_split * chosen * row_bytes
    per_worker = ceil_div(chosen, chip.workers)
    second = multi_slice_cycles(
        per_worker, per_worker, plan.width, dtype, chip, generation=era.estimator
    )
    steps.append(
        Superstep(
            name="gather, choose candidates",
            vertex="popops::MultiSlice",
            compute_cycles=plan.groups * second,
            exchange_bytes=plan.groups * (arriving + chosen * INDEX_BYTES),
            temp_bytes=plan.groups * (candidates + arriving),
        )
    )
    return steps


def _table_into_place(plan: EmbeddingPlan, dtype: str, chip: ChipLike) -> list[Superstep]:
    """Return the copy of a table from where an operation left it to where the plan wants it."""
    own = ceil_div(plan.groups * plan.rows * plan.width, plan.index_split) * element_bytes(dtype)
    return [
        Superstep(
            name="bring table into place",
            vertex="copy",
            compute_cycles=0,
            exchange_bytes=own,
            on_tile_copy_cycles=copy_cycles(own, chip),
            temp_bytes=own,
        )
    ]


def update_add_steps(
    plan: EmbeddingPlan,
    rows: int,
    width: int,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    zero_first: bool = True,
    wide_partials: bool = False,
    distribution: str = "uniform",
    hottest: Fraction = _EVEN,
) -> list[Superstep]:
    """Return the supersteps of adding rows into a table, gradients or messages of neighbours.

    Parameters
    ----------
    plan : EmbeddingPlan
        The split.
    rows, width : int
        Rows of the table and elements of a row.
    dtype : str
        "float16" or "float32".
    chip : Chip
        The chip.
    era : str or Era
        Generation of poplibs.
    zero_first : bool, optional
        Whether the table is a fresh tensor of zeros.
    wide_partials : bool, optional
        Whether split indices accumulate in float32 (up to sdk/poplar/2.0.0 always).
    distribution : {"uniform", "worst"}, optional
        Where the indices fall.
    hottest : Fraction, optional
        Share of the indices that falls on one row; the rest is spread as `distribution` says.

    Returns
    -------
    list of Superstep
        Every tile looks at all its indices and adds the rows that fall into its part of the table.
        Split indices fill partial tables of zeros, which are summed and added.
    """
    era = parse_era(era)
    size = element_bytes(dtype)
    elements = plan.group_split * plan.groups * rows * width
    steps = fill_steps(elements, dtype, chip, era=era) if zero_first else []
    several = plan.index_split > 1
    partial_dtype = "float32" if several and wide_partials else dtype
    own = plan.groups * ceil_div(plan.indices, plan.row_split) * plan.width
    if plan.row_split >= _REARRANGED_FROM_SPLIT or partial_dtype != dtype:
        steps.append(
            Superstep(
                name="rearrange gradients",
                vertex="copy",
                compute_cycles=0,
                exchange_bytes=own * size,
                temp_bytes=own * size,
            )
        )
    if partial_dtype != dtype:
        steps.append(
            Superstep(
                name="cast gradients",
                vertex="popops::Cast1D",
                compute_cycles=cast_cycles(
                    own, dtype, partial_dtype, chip, generation=era.estimator
                ),
            )
        )
    partials = plan.groups * plan.rows * plan.width
    partial_bytes = partials * element_bytes(partial_dtype) if several else 0
    if several:
        steps.append(
            Superstep(
                name="zero partial tables",
                vertex="popops::Fill",
                compute_cycles=fill_cycles(partials, partial_dtype, chip, generation=era.estimator),
                temp_bytes=partial_bytes,
            )
        )
    row_bytes = plan.width * element_bytes(partial_dtype)
    received = plan.groups * plan.indices * (INDEX_BYTES + row_bytes)
    # The early vertex runs on one worker; later ones divide the rows of the table.
    own_rows = plan.rows if era.estimator == "2020-01" else ceil_div(plan.rows, chip.workers)
    steps.append(
        Superstep(
            name="add rows",
            vertex="popops::ScaledMultiUpdateOp",
            compute_cycles=plan.groups
            * multi_update_add_cycles(
                plan.indices,
                _hits(plan.indices, own_rows, rows, distribution, hottest),
                plan.width,
                partial_dtype,
                chip,
                generation=era.estimator,
            ),
            exchange_bytes=received,
            temp_bytes=received + partial_bytes,
        )
    )
    if not several:
        return steps
    outputs = ceil_div(partials, plan.index_split)
    arriving = outputs * plan.index_split * element_bytes(partial_dtype)
    compute = tile_reduction(
        [Region(outputs, 1, plan.index_split)],
        "add",
        dtype=partial_dtype,
        partials=partial_dtype,
        out_dtype=partial_dtype,
        chip=chip,
        generation=era.estimator,
        pieces=plan.index_split,
    )
    steps += [
        Superstep(
            name="sum partial tables",
            vertex="popops::Reduce",
            compute_cycles=cycles,
            exchange_bytes=arriving if index == 0 else 0,
            temp_bytes=partial_bytes + arriving,
        )
        for index, cycles in enumerate(compute)
    ]
    return steps + scaled_add_steps(
        elements,
        dtype,
        chip,
        era=era,
        addend_dtype=partial_dtype,
        constrained=True,
    )
