"""Planned operations, convolutions and products: from a plan to the supersteps of poplibs."""

from math import gcd

from ipusim.compiler.convolution.planner import Plan
from ipusim.compiler.emitter import Placed, TensorLayout
from ipusim.compiler.operators.products.orders import (
    MOST_VIEWS,
    Operand,
    Order,
    bring_into_order,
    laid_out_bytes,
    padded_order,
    summed_order,
    wanted_order,
)
from ipusim.compiler.operators.products.result import emit_part, finish_result
from ipusim.compiler.state import Lowering
from ipusim.compiler.tiles import ceil_div, copy_cycles, element_bytes, rearranged_copy_cycles
from ipusim.compiler.vertices.elementwise import REGROUP_GRAIN_BYTES, TRANSPOSE, transpose_cycles
from ipusim.workload.graph import Conv, MatMul


def transpose_weights(m: Lowering, weights: Placed, forward: Plan) -> None:
    """Rearrange weights from their `forward` plan for the data gradient, which is as `m.plan`.

    Channels are exchanged and the field reversed. Blocks are transposed where they lie, then sent
    (poplibs ``lib/poplin/Convolution.cpp``, weightsTransposeChansFlipXY and
    fullyConnectedWeightTranspose); those of a product are also copied into place. In a joint plan
    they stay on their tiles. The groups of a tensor divide its channels, whatever the plan pads
    them to; if the groups of a product hold one element only, elements are copied one by one
    (getGroupSizes there, useCopyImpl). So do those of a plan that merges groups (`_merge_groups`).
    """
    op = m.task.params
    weights = weights.spread()
    element, moved = element_bytes(weights.dtype), m.tile_bytes(weights)
    if isinstance(op, MatMul):
        block = gcd(m.plan.in_chans_per_group, op.k)
        in_per = gcd(forward.in_chans_per_group, op.n)
        copied = min(block, in_per) == 1
    else:
        out_channels = op.in_channels // op.groups
        out_per = gcd(forward.out_chans_per_group, out_channels)
        in_per = gcd(forward.in_chans_per_group, op.out_channels // op.groups)
        wanted = gcd(m.plan.in_chans_per_group, out_channels)
        block = wanted if out_per % wanted == 0 else out_per
        copied = False
    # Weights are transposed on all tiles, whichever the product uses then.
    m.tiles = m.chip.tiles
    if block > 1 and not copied:
        matrices = ceil_div(m.share(weights), block * in_per)
        cycles = transpose_cycles(block, in_per, matrices, weights.dtype, m.chip)
        m.emit("transpose weights", TRANSPOSE, cycles)
    if not m.plan.joint or copied:
        piece = element if copied else block * element
        cycles = copy_cycles(moved, m.chip, atom_bytes=element) if copied else 0
        if isinstance(op, Conv) and max(m.plan.transform.factor, forward.transform.factor) > 1:
            # Positions, which are reversed, are adjacent where groups are merged.
            cycles = rearranged_copy_cycles(moved, element, m.chip)
        if isinstance(op, MatMul) and m.stack.operands_in_order:
            cycles = rearranged_copy_cycles(moved, piece, m.chip)
        m.copy("turn weights", 0 if m.plan.joint else moved, temp=moved, cycles=cycles)


def lower_planned(m: Lowering, data: Placed, weights: Placed) -> TensorLayout:
    """Add the supersteps of a planned operation in poplibs' order; return the result's layout."""
    m.tiles = m.plan.cost.tiles_used
    is_conv = isinstance(m.task.params, Conv)
    operands = (
        Operand.of(data, m.plan, is_input=True, is_conv=is_conv),
        Operand.of(weights, m.plan, is_input=False, is_conv=is_conv),
    )
    arranged = _bring_operands(m, *operands)
    _multiply(m, *operands)
    layout = finish_result(m)
    temp_bytes = max(_temp_bytes(m, operands[0], arranged), m.steps[-1].temp_bytes)
    interleaved = m.plan.method in ("AMP", "SLIC")
    m.known = {
        "plan": str(m.plan),
        "codelet": m.plan.codelet,
        "transform": "joint" if m.plan.joint else m.plan.transform.name,
        "reads_lines": is_conv and not m.plan.one_by_one,
        "temp_bytes": temp_bytes,
        "interleaved_bytes": _partials_bytes(m) if interleaved else 0,
    }
    return layout


def _bring_operands(m: Lowering, data: Operand, weights: Operand) -> int:
    """Slice and rearrange both operands; return the bytes on a tile of those rearranged before."""
    chip, cost, op = m.chip, m.plan.cost, m.task.params
    is_conv, rate, operands = isinstance(op, Conv), chip.exchange_bytes_per_cycle, (data, weights)
    transposed, arranged_bytes = bool(m.steps), max([0, *(step.temp_bytes for step in m.steps)])
    in_bytes = element_bytes(data.x.dtype)
    stored = not is_conv and op.weights_operand
    if stored and op.pass_kind == "forward" and m.stack.regroup_fully_connected:
        operand_bytes = sum(ceil_div(one.x.elements * in_bytes, chip.tiles) for one in operands)
        m.copy(
            "regroup operands",
            ceil_div(operand_bytes, rate) * rate,
            cycles=copy_cycles(operand_bytes, chip, atom_bytes=chip.memcpy_bytes_per_cycle),
        )
    if is_conv:
        if cost.before > cost.fetch:
            m.copy("arrange for slices", cycles=cost.before - cost.fetch)
        _slice_operands(m, data.x, weights.x)
    else:
        arranged_bytes += _arrange_product(m, data, weights, transposed=transposed)
    moved, copied = data.moved + weights.moved, data.copied + weights.copied
    if moved > 0 and op.pass_kind == "weight_gradient":
        # The dimensions that are summed over must become innermost.
        data.ready = True
        orders = [summed_order(m, one) for one in operands] if is_conv else []
        if orders and all(orders):
            for once, parts in ((True, 1), (False, cost.serial)):
                sent = zip(operands, orders, strict=True)
                found = [order for one, order in sent if one.sent_once(m.plan) == once]
                bring_into_order(m, found, parts)
            moved = 0
        else:
            # Elements move one by one; for convolutions this is what the planner reckons with.
            copied = copy_cycles(moved * rate, chip, atom_bytes=in_bytes)
            if not is_conv and m.stack.operands_in_order:
                copied = rearranged_copy_cycles(moved * rate, in_bytes, chip)
    elif is_conv and m.plan.transform.factor > 1:
        moved, copied = _merge_groups(m, data, weights)
    stay = weights.ready and not cost.move_weights
    if stay and m.plan.cut_channels and weights.users > MOST_VIEWS:
        # Weights whose serial parts do not fill the vertex's groups are padded where many tiles
        # want them: a new tensor, laid out as the plan wants it (poplibs
        # lib/poplin/Convolution.cpp, convolutionPreprocess and rearrangeWeights).
        padded = laid_out_bytes(m.plan, weights)
        piece = m.plan.in_chans_per_group * element_bytes(weights.x.dtype)
        with m.loop(cost.serial, tiles=m.tiles):
            cycles = rearranged_copy_cycles(padded, piece, chip)
            m.copy("pad weights", received=padded, cycles=cycles)
    if moved > 0:
        emit_part(m, "rearrange operands", "copy", exchange=moved, copy=copied)
    return arranged_bytes


def _merge_groups(m: Lowering, data: Operand, weights: Operand) -> tuple[int, int]:
    """Return the cycles to send the operands of merged groups of convolutions, and to copy them.

    Operands that are laid out for such a plan have one channel of one group at a place, with its
    positions beside it: their elements move one by one into merged groups, the weights between
    zeros (poplibs lib/poplin/Convolution.cpp, createInputImpl, createWeightsImpl and
    convolutionPreprocess, combineConvGroups, tag sdk/poplar/2.0.0). Rows of whole grains could be
    transposed; they keep what the planner reckons with.
    """
    rate, size = m.chip.exchange_bytes_per_cycle, element_bytes(data.x.dtype)
    moved, copied = data.moved + weights.moved, data.copied + weights.copied
    alone = data.ready and m.task.params.field[-1] % (REGROUP_GRAIN_BYTES // size)
    if weights.ready and alone:
        own = ceil_div(data.x.elements, m.plan.cost.tiles_used) * size
        single = own + laid_out_bytes(m.plan, weights)
        moved, copied = ceil_div(single, rate), rearranged_copy_cycles(single, size, m.chip)
    return moved, copied


def _arrange_product(m: Lowering, data: Operand, weights: Operand, *, transposed: bool) -> int:
    """Slice both operands of a product and rearrange those that lie otherwise; return their bytes.

    An operand that is laid out for this plan is charged what the planner reckons with; but operands
    of a forward product lie otherwise than its weight gradient wants them. If `transposed`,
    `transpose_weights` has put the layer's weights, the input unless swapped, into place.
    """
    cost, op = m.plan.cost, m.task.params
    own = weights if m.plan.transform.swap else data
    if transposed:
        own.ready, own.moved, own.copied = True, 0, 0
    before, placed = cost.before - cost.fetch, transposed and own is data
    once: list[Order] = []
    in_parts: list[Order] = []
    turns = op.pass_kind == "weight_gradient" and not m.plan.joint and m.stack.operands_in_order
    for one in (data, weights):
        if not one.ready or turns:
            placed |= one is data
            if order := wanted_order(m, one):
                one.ready = True
                (once if one.placed_once(m.plan) else in_parts).append(order)
            if order and one.parts > 1 and (order := padded_order(m, one)):
                in_parts.append(order)
            one.moved = one.copied = 0
    if m.stack.operands_in_order:
        # Orders take the place of what the planner reckons with for slices and a broadcast input.
        before = 0 if m.plan.split.broadcast and placed else before - cost.arrange
    bring_into_order(m, once, 1)
    if before:
        m.copy("arrange for slices", cycles=before)
    _slice_operands(m, data.x, weights.x)
    bring_into_order(m, in_parts, cost.serial)
    return sum(order.tile_bytes for order in (*once, *in_parts))


def _slice_operands(m: Lowering, data: Placed, weights: Placed) -> None:
    """Slice each serial part of the operands, on the tiles that use it."""
    split, cost, size = m.plan.split, m.plan.cost, element_bytes(data.dtype)
    with m.loop(cost.serial, tiles=cost.tiles_used):
        if split.in_serial > 1:
            m.slice("slice input", ceil_div(cost.input_bytes, split.out_chans * size), data.dtype)
        if cost.serial > 1:
            part = ceil_div(cost.weight_bytes, split.weight_users * size)
            m.slice("slice weights", part, weights.dtype)


def _multiply(m: Lowering, data: Operand, weights: Operand) -> None:
    """Send every tile the operands that it multiplies, and multiply them.

    An input that the plan broadcasts is sent once, before the loop over serial parts (poplibs
    lib/poplin/Convolution.cpp, convolutionImpl, tileLevelActs, tag sdk/poplar/2.4.0).
    """
    chip, cost, is_conv = m.chip, m.plan.cost, isinstance(m.task.params, Conv)
    arriving, copied = cost.fetch or cost.input, 0
    if not data.ready:
        # All inputs lie elsewhere; neighbours that want the same ones share the bus.
        paired = m.plan.split.out_chans % chip.tiles_per_exchange_bus == 0
        width = chip.exchange_bytes_per_cycle * (chip.tiles_per_exchange_bus if paired else 1)
        arriving, copied = ceil_div(cost.input_bytes, width), copy_cycles(cost.input_bytes, chip)
    if m.plan.split.broadcast:
        if arriving:
            m.copy("broadcast input", arriving * chip.exchange_bytes_per_cycle, cycles=copied)
        arriving = copied = 0
    if is_conv and not data.ready and (data.x.layout.rows or not (data.moved or weights.moved)):
        _regroup_channels(m, data.x, m.plan.in_chans_per_group * m.plan.conv_groups_per_group)
    if not is_conv and not weights.ready:
        # Activations come from another plan, whether or not B was laid out for this one.
        copied += copy_cycles(cost.weight_bytes, chip)
    emit_part(
        m,
        "convolve" if is_conv else "multiply",
        f"poplin::{m.plan.method}",
        exchange=cost.weights + arriving + cost.tile_transform,
        copy=copied,
        compute=cost.calc,
    )


def _regroup_channels(m: Lowering, x: Placed, wanted: int) -> None:
    """Regroup a convolution's input so that `wanted` channels are adjacent in memory.

    Blocks are transposed where elements of successive rows are adjacent, if both groups are
    multiples of a grain (poplibs lib/poplin/Convolution.cpp, regroupIfBeneficialForPlan).
    """
    group, size = x.layout.grouping, element_bytes(x.dtype)
    if x.layout.rows and m.regroup("regroup channels", x, group, wanted):
        return
    if x.layout.rows or group != wanted:
        tile_bytes = ceil_div(x.elements * size, m.chip.tiles)
        atom = size if x.layout.rows else min(group, wanted) * size
        copied = copy_cycles(tile_bytes, m.chip, atom_bytes=atom)
        m.emit("regroup channels", TRANSPOSE, copy=copied)


def _temp_bytes(m: Lowering, data: Operand, arranged_bytes: int) -> int:
    """Bytes of the fullest tile that live during a planned operation only, its output left out.

    While the vertex runs, these are received inputs and weights, operands that were rearranged
    before (`arranged_bytes`), and the partials; while the partials are reduced or cast, the
    partials and the output. Of rearrangements and serial splits the planner's bytes are taken
    (ConvModel.cpp).
    """
    cost, split = m.plan.cost, m.plan.split
    output = cost.outputs * element_bytes(m.made.dtype)
    if cost.serial > 1 or cost.move_in or cost.move_weights:
        return max(0, cost.temp_bytes - output)
    inputs, weights = cost.input_bytes, cost.weight_bytes
    received = weights - weights // split.weight_users + inputs
    if data.ready:
        received -= inputs // split.out_chans
    received += arranged_bytes
    after = cost.partial_bytes if cost.reduce else 0
    return max(received + _partials_bytes(m) - output, after, 0)


def _partials_bytes(m: Lowering) -> int:
    """Bytes of the partials of the fullest tile, which AMP and SLIC have in interleaved memory.

    SLIC has a second buffer, of one block of groups (poplibs lib/poplin/ConvVertices.cpp,
    outFieldBuffer, ConvModel.cpp, addConvTempMemoryEstimate, and the codelets' vector layouts).
    """
    partials = m.plan.cost.partial_bytes
    if m.plan.method != "SLIC":
        return partials
    groups = ceil_div(m.task.params.groups, m.plan.conv_groups_per_group * m.plan.split.group)
    return partials + ceil_div(partials, groups) + 200
