"""Planned operations, convolutions and products: from a plan to the supersteps of poplibs."""

from dataclasses import dataclass
from math import gcd, lcm, prod

from ipusim.compiler.convolution.planner import Plan
from ipusim.compiler.emitter import Placed, TensorLayout
from ipusim.compiler.operators.planned_result import emit_part, finish_result
from ipusim.compiler.state import Lowering
from ipusim.compiler.tiles import (
    ceil_div,
    copy_cycles,
    element_bytes,
    piece_copy_cycles,
    rearranged_copy_cycles,
)
from ipusim.compiler.vertices.elementwise import (
    REGROUP_GRAIN_BYTES,
    TRANSPOSE,
    Regrouping,
    found_group,
    regrouping,
    regroups,
    transpose_cycles,
)
from ipusim.workload.graph import Conv, MatMul

_MOST_VIEWS = 7
"""Tiles up to which each tile that wants an operand puts it into order itself
(inViewMaxBroadcastDests, weightViewMaxBroadcastDests)."""


def transpose_weights(m: Lowering, weights: Placed, chosen: Plan, forward: Plan) -> None:
    """Rearrange the forward weights for the data gradient: channels exchanged, field reversed.

    Blocks are transposed where they lie, then sent (poplibs ``lib/poplin/Convolution.cpp``,
    weightsTransposeChansFlipXY and fullyConnectedWeightTranspose), those of a product put into
    place as well; in a joint plan they stay on their tiles. The groups of a tensor divide its
    channels, whatever the plan pads them to; a product whose groups hold one element only is copied
    one by one (getGroupSizes there, useCopyImpl).
    """
    op = m.task.params
    weights = weights.spread()
    element, moved = element_bytes(weights.dtype), m.tile_bytes(weights)
    if isinstance(op, MatMul):
        block = gcd(chosen.in_chans_per_group, op.k)
        in_per = gcd(forward.in_chans_per_group, op.n)
        copied = min(block, in_per) == 1
    else:
        out_channels = op.in_channels // op.groups
        out_per = gcd(forward.out_chans_per_group, out_channels)
        in_per = gcd(forward.in_chans_per_group, op.out_channels // op.groups)
        wanted = gcd(chosen.in_chans_per_group, out_channels)
        block = wanted if out_per % wanted == 0 else out_per
        copied = False
    # Weights are transposed on all tiles, whichever the product uses then.
    m.tiles = m.chip.tiles
    if block > 1 and not copied:
        matrices = ceil_div(m.share(weights), block * in_per)
        cycles = transpose_cycles(block, in_per, matrices, weights.dtype, m.chip)
        m.emit("transpose weights", TRANSPOSE, cycles)
    if not chosen.joint or copied:
        piece = element if copied else block * element
        cycles = copy_cycles(moved, m.chip, atom_bytes=element) if copied else 0
        if isinstance(op, MatMul) and m.stack.operands_in_order:
            cycles = rearranged_copy_cycles(moved, piece, m.chip)
        m.copy("turn weights", 0 if chosen.joint else moved, temp=moved, cycles=cycles)


def lower_planned(m: Lowering, chosen: Plan, data: Placed, weights: Placed) -> TensorLayout:
    """Supersteps of a planned operation, in the order in which poplibs runs them."""
    m.superstep_cycles = m.stack.planned_superstep_cycles
    m.tiles = chosen.cost.tiles_used
    came = _bring_operands(m, chosen, data, weights)
    _multiply(m, chosen, data, came)
    layout = finish_result(m, chosen)
    m.chosen = chosen
    m.plan, m.codelet = str(chosen), chosen.codelet
    m.transform = "joint" if chosen.joint else chosen.transform.name
    m.reads_lines = isinstance(m.task.params, Conv) and not chosen.one_by_one
    m.temp_bytes = max(_temp_bytes(m, chosen, came), m.steps[-1].temp_bytes)
    m.interleaved_bytes = chosen.cost.partial_bytes if chosen.method == "AMP" else 0
    return layout


@dataclass(frozen=True, slots=True, kw_only=True)
class _Brought:
    """How operands lie before they are multiplied: as the plan wants `data` and `weights`, or not.

    `moved` says that both took their place at once; `bytes` of a tile were arranged before.
    """

    data: bool
    weights: bool
    moved: bool
    bytes: int


def _bring_operands(m: Lowering, chosen: Plan, data: Placed, weights: Placed) -> _Brought:
    """Slice and rearrange the operands as the plan wants them."""
    chip, cost, op = m.chip, chosen.cost, m.task.params
    is_conv, rate = isinstance(op, Conv), chip.exchange_bytes_per_cycle
    transposed, before_bytes = bool(m.steps), max([0, *(step.temp_bytes for step in m.steps)])
    in_bytes = element_bytes(data.dtype)
    stored = not is_conv and op.weights_operand
    if stored and op.pass_kind == "forward" and m.stack.regroup_fully_connected:
        operand_bytes = sum(ceil_div(x.elements * in_bytes, chip.tiles) for x in (data, weights))
        m.copy(
            "regroup operands",
            ceil_div(operand_bytes, rate) * rate,
            cycles=copy_cycles(operand_bytes, chip, atom_bytes=chip.memcpy_bytes_per_cycle),
        )
    if cost.before:
        m.copy("arrange for slices", cycles=cost.before)
    _slice_operands(m, chosen, data, weights)
    moved = cost.move_in + cost.move_weights
    copied = cost.copy_in + cost.copy_weights
    arranged, placed = data.layout.free, weights.layout.free
    if transposed and not is_conv and chosen.transform.swap:
        # The layer's weights have been transposed into their place.
        moved, copied, placed = cost.move_in, cost.copy_in, True
    elif transposed and not is_conv:
        # They are the input here.
        moved, copied, arranged = cost.move_weights, cost.copy_weights, True
    if not is_conv:
        # Operands that were made for this plan are charged what the planner reckons with.
        needed = []
        if not arranged:
            moved, copied = moved - cost.move_in, copied - cost.copy_in
            if order := _wanted_order(m, chosen, data, is_input=True):
                arranged = True
                needed.append(order)
        if not placed:
            moved, copied = moved - cost.move_weights, copied - cost.copy_weights
            if order := _wanted_order(m, chosen, weights, is_input=False):
                placed = True
                needed.append(order)
        before_bytes += sum(order.tile_bytes for order in needed)
        with m.loop(chosen.cost.serial, tiles=m.tiles):
            _bring_into_order(m, needed)
    if moved > 0 and op.pass_kind == "weight_gradient":
        # What is summed over must become innermost.
        arranged = True
        orders = [
            _summed_order(m, chosen, data, is_input=True),
            _summed_order(m, chosen, weights, is_input=False),
        ]
        known = [order for order in orders if order]
        if len(known) == len(orders):
            with m.loop(chosen.cost.serial, tiles=m.tiles):
                _bring_into_order(m, known)
            moved = 0
        else:
            # Elements move one by one; for convolutions this is what the planner reckons with.
            copied = copy_cycles(moved * rate, chip, atom_bytes=in_bytes)
            if not is_conv and m.stack.operands_in_order:
                copied = rearranged_copy_cycles(moved * rate, in_bytes, chip)
    if placed and not cost.move_weights:
        _pad_weights(m, chosen, in_bytes)
    if moved > 0:
        name = "rearrange operands"
        emit_part(m, chosen, name, "copy", exchange=moved, copy=max(0, copied))
    return _Brought(data=arranged, weights=placed, moved=moved > 0, bytes=before_bytes)


def _slice_operands(m: Lowering, chosen: Plan, data: Placed, weights: Placed) -> None:
    """Slice what every serial part takes of the operands, each on the tiles that use it."""
    split, cost, size = chosen.split, chosen.cost, element_bytes(data.dtype)
    with m.loop(chosen.cost.serial, tiles=chosen.cost.tiles_used):
        if split.in_serial > 1:
            m.slice("slice input", ceil_div(cost.input_bytes, split.out_chans * size), data.dtype)
        if chosen.cost.serial > 1:
            part = ceil_div(cost.weight_bytes, split.weight_users * size)
            m.slice("slice weights", part, weights.dtype)


def _pad_weights(m: Lowering, chosen: Plan, element: int) -> None:
    """Pad weights of serial parts that do not fill the vertex's groups, where many tiles want them.

    They take a tensor of their own then (poplibs lib/poplin/Convolution.cpp, convolutionPreprocess
    and rearrangeWeights).
    """
    users = chosen.split.weight_users
    if chosen.cut_channels and users > _MOST_VIEWS:
        padded = ceil_div(chosen.cost.weight_bytes, users)
        piece = chosen.in_chans_per_group * element
        with m.loop(chosen.cost.serial, tiles=m.tiles):
            m.fetch("pad weights", padded, cycles=rearranged_copy_cycles(padded, piece, m.chip))


def _multiply(m: Lowering, chosen: Plan, data: Placed, came: _Brought) -> None:
    """Send every tile what it multiplies, and multiply."""
    chip, cost, is_conv = m.chip, chosen.cost, isinstance(m.task.params, Conv)
    exchange, copied = cost.weights, 0
    if came.data:
        exchange += cost.input
    else:
        # All inputs lie elsewhere; neighbours that want the same ones share the bus.
        paired = chosen.split.out_chans % chip.tiles_per_exchange_bus == 0
        width = chip.exchange_bytes_per_cycle * (chip.tiles_per_exchange_bus if paired else 1)
        exchange += ceil_div(cost.input_bytes, width)
        copied += copy_cycles(cost.input_bytes, chip)
        regroup = chosen.in_chans_per_group * chosen.conv_groups_per_group
        if is_conv and (data.layout.rows or not came.moved):
            _regroup_channels(m, data, regroup)
    if not is_conv and not came.weights:
        # Activations come from another plan, whether or not B was laid out for this one.
        copied += copy_cycles(cost.weight_bytes, chip)
    emit_part(
        m,
        chosen,
        "convolve" if is_conv else "multiply",
        f"poplin::{chosen.method}",
        exchange=exchange + cost.tile_transform,
        copy=copied,
        compute=cost.calc,
    )


def _regroup_channels(m: Lowering, x: Placed, wanted: int) -> None:
    """Bring as many channels of a convolution's input together as the plan wants.

    Blocks are transposed where neighbours along rows sit together, if both groups are multiples of
    a grain (poplibs lib/poplin/Convolution.cpp, regroupIfBeneficialForPlan).
    """
    group, size = x.layout.grouping, element_bytes(x.dtype)
    if x.layout.rows and regroups(x.dtype, group, wanted):
        m.regroup("regroup channels", x, group, wanted)
    elif x.layout.rows or group != wanted:
        tile_bytes = ceil_div(x.elements * size, m.chip.tiles)
        atom = size if x.layout.rows else min(group, wanted) * size
        copied = copy_cycles(tile_bytes, m.chip, atom_bytes=atom)
        m.emit("regroup channels", TRANSPOSE, copy=copied)


@dataclass(frozen=True, slots=True)
class _Order:
    """How an operand of a product is brought into order.

    ``tile_bytes`` bytes of it lie on a tile then; ``turned`` says how its blocks are transposed,
    None where elements move one by one. Beside their exchange it takes ``copies`` within a tile to
    put pieces into place, and ``copies_to_turn`` before that; both are in cycles.
    """

    name: str
    tile_bytes: int
    copies: int
    turned: Regrouping | None = None
    copies_to_turn: int = 0


def _wanted_order(m: Lowering, chosen: Plan, x: Placed, *, is_input: bool) -> _Order | None:
    """Return how an operand that an operation made is brought into order; None if it stays.

    It is rearranged where more than `_MOST_VIEWS` tiles want the same part, where what is summed
    over does not sit together, or where the plan's transforms ask for it (poplibs
    lib/poplin/Convolution.cpp, convolutionImpl, rearrangeActs and rearrangeWeights). Blocks are
    transposed if both groups are multiples of a grain (regroupIfBeneficialForPlan). Taken up
    after seeing transformers too fast: pieces are as long as they are, not the plan's groups as in
    the planner's own estimate, and convolutions, to which the rule applies too, keep a copy by
    every tile.
    """
    if not m.stack.operands_in_order:
        return None
    split, op, size = chosen.split, m.task.params, element_bytes(x.dtype)
    asked = chosen.cost.move_in if is_input else chosen.cost.move_weights
    users = split.input_users if is_input else split.weight_users
    parts = split.in_serial if is_input else chosen.cost.serial
    # What is summed over are the columns of A and the rows of B, which is the input, unless the
    # plan swaps them.
    is_b = is_input != chosen.transform.swap
    along_rows = not op.transpose_b if is_b else op.transpose_a
    turned = along_rows != x.layout.rows
    across = op.n if is_b else op.m
    group = found_group(x.layout.grouping, across if turned else op.k)
    wanted = chosen.in_chans_per_group
    if not asked and users <= _MOST_VIEWS and not turned and group > 1:
        return None
    elements = ceil_div(_padded(x.elements, op.k, wanted), parts)
    name, tile_bytes = "B" if is_b else "A", ceil_div(elements, m.tiles) * size
    if turned and regroups(x.dtype, group, wanted):
        blocks = regrouping(elements, group, wanted, x.dtype, m.chip)
        return _in_blocks(m, name, tile_bytes, blocks, group * size)
    run, apart = gcd(x.layout.grouping, wanted), tile_bytes
    if not turned:
        # Of groups that are not whole, the last moves one by one.
        apart = tile_bytes // ceil_div(op.k, run) if op.k % run else 0
    copies = rearranged_copy_cycles(tile_bytes - apart, run * size, m.chip)
    return _Order(name, tile_bytes, copies + rearranged_copy_cycles(apart, size, m.chip))


def _padded(elements: int, summed: int, group: int) -> int:
    """Return the elements of an operand when what is summed over fills whole groups.

    It is padded before blocks are looked for (poplibs lib/poplin/Convolution.cpp,
    convolutionPreprocess, tag sdk/poplar/2.0.0).
    """
    return elements * ceil_div(summed, group) * group // summed


def _in_blocks(
    m: Lowering, name: str, tile_bytes: int, blocks: Regrouping, piece_bytes: int
) -> _Order:
    """Return how an operand comes in pieces into blocks, which are transposed and take place."""
    copies = rearranged_copy_cycles(tile_bytes, REGROUP_GRAIN_BYTES, m.chip)
    copies_to_turn = rearranged_copy_cycles(blocks.received, piece_bytes, m.chip)
    return _Order(name, tile_bytes, copies, blocks, copies_to_turn)


def _bring_into_order(m: Lowering, orders: list[_Order]) -> None:
    """Rearrange operands once for all tiles: both are sent, both transposed, both take place.

    Poplibs adds its programs in this order (lib/poplin/Convolution.cpp, TransformPreProgram),
    and copies that stand together are one exchange (graphcore/popart
    willow/src/popx/popprograms.cpp, addPipelineCycle, relies on it).
    """
    turned = [(order, order.turned) for order in orders if order.turned]
    if turned:
        m.emit(
            "transpose " + " and ".join(order.name for order, _ in turned),
            TRANSPOSE,
            sum(blocks.cycles for _, blocks in turned),
            received=sum(blocks.received for _, blocks in turned),
            copy=sum(order.copies_to_turn for order, _ in turned),
        )
    if orders:
        m.fetch(
            "rearrange " + " and ".join(order.name for order in orders),
            sum(order.tile_bytes for order in orders),
            cycles=sum(order.copies for order in orders),
        )


def _summed_order(m: Lowering, chosen: Plan, x: Placed, *, is_input: bool) -> _Order | None:
    """Return how one operand of a weight gradient is brought into order: its rows innermost.

    Rows of a product, batch and field of a convolution are summed over. Blocks are transposed with
    the padding of the batch, but before windows are copied, unless they are a view only (poplibs
    lib/poplin/ConvTransforms.cpp, getExpandDimsPlan and expandDimTransformIsViewOnly, and
    Convolution.cpp, convolutionPreprocess, tag sdk/poplar/2.0.0). What takes its place in the end,
    padding and windows included, is what the planner has: early ones count both operands as one.
    None where elements move one by one as the planner reckons.
    """
    moved, parts = chosen.cost.move_weights, chosen.cost.serial
    if is_input:
        moved, parts = chosen.cost.move_in, chosen.split.in_serial
    op, size, way = m.task.params, element_bytes(x.dtype), chosen.transform.way
    name = "activations" if is_input else "gradients"
    tile_bytes = moved * m.chip.exchange_bytes_per_cycle
    grain = REGROUP_GRAIN_BYTES // size
    wanted, elements = chosen.in_chans_per_group, x.elements
    if isinstance(op, MatMul):
        columns, elements = x.shape[-1], _padded(elements, op.k, wanted)
    else:
        columns, batch = x.shape[1] // op.groups, op.in_channels // op.groups
        if m.stack.copies_windows and way.flatten and not way.expand:
            return _flattened_order(m, chosen, x, name, tile_bytes, parts)
        if not way.expand:
            elements = _padded(elements, batch, wanted)
        elif max(*op.out_field, *op.dilation) > 1:
            wanted = gcd(wanted, lcm(batch, grain))
    group = found_group(x.layout.grouping, columns)
    if not regroups(x.dtype, group, wanted):
        return None
    blocks = regrouping(ceil_div(elements, parts), group, wanted, x.dtype, m.chip)
    if isinstance(op, MatMul) or not m.stack.copies_windows:
        return _in_blocks(m, name, tile_bytes, blocks, group * size)
    in_windows = _in_windows(op, chosen, x, is_input=is_input)
    pieces = ceil_div(ceil_div(in_windows, parts * chosen.cost.tiles_used), wanted)
    return _Order(name, tile_bytes, piece_copy_cycles(pieces, m.chip), blocks)


def _flattened_order(
    m: Lowering, chosen: Plan, x: Placed, name: str, tile_bytes: int, parts: int
) -> _Order:
    """Return how an operand of a weight gradient whose outputs become channels comes into order.

    Positions of one operand are summed over with the batch then. Those of the other, the
    activations where the plan swaps both, are spread out in windows, one for each output, before
    anything is transposed (poplibs lib/poplin/Convolution.cpp, convolutionPreprocess,
    outChanFlattenDims, tag sdk/poplar/2.0.0). What sits together is looked for at the first element
    only (lib/poputil/VarStructure.cpp, detectInnermostGrouping): where that is padding, no blocks
    are found and elements move one by one.
    """
    op, chip, size = m.task.params, m.chip, element_bytes(x.dtype)
    swap, per = chosen.transform.swap, chosen.in_chans_per_group
    is_input = name == "activations"
    in_windows = is_input == swap
    dims = _dims_of(op, chosen, chosen.transform.way.flatten)
    elements = _spread(op, dims, x, is_input=is_input) if in_windows else x.elements
    positions = op.kernel if swap else op.field
    rows = op.in_channels // op.groups * prod(positions[d] for d in dims)
    elements = ceil_div(_padded(elements, rows, per), parts)
    group = found_group(x.layout.grouping, x.shape[1] // op.groups)
    if (in_windows and _begins_outside(op, dims, swap=swap)) or not regroups(x.dtype, group, per):
        apart = ceil_div(elements, chosen.cost.tiles_used) * size
        return _Order(name, tile_bytes, rearranged_copy_cycles(apart, size, chip))
    blocks = regrouping(elements, group, per, x.dtype, chip)
    pieces = ceil_div(ceil_div(elements, chip.tiles), group) if in_windows else 0
    return _Order(name, tile_bytes, 0, blocks, piece_copy_cycles(pieces, chip))


def _begins_outside(op: Conv, dims: list[int], *, swap: bool) -> bool:
    """Whether the first window begins with padding: of activations in a swap, else of gradients.

    A window of gradients, which have zeros between them if the layer has strides, begins as far in
    as one of activations begins before their field.
    """
    low = [max(0, op.padding_lower[d]) for d in dims]
    if swap:
        return any(low)
    gradients = [(op.dilation[d], op.kernel[d]) for d in dims]
    return any(
        at % step or at >= step * size for at, (step, size) in zip(low, gradients, strict=True)
    )


def _dims_of(op: Conv, chosen: Plan, dims: tuple[int, ...]) -> list[int]:
    """Return dimensions of a plan as the operator's own: plans have two at least."""
    added = len(chosen.split.field) - len(op.field)
    return [d - added for d in dims if d >= added]


def _spread(op: Conv, dims: list[int], x: Placed, *, is_input: bool) -> int:
    """Return the elements of an operand of a weight gradient when each output has its own window.

    Activations are the input, gradients are the kernel.
    """
    own, other = (op.field, op.kernel) if is_input else (op.kernel, op.field)
    elements = x.elements
    for d in dims:
        elements = elements // own[d] * op.out_field[d] * other[d]
    return elements


def _in_windows(op: Conv, chosen: Plan, x: Placed, *, is_input: bool) -> int:
    """Return the elements of an operand when each output has its own window; 0 if it stays.

    Kernels that move into the channels are a view if one output is left. Elements that a tile wants
    in several windows arrive once and are copied, whole blocks are sent where they belong. Taken up
    after seeing 112 convolutions of IPUModel, which copies of all that is moved leave 4 % slow
    where the kernel is 1 x 1, and 6 % fast elsewhere.
    """
    way = chosen.transform.way
    dims = _dims_of(op, chosen, way.flatten if is_input == chosen.transform.swap else way.expand)
    spread = [d for d in dims if op.out_field[d] > 1]
    return _spread(op, spread, x, is_input=is_input) if spread else 0


def _temp_bytes(m: Lowering, chosen: Plan, came: _Brought) -> int:
    """Bytes of the fullest tile that live during a planned operation only, its output left out.

    While the vertex runs: what was received of inputs and weights, its share of weights that were
    turned before, and the partials; while the partials are reduced or cast: the partials and the
    output. Rearrangements and serial splits need what the planner reckons with (ConvModel.cpp).
    """
    cost, split = chosen.cost, chosen.split
    output = cost.outputs * element_bytes(m.made.dtype)
    if chosen.cost.serial > 1 or cost.move_in or cost.move_weights:
        return max(0, chosen.cost.temp_bytes - output)
    inputs, weights = cost.input_bytes, cost.weight_bytes
    received = weights - weights // split.weight_users + inputs
    if came.data:
        received -= inputs // split.out_chans
    received += came.bytes
    partials = cost.partial_bytes
    after = partials if cost.reduce else 0
    return max(received + partials - output, after, 0)
