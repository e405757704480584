"""Losses with their gradient as the series of operations that popnn emits.

Source: poplibs lib/popnn/Loss.cpp (calcLoss) and lib/popops/Encoding.cpp (encodeOneHot), tags
1.0.136 and sdk/poplar/2.4.0; the mean over the rows is one more reduction, which frameworks add.
"""

from ipusim.compiler.emitter import SPREAD, Emitter, Placed, TensorLayout
from ipusim.compiler.operators.reduce import argmax
from ipusim.compiler.operators.softmax import softmax_forward
from ipusim.compiler.state import Lowering, float_dtype, lowers
from ipusim.compiler.tiles import ceil_div, element_bytes, vector_width
from ipusim.compiler.vertices.training import loss_transform_cycles, one_hot_cycles
from ipusim.workload.graph import Loss
from ipusim.workload.operators.loss import CLASS_LOSSES

_MIN_GRAINS_PER_TILE = 4


@lowers(Loss)
def loss(m: Lowering, op: Loss, x: Placed, *_: Placed) -> tuple[TensorLayout, ...]:
    """Lower a loss; its gradient lies with the predictions."""
    m.tiles = m.chip.tiles
    m.result = TensorLayout(tiles=x.layout.tiles)
    loss_and_gradient(m, op, x.shaped(op.rows, op.classes).of(float_dtype(x.dtype)))
    return SPREAD, x.layout._replace(free=False)


def loss_and_gradient(m: Emitter, op: Loss, x: Placed) -> None:
    """A loss of the predictions x, its gradient and the mean over all rows.

    For a cross entropy: softmax, the targets one-hot (zero, one vertex, copy to the predictions'
    tiles), loss and gradient per element, the gradient of rows without a label masked, the sum per
    row; for the accuracy the largest prediction of each row, compared with the target, and the sum
    of what is right. For a mean squared error: loss and gradient per element with the targets
    brought to the predictions' tiles, the sum per row; for a binary cross entropy the same after a
    sigmoid, with the vertex that takes logarithms of probabilities [inferred: frameworks write it
    as one fused expression of as many operations]. For the identity: the sum, and the gradient
    filled in (PopART popx/op/identitylossx.cpp).
    """
    if op.kind == "identity":
        values = x.shaped(x.elements).spread()
        m.reduce("add", values)
        m.fill(values)
        return
    if op.kind in CLASS_LOSSES:
        softmax_forward(m, x)
        _one_hot(m, x)
    elif op.kind == "binary_cross_entropy":
        m.unary("sigmoid", x)
    squared = op.kind == "mean_squared"
    transform = "mean_squared" if squared else "cross_entropy"
    # The loss of every element and the targets; for a cross entropy the probabilities too.
    m.emit(
        "loss and gradient",
        "popnn::Loss" + ("SumSquared" if squared else "CrossEntropy"),
        loss_transform_cycles(m.tile, transform, m.share(x), x.dtype),
        exchange=m.tile_bytes(x),
        temp=(2 if squared else 3) * m.tile_bytes(x),
    )
    if op.kind in CLASS_LOSSES and op.rows > 1:
        # The gradient of rows whose target says that there is no label becomes zero.
        rows = Placed(x.shape[:1], "float32")
        m.scalar("equal", rows, "rows with a label")
        m.cast(rows.of("bool"), x.dtype)
        m.by_row("mul", x, "mask gradient", in_place=True)
    m.reduce("add", x)
    m.reduce("add", Placed((op.rows,), x.dtype))
    if op.kind == "cross_entropy_accuracy":
        argmax(m, x)
        right = Placed((op.rows,), "float32")
        m.binary("equal", right, "rows that are right")
        m.cast(right.of("bool"), "float32")
        m.reduce("add", right)


def _one_hot(m: Emitter, x: Placed) -> None:
    """Write the targets as rows of zeros and a one."""
    (rows, classes), tiles = x.shape, m.chip.tiles
    grain = vector_width(x.dtype, m.chip)
    index_grains = ceil_div(ceil_div(rows, grain), tiles)
    groups = ceil_div(ceil_div(rows, grain), index_grains)
    row_parts = max(tiles // groups, 1)
    row_grains = max(ceil_div(ceil_div(classes, grain), row_parts), _MIN_GRAINS_PER_TILE)
    indices = min(rows, index_grains * grain)
    vertices = groups * ceil_div(classes, row_grains * grain)
    per_tile = ceil_div(vertices, tiles)
    m.fill(x.spread())
    m.emit(
        "one-hot targets",
        "popops::EncodeOneHot",
        per_tile * one_hot_cycles(indices, x.dtype),
        exchange=per_tile * indices * element_bytes("int32"),
    )
