"""Lookups in a table of rows, and the addition of gradients into it.

Sources: poplibs lib/popops/DynamicSlice.cpp (multiSlicePlanned, generatePlannedMultiUpdateOp) and
lib/popops/PerformanceEstimation.cpp, tags sdk/poplar/2.0.0 and sdk/poplar/2.4.0. Indices are taken
to be spread evenly over the table, as the planner takes them; IPUModel instead charges every index
as if one worker of each tile found it (``hottest`` 1).
"""

from dataclasses import replace

from ipusim.compiler.emitter import SPREAD, Emitter, Placed, TensorLayout
from ipusim.compiler.operators.plans.gather import INDEX_BYTES, EmbeddingPlan, plan_embedding
from ipusim.compiler.reduction import gathered_stages
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.tiles import CODELET_VERSIONS, ceil_div, copy_cycles, element_bytes
from ipusim.compiler.vertices.elementwise import cast_cycles, fill_cycles
from ipusim.compiler.vertices.reduce import ReduceVertex, Region
from ipusim.compiler.vertices.training import multi_slice_cycles, multi_update_add_cycles
from ipusim.workload.graph import Gather

CYCLE_PLANS_ERA = 2
"""Planner version from which embeddings are planned by cycles instead of memory."""

_REARRANGED_FROM_SPLIT = 4
"""From this many parts of the rows on, gradients are first brought into the plan's layout."""


@lowers(Gather)
def gather(m: Lowering, op: Gather, *inputs: Placed) -> TensorLayout:
    """Lower lookups or updates; their planner and vertices changed between SDK 2.0 and 2.4."""
    early = m.stack.planner_era < CYCLE_PLANS_ERA
    goal = "memory" if early else "cycles"
    # Lookups and updates of one table share the plan.
    table = replace(op, function="lookup", hottest=0)
    plan = plan_embedding(table, m.dtype, m.chip, goal=goal, updates=m.task.changes_table)
    if early:
        m.take_codelets(CODELET_VERSIONS[0])
    if op.function == "lookup":
        # Tables that an operation computes lie as that operation left them.
        if not early and not inputs[0].layout.free:
            bring_into_place(m, plan, m.dtype)
        look_up(m, op, plan, m.dtype)
    else:
        add_rows(m, op, plan, m.dtype)
    return SPREAD


def hits(op: Gather, looked_at: int, part: int) -> int:
    """Return how many of the indices looked at fall into the `part` of the rows hit most."""
    same = ceil_div(looked_at * op.hottest, op.indices)
    return min(looked_at, same + ceil_div((looked_at - same) * part, op.rows))


def bring_into_place(m: Emitter, plan: EmbeddingPlan, dtype: str) -> None:
    """Copy a table from where an operation left it (multiSlice, regroupBaseTensor)."""
    own = ceil_div(plan.groups * plan.rows * plan.width, plan.index_split)
    own *= element_bytes(dtype)
    m.fetch("bring table into place", own, cycles=copy_cycles(own, m.chip))


def look_up(m: Emitter, op: Gather, plan: EmbeddingPlan, dtype: str) -> None:
    """Copy the rows that each tile holds.

    Where the table's rows are split, a second step picks the one candidate that is right. Split
    indices need the table on several tiles.
    """
    workers = m.chip.workers
    row_bytes = plan.width * element_bytes(dtype)
    table_bytes = plan.rows * row_bytes
    received = temporary = plan.indices * INDEX_BYTES
    if plan.index_split > 1:
        received += table_bytes - table_bytes // plan.index_split
        temporary += table_bytes
    candidates = plan.indices * row_bytes if plan.row_split > 1 else 0

    def sliced(indices: int, found: int) -> int:
        return plan.groups * multi_slice_cycles(m.tile, indices, found, plan.width, dtype)

    per_worker = ceil_div(plan.indices, workers)
    m.emit(
        "gather",
        "popops::MultiSlice",
        sliced(per_worker, hits(op, per_worker, plan.rows)),
        exchange=plan.groups * received,
        temp=plan.groups * (temporary + candidates),
    )
    if plan.row_split == 1:
        return
    chosen = ceil_div(plan.indices, plan.row_split)
    arriving = plan.row_split * chosen * row_bytes
    per_worker = ceil_div(chosen, workers)
    m.emit(
        "gather, choose candidates",
        "popops::MultiSlice",
        sliced(per_worker, per_worker),
        exchange=plan.groups * (arriving + chosen * INDEX_BYTES),
        temp=plan.groups * (candidates + arriving),
    )


def add_rows(m: Emitter, op: Gather, plan: EmbeddingPlan, dtype: str) -> None:
    """Add rows into a table, gradients or messages of neighbours.

    Every tile looks at all its indices and adds the rows that fall into its part of the table.
    Split indices fill partial tables of zeros, which are summed and added; up to sdk/poplar/2.0.0
    these are always float32.
    """
    early = m.tile.version == CODELET_VERSIONS[0]
    stored = Placed((plan.group_split * plan.groups * op.rows * op.width,), dtype)
    if op.function == "add":
        # A sum starts from zeros, laid out as planned; rows are written where they are stored.
        m.fill(stored)
    several = plan.index_split > 1
    partial_dtype = "float32" if several and early else dtype
    partial_size = element_bytes(partial_dtype)
    own = plan.groups * ceil_div(plan.indices, plan.row_split) * plan.width
    if plan.row_split >= _REARRANGED_FROM_SPLIT or partial_dtype != dtype:
        m.fetch("rearrange gradients", own * element_bytes(dtype))
    if partial_dtype != dtype:
        cycles = cast_cycles(m.tile, own, dtype, partial_dtype)
        m.emit("cast gradients", "popops::Cast1D", cycles)
    partials = plan.groups * plan.rows * plan.width
    partial_bytes = partials * partial_size if several else 0
    if several:
        cycles = fill_cycles(m.tile, partials, partial_dtype)
        m.emit("zero partial tables", "popops::Fill", cycles, temp=partial_bytes)
    received = plan.groups * plan.indices * (INDEX_BYTES + plan.width * partial_size)
    # The early vertex runs on one worker; later ones divide the rows of the table.
    own_rows = plan.rows if early else m.tile.per_worker(plan.rows)
    work = plan.indices, hits(op, plan.indices, own_rows), plan.width, partial_dtype
    cycles = multi_update_add_cycles(m.tile, *work)
    vertex = "popops::ScaledMultiUpdateOp"
    m.emit("add rows", vertex, plan.groups * cycles, received=received, temp=partial_bytes)
    if not several:
        return
    outputs, name = ceil_div(partials, plan.index_split), "sum partial tables"
    reducing = ReduceVertex(m.tile, partial_dtype, partial_dtype, partial_dtype)
    with m.holding(partial_bytes):
        for stage in gathered_stages(name, reducing, Region(outputs, 1, plan.index_split)):
            m.run(stage, name)
    m.scaled_add(stored, partial_dtype, constrained=True)
