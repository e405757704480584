"""How operands of a planned operation are brought into the order that the plan wants.

An operand that another operation made is rearranged once, for all tiles that want it. Operands of
a weight gradient are also transposed, so that the dimension that is summed over is innermost.
"""

from dataclasses import dataclass, replace
from math import gcd, lcm, prod
from typing import Self

from ipusim.compiler.convolution.planner import Plan
from ipusim.compiler.emitter import Placed
from ipusim.compiler.eras import ERA_1_0, ERA_2_4, ERA_3_3
from ipusim.compiler.state import Lowering
from ipusim.compiler.tiles import ceil_div, element_bytes, piece_copy_cycles, rearranged_copy_cycles
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

    Unless it is `ready`, laid out as the plan wants it, it takes `moved` cycles of exchange and
    `copied` cycles of copies within the tile, as the planner estimates. In each of the serial
    `parts` that it is sliced into a tile needs `bytes` of it, the same ones as `users` tiles in
    all. It is B of a product (`is_b`), which the input is unless the plan swaps both. It is
    `used_as_input` by the plan: a convolution's that swaps operands has the input as its weights.
    """

    x: Placed
    is_input: bool
    is_b: bool
    used_as_input: bool
    moved: int
    copied: int
    bytes: int
    users: int
    parts: int
    ready: bool

    def sent_once(self, plan: Plan) -> bool:
        """Whether it is an input that a plan broadcasts: sent before the loop over serial parts.

        It is rearranged there, too (poplibs lib/poplin/Convolution.cpp, ConvProgramTree::lower,
        moveTransposeOps, from tag sdk/poplar/2.2.0 on).
        """
        return self.used_as_input and bool(plan.split.broadcast)

    def placed_once(self, plan: Plan) -> bool:
        """Whether it is put into its place once, before the loop over serial parts.

        So is what is sent then, and what is sliced in the loop (poplibs lib/poplin/Convolution.cpp,
        convolutionImpl, rearrangeIfSplitOverTiles, in all versions).
        """
        return self.parts > 1 or self.sent_once(plan)

    @classmethod
    def of(cls, x: Placed, plan: Plan, *, is_input: bool, is_conv: bool) -> Self:
        """Return the operand x with the cost and the split that a plan has for it.

        Operands of a product come in the plan's order, those of a convolution as it has them.
        """
        is_b = is_input != plan.transform.swap
        used_as_input = is_b if is_conv else is_input
        cost, split = plan.cost, plan.split
        cycles, parts = (cost.move_in, cost.copy_in), split.in_serial
        used = cost.input_bytes, split.input_users
        if not used_as_input:
            cycles, parts = (cost.move_weights, cost.copy_weights), cost.serial
            used = cost.weight_bytes, split.weight_users
        return cls(x, is_input, is_b, used_as_input, *cycles, *used, parts, ready=x.layout.free)


@dataclass(frozen=True, slots=True)
class Order:
    """How an operand of a product is rearranged.

    ``tile_bytes`` bytes of it lie on a tile then; ``blocks`` says how its blocks are transposed
    before, None where they are not. ``copies`` are the cycles of on-tile copies that put pieces
    into place after the exchange, ``copies_to_blocks`` those that form blocks to transpose.
    """

    name: str
    tile_bytes: int
    copies: int = 0
    blocks: Regrouping | None = None
    copies_to_blocks: int = 0


def wanted_order(m: Lowering, operand: Operand) -> Order | None:
    """Return how an operand of a product is rearranged; None if it stays.

    It is rearranged where more than `MOST_VIEWS` tiles want the same part, where the dimension that
    is summed over is not adjacent in memory, for a weight gradient, or where the plan's transforms
    ask for it (poplibs lib/poplin/Convolution.cpp, convolutionImpl, rearrangeActs and
    rearrangeWeights); and always, as a whole, if serial parts slice it (`Operand.placed_once`).
    Blocks are transposed if both groups are multiples of a grain (regroupIfBeneficialForPlan).
    Taken up after seeing transformers too fast: pieces are as long as they are, not the plan's
    groups as in the planner's own estimate, and convolutions, to which the rule applies too, keep a
    copy by every tile.
    """
    if not m.stack.operands_in_order:
        return None
    op, x = m.task.params, operand.x
    size, sliced = element_bytes(x.dtype), operand.parts > 1
    # The sum is over columns of A and rows of B.
    along_rows = not op.transpose_b if operand.is_b else op.transpose_a
    transposes = along_rows != x.layout.rows
    across = op.n if operand.is_b else op.m
    group = found_group(x.layout.grouping, across if transposes else op.k)
    wanted, elements = m.plan.in_chans_per_group, x.elements
    forced = sliced or operand.moved or op.pass_kind == "weight_gradient"
    if not forced and operand.users <= MOST_VIEWS and not transposes and group > 1:
        return None
    tile_bytes = laid_out_bytes(m.plan, operand) * operand.parts
    plain = Order("B" if operand.is_b else "A", tile_bytes)
    found, turns = wanted, transposes
    if sliced:
        # In SDK 1.0 nothing is transposed first.
        found = found_group(_sliced_group(m), op.k)
        turns = transposes and m.era != ERA_1_0
    else:
        elements = _padded(elements, op.k, wanted)
    blocks = regrouping(elements, group, found, x.dtype, m.chip) if turns else None
    if blocks:
        return _in_blocks(m, plain, blocks, group * size)
    run, single_bytes = gcd(x.layout.grouping, wanted), tile_bytes
    if not transposes:
        # Elements of a last, incomplete group move one by one.
        single_bytes = tile_bytes // ceil_div(op.k, run) if op.k % run else 0
    copies = rearranged_copy_cycles(tile_bytes - single_bytes, run * size, m.chip)
    return replace(plain, copies=copies + rearranged_copy_cycles(single_bytes, size, m.chip))


def _sliced_group(m: Lowering) -> int:
    """Return how many elements that are summed over are adjacent in an operand for slices.

    Before SDK 3.0 groups divide a part (lib/poplin/Convolution.cpp, getInChansPerGroup).
    """
    group = m.plan.in_chans_per_group
    if m.era >= ERA_3_3:
        return group
    return gcd(group, m.task.params.k // m.plan.split.in_serial)


def padded_order(m: Lowering, operand: Operand) -> Order | None:
    """Return how each part of a sliced operand of a product is padded to whole groups; None if not.

    The padded part is a new tensor where many tiles want it or for a weight gradient (poplibs
    lib/poplin/Convolution.cpp, convolutionPreprocess); else each tile pads what it receives.
    """
    op, group = m.task.params, m.plan.in_chans_per_group
    forced = operand.users > MOST_VIEWS or op.pass_kind == "weight_gradient"
    if not (forced and op.k // m.plan.split.in_serial % group):
        return None
    size, tile_bytes = element_bytes(operand.x.dtype), laid_out_bytes(m.plan, operand)
    piece = _sliced_group(m) * size
    name = "padded B" if operand.is_b else "padded A"
    return Order(name, tile_bytes, rearranged_copy_cycles(tile_bytes, piece, m.chip))


def _padded(elements: int, summed: int, group: int) -> int:
    """Return the elements of an operand after its dimension of `summed` is padded to whole groups.

    poplibs pads it before it looks for blocks (lib/poplin/Convolution.cpp, convolutionPreprocess,
    tag sdk/poplar/2.0.0).
    """
    return elements * ceil_div(summed, group) * group // summed


def _in_blocks(m: Lowering, plain: Order, blocks: Regrouping, piece_bytes: int) -> Order:
    """Return `plain` with blocks: formed of pieces that arrive, transposed, sent into place."""
    copies = rearranged_copy_cycles(plain.tile_bytes, REGROUP_GRAIN_BYTES, m.chip)
    copies_to_blocks = rearranged_copy_cycles(blocks.received, piece_bytes, m.chip)
    return replace(plain, copies=copies, blocks=blocks, copies_to_blocks=copies_to_blocks)


def laid_out_bytes(plan: Plan, operand: Operand) -> int:
    """Return the bytes on the fullest tile of an operand that a plan lays out.

    Tiles that use the same part share it in whole blocks, and have 128 bytes of the input or 256 of
    the weights at the least. A block is the input channel group of the vertex, for weights times
    its output channel group (poplibs lib/poplin/Convolution.cpp, mapActivationsOrWeights,
    lib/poputil/TensorUseTracker.cpp, resolve).
    """
    together, least = plan.in_chans_per_group * plan.conv_groups_per_group, 128
    if not operand.used_as_input:
        together, least = together * plan.out_chans_per_group, 256
    block = together * element_bytes(operand.x.dtype)
    blocks = ceil_div(operand.bytes, block)
    holders = min(operand.users, ceil_div(blocks, ceil_div(least, block)))
    return ceil_div(blocks, holders) * block


def bring_into_order(m: Lowering, orders: list[Order], parts: int) -> None:
    """Rearrange operands once for all tiles, in each of so many serial parts.

    One superstep sends the blocks of both operands and transposes them, each in a compute set of
    its own from tag sdk/poplar/2.2.0 on; another sends both into place. Poplibs adds its programs
    in this order (lib/poplin/Convolution.cpp, TransformPreProgram), and copies that stand together
    are one exchange (graphcore/popart willow/src/popx/popprograms.cpp, addPipelineCycle, relies on
    it).
    """
    transposed = [(order, order.blocks) for order in orders if order.blocks]
    arriving = sum(blocks.received for _, blocks in transposed)
    moved = {"received": arriving, "copy": sum(order.copies_to_blocks for order, _ in transposed)}
    with m.loop(parts, tiles=m.tiles):
        for together in [transposed] if m.era < ERA_2_4 else [[one] for one in transposed]:
            if together:
                name = "transpose " + " and ".join(order.name for order, _ in together)
                m.emit(name, TRANSPOSE, sum(blocks.cycles for _, blocks in together), **moved)
                moved = {"temp": arriving}
        if orders:
            m.copy(
                "rearrange " + " and ".join(order.name for order in orders),
                received=sum(order.tile_bytes for order in orders),
                cycles=sum(order.copies for order in orders),
            )


def summed_order(m: Lowering, operand: Operand) -> Order | None:
    """Return how one operand of a convolution's weight gradient is rearranged.

    The sum is over batch and field, which become innermost. Blocks are transposed after the batch
    is padded, but before windows are copied, unless these are a view only (poplibs
    lib/poplin/ConvTransforms.cpp, getExpandDimsPlan and expandDimTransformIsViewOnly, and
    Convolution.cpp, convolutionPreprocess, tag sdk/poplar/2.0.0). The bytes that are sent into
    place in the end, padding and windows included, are the planner's: early ones count both
    operands as one. None where elements move one by one, as the planner reckons.
    """
    op, x, way = m.task.params, operand.x, m.plan.transform.way
    size, parts = element_bytes(x.dtype), operand.parts
    name = "activations" if operand.is_input else "gradients"
    plain = Order(name, operand.moved * m.chip.exchange_bytes_per_cycle)
    grain = REGROUP_GRAIN_BYTES // size
    wanted, elements = m.plan.in_chans_per_group, x.elements
    columns, batch = x.shape[1] // op.groups, op.in_channels // op.groups
    if m.stack.copies_windows and way.flatten and not way.expand:
        return _flattened_order(m, operand, plain)
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
    in_windows = _in_windows(op, m.plan, operand)
    pieces = ceil_div(ceil_div(in_windows, parts * m.plan.cost.tiles_used), wanted)
    return replace(plain, copies=piece_copy_cycles(pieces, m.chip), blocks=blocks)


def _flattened_order(m: Lowering, operand: Operand, plain: Order) -> Order:
    """Return how an operand of a weight gradient is rearranged if outputs become channels.

    The sum is then over the positions of one operand and the batch. The other, the activations
    where the plan swaps both, is copied out as one window for each output before anything is
    transposed (poplibs lib/poplin/Convolution.cpp, convolutionPreprocess, outChanFlattenDims, tag
    sdk/poplar/2.0.0). Poplibs looks for adjacent elements at the first one only
    (lib/poputil/VarStructure.cpp, detectInnermostGrouping): where that is padding, it finds no
    blocks and elements move one by one.
    """
    op, chip, x = m.task.params, m.chip, operand.x
    swap, per = m.plan.transform.swap, m.plan.in_chans_per_group
    in_windows = not operand.used_as_input
    dims = _dims_of(op, m.plan, m.plan.transform.way.flatten)
    elements = _spread(op, dims, operand) if in_windows else x.elements
    positions = op.kernel if swap else op.field
    rows = op.in_channels // op.groups * prod(positions[d] for d in dims)
    elements = ceil_div(_padded(elements, rows, per), operand.parts)
    group = found_group(x.layout.grouping, x.shape[1] // op.groups)
    blocks = regrouping(elements, group, per, x.dtype, chip)
    if (in_windows and _begins_outside(op, dims, swap=swap)) or not blocks:
        size = element_bytes(x.dtype)
        single_bytes = ceil_div(elements, m.plan.cost.tiles_used) * size
        if in_windows:
            # The windows are the plan's weights, in whole blocks on the fullest tile.
            single_bytes = laid_out_bytes(m.plan, operand)
        return replace(plain, copies=rearranged_copy_cycles(single_bytes, size, chip))
    pieces = ceil_div(ceil_div(elements, chip.tiles), group) if in_windows else 0
    return replace(plain, blocks=blocks, copies_to_blocks=piece_copy_cycles(pieces, chip))


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


def _dims_of(op: Conv, plan: Plan, dims: tuple[int, ...]) -> list[int]:
    """Return dimensions of a plan, which has two at least, numbered as the operator's own."""
    added = len(plan.split.field) - len(op.field)
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


def _in_windows(op: Conv, plan: Plan, operand: Operand) -> int:
    """Return the elements of an operand when each output has its own window; 0 if it stays.

    Kernels that move into the channels are a view if one output is left. Elements that a tile wants
    in several windows arrive once and are copied, whole blocks are sent where they belong. Taken up
    after seeing 112 convolutions of IPUModel, which copies of all that is moved leave 4 % slow
    where the kernel is 1 x 1, and 6 % fast elsewhere.
    """
    way = plan.transform.way
    dims = _dims_of(op, plan, way.expand if operand.used_as_input else way.flatten)
    spread = [d for d in dims if op.out_field[d] > 1]
    return _spread(op, spread, operand) if spread else 0
