"""Results of planned operations: partials become sums, in their type and at their place."""

from math import gcd

from ipusim.compiler.convolution.planner import Plan
from ipusim.compiler.emitter import TensorLayout
from ipusim.compiler.state import Lowering
from ipusim.compiler.tiles import ceil_div, copy_cycles, element_bytes, rearranged_copy_cycles
from ipusim.compiler.vertices.elementwise import cast_runs_cycles
from ipusim.workload.graph import Conv, MatMul

_REMAPPED_GROUPS = (16, 8, 4)
"""Adjacent channels in a remapped result: the first of these that divides their number."""


def finish_result(m: Lowering) -> TensorLayout:
    """Sum or convert partials, put serial parts together, and the result where it belongs."""
    cost = m.plan.cost
    if cost.depth > 1:
        stages = cost.stages
        share, rest = divmod(cost.reduce, stages)
        work = m, "reduce partials", "poplin::ReduceAdd"
        emit_part(*work, exchange=_partials_exchange(m), compute=share + rest)
        for _ in range(1, stages):
            emit_part(*work, exchange=cost.reduce_rest // (stages - 1), compute=share)
    elif cost.reduce:
        result = m.dtype
        partials = "float16" if result == "float32" else "float32"
        cycles = cast_runs_cycles(m.tile, m.plan.partials, partials, result)
        vertex = "popops::Cast1D" if m.plan.partials.one else "popops::Cast2D"
        emit_part(m, "cast partials", vertex, compute=cycles)
    if cost.add:
        emit_part(m, "accumulate", "popops::BinaryOp1DInPlace", compute=cost.add)
    _write_part(m)
    if cost.after:
        m.emit("cast result", "popops::Cast1D", cost.after)
    if m.plan.spreads_output:
        # The result is copied, a group of adjacent channels at a time, into a new tensor with zeros
        # between its positions (Convolution.cpp, convolutionPostprocess).
        size = element_bytes(m.made.dtype)
        atom = m.plan.result_grouping * size
        tile_bytes = ceil_div(m.made.elements * size, cost.tiles_used)
        m.copy("spread output", cycles=copy_cycles(tile_bytes, m.chip, atom_bytes=atom))
    # To undo transforms and padding takes poplibs a view only (convolutionPostprocess), though
    # its planner reckons with a copy. Output channels are adjacent: the rows of a product, as
    # poplibs swaps its operands. Where the plan swaps operands, samples are, the columns of one.
    rows = isinstance(m.task.params, MatMul) != m.plan.transform.swap
    made = TensorLayout(grouping=m.plan.result_grouping, tiles=cost.tiles_used, rows=rows)
    return _remapped(m) or made


def _remapped(m: Lowering) -> TensorLayout | None:
    """Copy a result in which poplibs finds no neighbours into groups of channels, on all tiles.

    None if it stays. Sources: lib/poplin/Convolution.cpp, convolutionInternal and
    remapOutputTensor.
    """
    op, size = m.task.params, element_bytes(m.made.dtype)
    channels = op.m if isinstance(op, MatMul) else op.out_channels // op.groups
    group = next((group for group in _REMAPPED_GROUPS if channels % group == 0), 0)
    stays = op.pass_kind == "weight_gradient" or not (group and m.stack.remaps_outputs)
    if stays or _neighbours(op, channels, m.plan) > 1:
        return None
    layout = TensorLayout(grouping=group, rows=isinstance(op, MatMul))
    tile_bytes = m.tile_bytes(m.made._replace(layout=layout))
    piece = 1 if m.plan.transform.swap else gcd(m.plan.out_chans_per_group, group)
    with m.loop(1, tiles=m.chip.tiles):
        cycles = rearranged_copy_cycles(tile_bytes, piece * size, m.chip)
        m.copy("remap output", tile_bytes, temp=m.plan.cost.outputs * size, cycles=cycles)
    return layout


def _neighbours(op: Conv | MatMul, channels: int, plan: Plan) -> int:
    """Return how many adjacent neighbours poplibs finds in a result, 1 if none.

    The result has `channels` output channels in each convolution group. Poplibs looks along each
    dimension at the first elements alone: how many are contiguous in memory, and on one tile. It
    does not find a number that does not divide the dimension (lib/poputil/VarStructure.cpp,
    detectInnermostGrouping and detectDimGroupings).
    """
    group, together = plan.out_chans_per_group, plan.conv_groups_per_group
    if isinstance(op, MatMul):
        groups, samples, field = 1, op.n, ()
    else:
        groups, samples, field = op.groups, op.batch, op.out_field
    # Elements of the dimension, and those of one group of convolutions.
    length, merged = channels * groups, channels * plan.transform.factor
    if plan.transform.swap:
        # Samples are innermost, then the first dimension that was moved into the channels.
        added = len(plan.split.field) - len(field)
        moved = [field[d - added] for d in plan.transform.way.flatten if d >= added]
        length = merged = next((n for n in (samples, *moved) if n > 1), 1)
    elif group == together == 1:
        return field[-1] if field else samples  # positions are innermost
    if merged <= group:
        run = merged * min(together, groups)
    else:
        on_tile = ceil_div(ceil_div(plan.part_channels, group), plan.split.out_chans) * group
        run = gcd(group, min(merged, on_tile))
    return run if length % run == 0 else 1


def _write_part(m: Lowering) -> None:
    """Write the output of each serial part into the result, and count the parts.

    A counter on one tile is sent to all as the index of the part (poplibs
    lib/poplin/Convolution.cpp, convolutionImpl and ConvProgramTree::lower). All outputs of a part
    are written; the planner's own estimate divides them by the parts once more (ConvModel.cpp,
    addDynamicUpdateEstimate).
    """
    parts, outputs, size = m.plan.cost.serial, m.plan.cost.outputs, element_bytes(m.made.dtype)
    gathered = 0
    if m.plan.cut_channels:
        # Channels are brought together without the padding of groups (convolutionPostprocess).
        gathered = rearranged_copy_cycles(outputs * size, m.plan.cut_channels * size, m.chip)
    if m.plan.split.out_serial > 1:
        with m.loop(parts, tiles=m.plan.cost.tiles_used):
            m.slice("write slice", outputs, m.made.dtype, write=True, copy=gathered)
    if parts > 1:
        with m.loop(parts, tiles=1):
            m.count("count parts")


def _partials_exchange(m: Lowering) -> int:
    """Return the cycles in which a tile receives the partials that it sums first.

    It keeps its own share. Shares that do not divide the runs in which partials lie are sent in two
    pieces each; from several tiles these take longer than what arrives
    (`Stack.cut_partials_percent`).
    """
    depth, partials = m.plan.cost.depth, m.plan.partials
    cycles = m.plan.cost.reduce_first * (depth - 1) // depth
    grain = m.plan.result_grouping
    share = ceil_div(partials.elements, grain * depth) * grain
    if depth > 2 and m.plan.cost.stages == 1 and not partials.one and partials.length % share:
        cycles = ceil_div(cycles * m.stack.cut_partials_percent, 100)
    return cycles


def emit_part(m: Lowering, name: str, vertex: str, *, exchange: int = 0, **work: int) -> None:
    """Add a superstep of every serial part; `exchange` is in cycles, `work` as `emit` takes it."""
    with m.loop(m.plan.cost.serial, tiles=m.plan.cost.tiles_used):
        m.emit(name, vertex, exchange=exchange * m.chip.exchange_bytes_per_cycle, **work)
