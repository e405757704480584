"""Elementwise operations and casts: which vertices run, and what has to move first.

Sources of dropout and random numbers: poplibs lib/poprand/RandomGen.cpp, tag sdk/poplar/2.4.0; of
the others, see `ipusim.compiler.emitter`.
"""

from math import gcd

from ipusim.compiler.emitter import COUNTER, DEFAULT_GROUPING, Emitter, Placed, TensorLayout
from ipusim.compiler.operators.elementwise_functions import (
    EXPRESSIONS,
    RANDOM,
    RUNNING_MEANS,
    gradient_functions,
    vertices_of,
)
from ipusim.compiler.state import FLOATING, Lowering, float_dtype, lowers
from ipusim.compiler.tiles import copy_cycles, element_bytes, rearranged_copy_cycles, tile_share
from ipusim.compiler.vertices.elementwise import (
    REGROUP_GRAIN_BYTES,
    found_group,
    running_mean_cycles,
    scaled_add_runs_cycles,
    vertex_of,
)
from ipusim.compiler.vertices.training import SEED_BYTES, random_cycles
from ipusim.workload.graph import Cast, Elementwise


@lowers(Elementwise)
def elementwise(m: Lowering, op: Elementwise, *inputs: Placed) -> TensorLayout:
    """Lower a function that is applied element by element."""
    layout = inputs[0].layout
    x = Placed((m.made.elements,), m.dtype, layout)
    adds = op.function in ("add", "scaled_add") and not op.broadcast and len(inputs) == 2
    # How the result of a product lies, if it and a tensor that is laid out for it are added.
    product = m.task.product if adds and inputs[1].layout.free else None
    if op.function == "bias_add":
        m.by_channel("add", x, inputs[1].elements, "bias add", in_place=True)
    elif product:
        # C of a matMulAcc is laid out like the product.
        cycles = scaled_add_runs_cycles(m.tile, product, x.dtype)
        vertex = "popops::ScaledAddSupervisor" if product.one else "popops::ScaledAdd2D"
        m.emit("scaled add", vertex, cycles)
    elif op.function == "scaled_add" and not op.broadcast:
        _scaled_add(m, op, inputs)
    elif op.function in RUNNING_MEANS:
        _running_mean(m, x, counted=op.function == "counted_running_mean")
    elif op.function == "random":
        _draw(m, "random", "Normal", x)
    elif op.function in RANDOM:
        with m.holding(m.tile_bytes(x) if m.task.overwritten is not None else 0):
            # The result shares memory in the graph, but the vertex writes a new tensor.
            layout = _dropout(m, op, x, inputs[0])
    elif op.function in EXPRESSIONS or op.function in gradient_functions(m.era):
        # A gradient takes on the layout of what the forward pass kept.
        layout = inputs[min(1, len(inputs) - 1)].layout._replace(free=False)
        x = x._replace(layout=layout)
        with m.holding(m.tile_bytes(x) if m.task.overwritten is not None else 0):
            _gradient(m, op, x, inputs[0].layout)
    else:
        at = _template(m, x, inputs) if m.task.overwritten is None else m.task.overwritten
        inputs = (inputs[at], *inputs[:at], *inputs[at + 1 :])
        layout = inputs[0].layout
        if inputs[0].elements < x.elements:
            # No operand is whole, as where a row meets a column: the result is spread evenly.
            layout = layout._replace(tiles=None, mapping=None)
        _series(m, op, x._replace(layout=layout), inputs)
    return layout


def _template(m: Lowering, x: Placed, inputs: tuple[Placed, ...]) -> int:
    """Return the place of the operand that a new result lies like, 0 if none is as large.

    It has the fewest elements on its fullest tile, then the most tiles, or comes first; what is
    laid out for its consumer takes that layout (lib/popops/ElementWiseUtil.cpp,
    createOutputForElementWiseOp, all versions).
    """
    whole = [at for at, one in enumerate(inputs) if one.elements == x.elements]

    def order(at: int) -> tuple[bool, int, int]:
        return inputs[at].layout.free, m.share(inputs[at]), -m.tiles_of(inputs[at])

    return min(whole or [0], key=order)


@lowers(Cast)
def cast(m: Lowering, _op: Cast, x: Placed) -> TensorLayout:
    """Lower a conversion to another type or width; indices of 64 bits are of 32 on the chip."""
    source, target = ("int32" if t.dtype == "int64" else t.dtype for t in (x, m.made))
    alike = (source in FLOATING) == (target in FLOATING)
    if not (alike and element_bytes(source) == element_bytes(target)):
        m.cast(x.of(source).shaped(m.made.elements), target)
    return x.layout


def _dropout(m: Lowering, op: Elementwise, x: Placed, incoming: Placed) -> TensorLayout:
    """Drop elements; return the layout of the result.

    The random bits depend on the layout of what the forward pass dropped from, which so is that of
    the gradient: the incoming one is regrouped to it and sent there (`m.task.reference`; poplibs
    lib/poprand/RandomGen.cpp, dropout, in all versions, regrouped from tag sdk/poplar/2.4.0 on;
    graphcore/popart willow/src/op/dropout.cpp, getReferenceTensorId; graphcore/tensorflow
    driver/ops/custom_ops/poprand/dropout.cc, GetReferenceTensor).
    """
    layout, moved = m.task.reference or incoming.layout, {}
    x = x._replace(layout=layout)
    if not incoming.layout.lies_with(layout):
        moved = {"received": m.tile_bytes(x), "copy": _bring_operand(m, op, x, incoming)}
    dropout(m, x, seeded=op.function == "seeded_dropout", **moved)
    return layout


def dropout(m: Emitter, x: Placed, *, seeded: bool = False, **moved: int) -> None:
    """Drop elements at random, or gradients of the same elements, which may arrive (`moved`).

    Both draw the same random bits from the seed of the forward pass, so no mask is kept. If
    `seeded`, that seed is made first: the number of the dropout, a constant on another tile, is
    added to the step's seed, and a seed drawn on the tile of the sum (graphcore/popart
    willow/src/popx/op/modifyrandomseedx.cpp).
    """
    if seeded:
        m.count("add number of dropout", received=m.tile_bytes(COUNTER))
        _draw(m, "draw seed", "Uniform", COUNTER)
        m.count("cast seed")
        m.copy("copy seed", cycles=copy_cycles(SEED_BYTES, m.chip))
    _draw(m, "dropout", "Dropout", x, **moved)


def _draw(m: Emitter, name: str, vertex: str, x: Placed, **moved: int) -> None:
    """Draw a random number for every element from a seed.

    The generators' state is saved, the seed sent to all tiles and set, and the state restored at
    the end (lib/poprand/RandomGen.cpp, maybeSaveHwSeedsAndSetSeeds and maybeRestoreHwSeeds).
    Poplar itself saves and restores, at the cost of setting a seed. [inferred]
    """
    seeding = random_cycles(m.tile, "SetSeed", 1, "float32")
    m.emit("save seeds", "poplar::GetHwSeeds", seeding)
    m.emit("set seed", "poprand::SetSeed", seeding, exchange=SEED_BYTES)
    cycles = random_cycles(m.tile, vertex, m.share(x), x.dtype)
    m.emit(name, f"poprand::{vertex}", cycles, **moved)
    m.emit("restore seeds", "poplar::SetHwSeeds", seeding)


def _scaled_add(m: Lowering, op: Elementwise, inputs: tuple[Placed, ...]) -> None:
    """Add: ``a += scale * b``; a may be wider than b, or narrower."""
    target, addend = m.task.roles[:2]
    layout, source = inputs[0].layout, inputs[1].layout
    if m.task.updates or target in ("parameter", "state"):
        # Accumulators and moments are laid out like the gradient that is added to them (PopART
        # accumulatex.cpp), weights like their consumer: what passes between them is exchanged.
        # A gradient that its plan leaves where the weights lie (joint plans) stays.
        same = (target == "parameter") == (addend == "parameter")
        same |= addend == "activation" and source.free
        if target == "state" and not source.free:
            layout = source
    else:
        same = source.lies_with(layout)
    dtype, other = (float_dtype(operand.dtype) for operand in inputs[:2])
    x, moved = Placed((m.made.elements,), dtype, layout), {}
    if not same:
        received = m.share(x) * element_bytes(other)
        moved = {"received": received, "copy": _regroup_for_weights(m, *inputs)}
    m.scaled_add(x, other, **moved)


def _regroup_for_weights(m: Lowering, weights: Placed, gradient: Placed) -> int:
    """Regroup a gradient like the weights that it is added to; return cycles of on-tile copies.

    In weights the dimension is adjacent that the layer sums over: rows of B in a product, a
    convolution's input channels, or its groups where each has one channel. If another dimension is
    in the gradient that a plan made, blocks are transposed where that is possible (poplibs
    lib/popops/ScaledAdd.cpp, regroupIfBeneficial).
    """
    target, addend = m.task.roles[:2]
    if (target, addend) != ("parameter", "activation") or gradient.layout.tiles is None:
        return 0
    shape, size = weights.shape, element_bytes(gradient.dtype)
    group, summed = gradient.layout.grouping, shape[int(len(shape) > 2)]
    wanted = gcd(DEFAULT_GROUPING, summed) if summed > 1 else group
    piece = gcd(group, wanted) * size
    if summed > 1 and not gradient.layout.rows:
        piece = size
        if m.regroup("regroup gradient", gradient, group, wanted, piece=group * size):
            piece = REGROUP_GRAIN_BYTES
    if not m.stack.operands_in_order:
        return 0
    return rearranged_copy_cycles(m.tile_bytes(gradient.spread()), piece, m.chip)


def _running_mean(m: Emitter, x: Placed, *, counted: bool) -> None:
    """Update the mean of float16 gradients of n micro-batches by those of one more.

    The numbers 1 / (n + 1) and n / (n + 1) are sent to the tiles of the tensor. If `counted`, they
    are computed first, for this tensor alone, as in PopART (graphcore/popart
    willow/src/popx/op/accumulatex.cpp, AccumulationType::Mean). TensorFlow computes them once a
    stage, which is left out.
    """
    if counted:
        for name in ("micro-batches with this one", "share of this one", "share of those before"):
            m.count(name)
    cycles, shares = running_mean_cycles(m.tile, m.share(x)), 2 * element_bytes("float32")
    m.emit("running mean", "popops::aXPlusbYSupervisor", cycles, exchange=shares)


def _gradient(m: Lowering, op: Elementwise, x: Placed, incoming: TensorLayout) -> None:
    """Compute a gradient with a vertex, made for it or generated.

    The result is mapped like the tensor of the forward pass, to which the vertex fetches the
    incoming gradient (lib/popnn/NonLinearity.cpp, nonLinearityInputGradient).
    """
    moved = {}
    if not op.broadcast and not incoming.lies_with(x.layout):
        moved = {"received": m.tile_bytes(x), "copy": m.piece_copies(x, incoming)}
    if op.function in gradient_functions(m.era):
        function = op.function.removesuffix("_grad")
        cycles = m.gradient_cycles(function, x)
        m.emit(f"{function} gradient", "popnn::NonLinearityGrad1D", cycles, **moved)
    else:
        m.generated(op.function, x, EXPRESSIONS[op.function], **moved)


def _series(m: Lowering, op: Elementwise, x: Placed, inputs: tuple[Placed, ...]) -> None:
    """Run a function as the popops operations that compute it, one or several."""
    _cast_operands(m, x, inputs)
    # Unlike `TensorLayout.lies_with`: a result keeps the place of its first operand, free or not.
    elsewhere = [
        other
        for other in inputs[1:]
        if not other.layout.free and other.layout.mapping != x.layout.mapping
    ]
    spread, pieces = _repeats_matrix(m, op, inputs), 0
    if spread:
        pieces = _bring_matrix(m, x, inputs[1])
    elif not op.broadcast:
        pieces = sum(_bring_operand(m, op, x, other) for other in elsewhere)
    repeated = op.broadcast and not spread
    grouping = gcd(x.layout.grouping, x.elements)
    x = x._replace(layout=x.layout._replace(grouping=grouping))
    in_place = m.task.overwritten is not None
    single = not repeated or min(other.elements for other in inputs) == 1
    for index, function in enumerate(vertices_of(op.function, m.tile.era)):
        vertex = vertex_of(function, m.tile.era)
        if vertex == "UnaryOp1D":
            m.unary(function, x, op.function, in_place=in_place)
        elif repeated and _meets_column(m, inputs):
            rows = x.shaped(*m.made.shape)
            m.by_row(function, rows, op.function, in_place=in_place)
        elif repeated or (len(inputs) == 1 and vertex == "BinaryOp1D"):
            channels = 1 if single else grouping
            m.by_channel(function, x, channels, op.function, in_place=in_place)
        else:
            moved = {}
            if index == 0 and (spread or elsewhere):
                moved = {"received": m.tile_bytes(x), "copy": pieces}
            m.binary(function, x, op.function, in_place=in_place, **moved)


def _meets_column(m: Lowering, inputs: tuple[Placed, ...]) -> bool:
    """Whether an operand has one value for each row of a matrix.

    Of a tensor of more dimensions the adjacent channels need not be the last dimension.
    """
    column = (m.made.shape[0], 1)
    return len(m.made.shape) == 2 and column in [other.shape for other in inputs[1:]]


def _repeats_matrix(m: Lowering, op: Elementwise, inputs: tuple[Placed, ...]) -> bool:
    """Whether the second operand is repeated along leading axes only, and whole on no tile.

    A causal mask for all heads is one: a tile holds parts of the scores of one head, so nothing
    repeats there. popops takes the vertex of two full operands, and the part that the tile needs
    arrives by exchange (lib/popops/ElementWise.cpp, binaryOpBroadcast, the last case).
    """
    if not op.broadcast or len(inputs) != 2:
        return False
    out = m.made
    share = tile_share(out.elements, out.dtype, m.chip)
    rows = len(out.shape) > 2 and inputs[1].shape[-2:] == out.shape[-2:]
    return rows and share <= inputs[1].elements


def _bring_matrix(m: Lowering, x: Placed, matrix: Placed) -> int:
    """Bring a repeated matrix into the layout of x, the result; return cycles of on-tile copies.

    Where another dimension is adjacent in the result, a matrix with at most a tenth of its elements
    is copied first into a tensor that lies like it (lib/popops/ElementWise.cpp,
    constructBroadcastBinaryOp, regroupOperandIfBeneficial, from tag sdk/poplar/2.0.0 on); a larger
    one arrives element by element, as it does where poplibs finds no neighbours in the result.
    """
    if x.layout.rows == matrix.layout.rows:
        return 0
    found = found_group(x.layout.grouping, m.made.shape[-2 if x.layout.rows else -1])
    if m.era and found > 1 and 10 * matrix.elements <= x.elements:
        moved = m.tile_bytes(matrix.spread())
        copied = rearranged_copy_cycles(moved, element_bytes(matrix.dtype), m.chip)
        m.copy("lay out operand", moved, cycles=copied)
        return 0
    return m.piece_copies(x, matrix.layout)


def _bring_operand(m: Lowering, op: Elementwise, x: Placed, other: Placed) -> int:
    """Regroup an operand as large as x, the result; return cycles of on-tile copies.

    Functions of three have no such step as those of two (lib/popops/ElementWise.cpp, ternaryOp). Of
    more than three dimensions it is not known which one the channels are; groups of them count as
    whole.
    """
    sizes = m.made.shape[-2:] if len(m.made.shape) in (2, 3) else ()
    if op.function == "select":
        return m.piece_copies(x, other.layout)
    return m.bring_operand(x, other.layout, *sizes)


def _cast_operands(m: Lowering, x: Placed, inputs: tuple[Placed, ...]) -> None:
    """Cast float operands of another width: popops vertices take one type."""
    if m.made.dtype not in FLOATING:
        return
    for other in inputs:
        if other.dtype in FLOATING and other.dtype != x.dtype:
            other = other._replace(layout=x.layout)
            with m.holding(m.tile_bytes(other.of(x.dtype))):
                m.cast(other, x.dtype)
