"""Results of planned operations: partials become sums, in their type and at their place."""

from ipusim.compiler.convolution.planner import Plan
from ipusim.compiler.state import Lowering
from ipusim.compiler.tiles import ceil_div, copy_cycles, element_bytes, rearranged_copy_cycles
from ipusim.compiler.vertices.elementwise import cast_runs_cycles


def finish_result(m: Lowering, chosen: Plan) -> None:
    """Sum or convert partials, put serial parts together, and the result where it belongs."""
    cost = chosen.cost
    if chosen.cost.depth > 1:
        stages = cost.stages
        share, rest = divmod(cost.reduce, stages)
        work = m, chosen, "reduce partials", "poplin::ReduceAdd"
        emit_part(*work, exchange=_partials_exchange(m, chosen), compute=share + rest)
        for _ in range(1, stages):
            emit_part(*work, exchange=cost.reduce_rest // (stages - 1), compute=share)
    elif cost.reduce:
        result = m.dtype
        partials = "float16" if result == "float32" else "float32"
        cycles = cast_runs_cycles(m.tile, chosen.partials, partials, result)
        vertex = "popops::Cast1D" if chosen.partials.one else "popops::Cast2D"
        emit_part(m, chosen, "cast partials", vertex, compute=cycles)
    if cost.add:
        emit_part(m, chosen, "accumulate", "popops::BinaryOp1DInPlace", compute=cost.add)
    _write_part(m, chosen)
    if cost.after:
        m.emit("cast result", "popops::Cast1D", cost.after)
    if cost.move_out:
        name = "rearrange output"
        emit_part(m, chosen, name, "copy", exchange=cost.move_out, copy=cost.copy_out)
    if chosen.spreads_output:
        # Copied with zeros between its positions, where groups of channels sit together, into a
        # tensor of its own (Convolution.cpp, convolutionPostprocess).
        size = element_bytes(m.made.dtype)
        atom = chosen.conv_groups_per_group * chosen.out_chans_per_group * size
        tile_bytes = ceil_div(m.made.elements * size, chosen.cost.tiles_used)
        m.copy("spread output", cycles=copy_cycles(tile_bytes, m.chip, atom_bytes=atom))


def _write_part(m: Lowering, chosen: Plan) -> None:
    """Write what a serial part has made, and count the parts.

    A counter on one tile says to all which part it is (poplibs lib/poplin/Convolution.cpp,
    convolutionImpl and ConvProgramTree::lower). All outputs of a part are written; the planner's
    own estimate divides them by the parts once more (ConvModel.cpp, addDynamicUpdateEstimate).
    """
    parts, outputs, size = chosen.cost.serial, chosen.cost.outputs, element_bytes(m.made.dtype)
    gathered = 0
    if chosen.cut_channels and not chosen.cost.move_out:
        # What is left of the vertex's groups is brought together (convolutionPostprocess).
        gathered = rearranged_copy_cycles(outputs * size, chosen.cut_channels * size, m.chip)
    if chosen.split.out_serial > 1:
        with m.loop(parts, tiles=chosen.cost.tiles_used):
            m.slice("write slice", outputs, m.made.dtype, write=True, copy=gathered)
    if parts > 1:
        with m.loop(parts, tiles=1):
            m.count("count parts")


def _partials_exchange(m: Lowering, chosen: Plan) -> int:
    """Return the cycles in which a tile receives the partials that it sums first.

    It keeps its own share. Shares that do not divide the runs in which partials lie are sent in two
    pieces each; from several tiles these take longer than what arrives
    (`Stack.cut_partials_percent`).
    """
    depth, partials = chosen.cost.depth, chosen.partials
    cycles = chosen.cost.reduce_first * (depth - 1) // depth
    grain = chosen.out_chans_per_group * chosen.conv_groups_per_group
    share = ceil_div(partials.elements, grain * depth) * grain
    if depth > 2 and chosen.cost.stages == 1 and not partials.one and partials.length % share:
        cycles = ceil_div(cycles * m.stack.cut_partials_percent, 100)
    return cycles


def emit_part(
    m: Lowering, chosen: Plan, name: str, vertex: str, *, exchange: int = 0, **work: int
) -> None:
    """Add a superstep of every serial part; `exchange` is in cycles, `work` as `emit` takes it."""
    with m.loop(chosen.cost.serial, tiles=chosen.cost.tiles_used):
        m.emit(name, vertex, exchange=exchange * m.chip.exchange_bytes_per_cycle, **work)
