"""How operands of a planned operation are brought into the order that the plan wants.

An operand that another operation made is put into order once, for all tiles that want it; those of
a weight gradient also have what is summed over turned to be innermost.
"""

from dataclasses import dataclass, replace
from math import gcd, lcm, prod
from typing import Self

from ipusim.compiler.convolution.planner import Plan
from ipusim.compiler.emitter import Placed
from ipusim.compiler.state import Lowering
from ipusim.compiler.tiles import (
    ceil_div,
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
)
from ipusim.workload.graph import Conv

MOST_VIEWS = 7
"""Tiles up to which each tile that wants an operand puts it into order itself
(inViewMaxBroadcastDests, weightViewMaxBroadcastDests)."""


@dataclass(slots=True)
class Operand:
    """An operand of a planned operation: the input, or the weights.

    Unless it is `ready` where the plan wants it, it is `moved` there and `copied` within the tile,
    in cycles as the planner reckons. A tile has `bytes` of it, as so many `users` have, of each of
    the serial `parts` that it is sliced into.
    """

    x: Placed
    is_input: bool
    moved: int
    copied: int
    bytes: int
    users: int
    parts: int
    ready: bool

    @classmethod
    def of(cls, x: Placed, chosen: Plan, *, is_input: bool) -> Self:
        """Return an operand as a plan has it."""
        cost, split = chosen.cost, chosen.split
        cycles, parts = (cost.move_in, cost.copy_in), split.in_serial
        used = cost.input_bytes, split.input_users
        if not is_input:
            cycles, parts = (cost.move_weights, cost.copy_weights), cost.serial
            used = cost.weight_bytes, split.weight_users
        return cls(x, is_input, *cycles, *used, parts, ready=x.layout.free)


@dataclass(frozen=True, slots=True)
class Order:
    """How an operand of a product is brought into order.

    ``tile_bytes`` bytes of it lie on a tile then; ``turned`` says how its blocks are transposed,
    None where elements move one by one. Beside their exchange it takes ``copies`` within a tile to
    put pieces into place, and ``copies_to_turn`` before that; both are in cycles.
    """

    name: str
    tile_bytes: int
    copies: int = 0
    turned: Regrouping | None = None
    copies_to_turn: int = 0


def wanted_order(m: Lowering, chosen: Plan, operand: Operand) -> Order | None:
    """Return how an operand of a product is brought into order; None if it stays.

    It is rearranged where more than `MOST_VIEWS` tiles want the same part, where what is summed
    over does not sit together, or where the plan's transforms ask for it (poplibs
    lib/poplin/Convolution.cpp, convolutionImpl, rearrangeActs and rearrangeWeights). Blocks are
    transposed if both groups are multiples of a grain (regroupIfBeneficialForPlan). Taken up
    after seeing transformers too fast: pieces are as long as they are, not the plan's groups as in
    the planner's own estimate, and convolutions, to which the rule applies too, keep a copy by
    every tile.
    """
    if not m.stack.operands_in_order:
        return None
    op, x = m.task.params, operand.x
    size = element_bytes(x.dtype)
    # What is summed over are the columns of A and the rows of B, which is the input, unless the
    # plan swaps them.
    is_b = operand.is_input != chosen.transform.swap
    along_rows = not op.transpose_b if is_b else op.transpose_a
    turned = along_rows != x.layout.rows
    across = op.n if is_b else op.m
    group = found_group(x.layout.grouping, across if turned else op.k)
    wanted = chosen.in_chans_per_group
    if not operand.moved and operand.users <= MOST_VIEWS and not turned and group > 1:
        return None
    elements = ceil_div(_padded(x.elements, op.k, wanted), operand.parts)
    tile_bytes = laid_out_bytes(chosen, operand)
    plain = Order("B" if is_b else "A", tile_bytes)
    blocks = regrouping(elements, group, wanted, x.dtype, m.chip) if turned else None
    if blocks:
        return _in_blocks(m, plain, blocks, group * size)
    run, apart = gcd(x.layout.grouping, wanted), tile_bytes
    if not turned:
        # Of groups that are not whole, the last moves one by one.
        apart = tile_bytes // ceil_div(op.k, run) if op.k % run else 0
    copies = rearranged_copy_cycles(tile_bytes - apart, run * size, m.chip)
    return replace(plain, copies=copies + rearranged_copy_cycles(apart, size, m.chip))


def _padded(elements: int, summed: int, group: int) -> int:
    """Return the elements of an operand when what is summed over fills whole groups.

    It is padded before blocks are looked for (poplibs lib/poplin/Convolution.cpp,
    convolutionPreprocess, tag sdk/poplar/2.0.0).
    """
    return elements * ceil_div(summed, group) * group // summed


def _in_blocks(m: Lowering, plain: Order, blocks: Regrouping, piece_bytes: int) -> Order:
    """Return how an operand comes in pieces into blocks, which are transposed and take place."""
    copies = rearranged_copy_cycles(plain.tile_bytes, REGROUP_GRAIN_BYTES, m.chip)
    copies_to_turn = rearranged_copy_cycles(blocks.received, piece_bytes, m.chip)
    return replace(plain, copies=copies, turned=blocks, copies_to_turn=copies_to_turn)


def laid_out_bytes(chosen: Plan, operand: Operand) -> int:
    """Return the bytes on the fullest tile of an operand that a plan lays out.

    Tiles that use the same part hold it in whole blocks, of channels of the input, of channels of
    both sides of the weights, and at least so many bytes each (poplibs lib/poplin/Convolution.cpp,
    mapActivationsOrWeights, lib/poputil/TensorUseTracker.cpp, resolve).
    """
    together, least = chosen.in_chans_per_group * chosen.conv_groups_per_group, 128
    if not operand.is_input:
        together, least = together * chosen.out_chans_per_group, 256
    block = together * element_bytes(operand.x.dtype)
    blocks = ceil_div(operand.bytes, block)
    holders = min(operand.users, ceil_div(blocks, ceil_div(least, block)))
    return ceil_div(blocks, holders) * block


def bring_into_order(m: Lowering, orders: list[Order], parts: int) -> None:
    """Rearrange operands once for all tiles: both are sent, both transposed, both take place.

    That is done for each of so many serial parts.

    Poplibs adds its programs in this order (lib/poplin/Convolution.cpp, TransformPreProgram),
    and copies that stand together are one exchange (graphcore/popart
    willow/src/popx/popprograms.cpp, addPipelineCycle, relies on it).
    """
    turned = [(order, order.turned) for order in orders if order.turned]
    with m.loop(parts, tiles=m.tiles):
        if turned:
            m.emit(
                "transpose " + " and ".join(order.name for order, _ in turned),
                TRANSPOSE,
                sum(blocks.cycles for _, blocks in turned),
                received=sum(blocks.received for _, blocks in turned),
                copy=sum(order.copies_to_turn for order, _ in turned),
            )
        if orders:
            m.copy(
                "rearrange " + " and ".join(order.name for order in orders),
                received=sum(order.tile_bytes for order in orders),
                cycles=sum(order.copies for order in orders),
            )


def summed_order(m: Lowering, chosen: Plan, operand: Operand) -> Order | None:
    """Return how one operand of a convolution's weight gradient is brought into order.

    Batch and field are summed over, and become innermost. Blocks are transposed with the padding of
    the batch, but before windows are copied, unless they are a view only (poplibs
    lib/poplin/ConvTransforms.cpp, getExpandDimsPlan and expandDimTransformIsViewOnly, and
    Convolution.cpp, convolutionPreprocess, tag sdk/poplar/2.0.0). What takes its place in the end,
    padding and windows included, is what the planner has: early ones count both operands as one.
    None where elements move one by one as the planner reckons.
    """
    op, x, way = m.task.params, operand.x, chosen.transform.way
    size, parts = element_bytes(x.dtype), operand.parts
    name = "activations" if operand.is_input else "gradients"
    plain = Order(name, operand.moved * m.chip.exchange_bytes_per_cycle)
    grain = REGROUP_GRAIN_BYTES // size
    wanted, elements = chosen.in_chans_per_group, x.elements
    columns, batch = x.shape[1] // op.groups, op.in_channels // op.groups
    if m.stack.copies_windows and way.flatten and not way.expand:
        return _flattened_order(m, chosen, operand, plain)
    if not way.expand:
        elements = _padded(elements, batch, wanted)
    elif max(*op.out_field, *op.dilation) > 1:
        wanted = gcd(wanted, lcm(batch, grain))
    group = found_group(x.layout.grouping, columns)
    blocks = regrouping(ceil_div(elements, parts), group, wanted, x.dtype, m.chip)
    if not blocks:
        return None
    if not m.stack.copies_windows:
        return _in_blocks(m, plain, blocks, group * size)
    in_windows = _in_windows(op, chosen, operand)
    pieces = ceil_div(ceil_div(in_windows, parts * chosen.cost.tiles_used), wanted)
    return replace(plain, copies=piece_copy_cycles(pieces, m.chip), turned=blocks)


def _flattened_order(m: Lowering, chosen: Plan, operand: Operand, plain: Order) -> Order:
    """Return how an operand of a weight gradient whose outputs become channels comes into order.

    Positions of one operand are summed over with the batch then. Those of the other, the
    activations where the plan swaps both, are spread out in windows, one for each output, before
    anything is transposed (poplibs lib/poplin/Convolution.cpp, convolutionPreprocess,
    outChanFlattenDims, tag sdk/poplar/2.0.0). What sits together is looked for at the first element
    only (lib/poputil/VarStructure.cpp, detectInnermostGrouping): where that is padding, no blocks
    are found and elements move one by one.
    """
    op, chip, x = m.task.params, m.chip, operand.x
    swap, per = chosen.transform.swap, chosen.in_chans_per_group
    in_windows = operand.is_input == swap
    dims = _dims_of(op, chosen, chosen.transform.way.flatten)
    elements = _spread(op, dims, operand) if in_windows else x.elements
    positions = op.kernel if swap else op.field
    rows = op.in_channels // op.groups * prod(positions[d] for d in dims)
    elements = ceil_div(_padded(elements, rows, per), operand.parts)
    group = found_group(x.layout.grouping, x.shape[1] // op.groups)
    blocks = regrouping(elements, group, per, x.dtype, chip)
    if (in_windows and _begins_outside(op, dims, swap=swap)) or not blocks:
        size = element_bytes(x.dtype)
        apart = ceil_div(elements, chosen.cost.tiles_used) * size
        return replace(plain, copies=rearranged_copy_cycles(apart, size, chip))
    pieces = ceil_div(ceil_div(elements, chip.tiles), group) if in_windows else 0
    return replace(plain, turned=blocks, copies_to_turn=piece_copy_cycles(pieces, chip))


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


def _spread(op: Conv, dims: list[int], operand: Operand) -> int:
    """Return the elements of an operand of a weight gradient when each output has its own window.

    Activations are the input, gradients are the kernel.
    """
    own, other = (op.field, op.kernel) if operand.is_input else (op.kernel, op.field)
    elements = operand.x.elements
    for d in dims:
        elements = elements // own[d] * op.out_field[d] * other[d]
    return elements


def _in_windows(op: Conv, chosen: Plan, operand: Operand) -> int:
    """Return the elements of an operand when each output has its own window; 0 if it stays.

    Kernels that move into the channels are a view if one output is left. Elements that a tile wants
    in several windows arrive once and are copied, whole blocks are sent where they belong. Taken up
    after seeing 112 convolutions of IPUModel, which copies of all that is moved leave 4 % slow
    where the kernel is 1 x 1, and 6 % fast elsewhere.
    """
    way, flattens = chosen.transform.way, operand.is_input == chosen.transform.swap
    dims = _dims_of(op, chosen, way.flatten if flattens else way.expand)
    spread = [d for d in dims if op.out_field[d] > 1]
    return _spread(op, spread, operand) if spread else 0
