"""Losses with their gradient as the series of operations that popnn emits.

Source: poplibs lib/popnn/Loss.cpp (calcLoss) and lib/popops/Encoding.cpp (encodeOneHot), tags
1.0.136 and sdk/poplar/2.4.0; the mean over the rows is one more reduction, which frameworks add.
PopART writes a cross entropy with operations of its own.
"""

from collections.abc import Callable

from ipusim.compiler.emitter import COUNTER, SPREAD, Emitter, Placed, TensorLayout
from ipusim.compiler.operators.reduce import argmax
from ipusim.compiler.operators.softmax import softmax_forward
from ipusim.compiler.state import Lowering, float_dtype, lowers
from ipusim.compiler.tiles import ceil_div, copy_cycles, element_bytes
from ipusim.compiler.vertices.training import Expression, loss_transform_cycles, one_hot_cycles
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

    A cross entropy is as its framework writes it. For a mean squared error: loss and gradient per
    element with the targets brought to the predictions' tiles, the sum per row; for a binary cross
    entropy the same after a sigmoid, with the vertex that takes logarithms of probabilities
    [inferred: frameworks write it as one fused expression of as many operations]. For the identity:
    the sum, and the gradient filled in (PopART popx/op/identitylossx.cpp). For the accuracy the
    largest prediction of each row, compared with the target, and the sum of what is right.
    """
    if op.kind == "identity":
        values = x.shaped(x.elements).spread()
        m.reduce("add", values)
        m.fill(values)
    elif op.kind in CLASS_LOSSES:
        _CROSS_ENTROPY[op.cross_entropy](m, x)
    else:
        if op.kind == "binary_cross_entropy":
            m.unary("sigmoid", x)
        _transform(m, x, squared=op.kind == "mean_squared")
        _sum_rows(m, x)
    if op.kind == "cross_entropy_accuracy":
        argmax(m, x)
        right = Placed((op.rows,), "float32")
        m.binary("equal", right, "rows that are right")
        m.cast(right.of("bool"), "float32")
        m.reduce("add", right)


def _transform(m: Emitter, x: Placed, *, squared: bool) -> None:
    """Compute loss and gradient by popnn's vertex, beside targets or probabilities too."""
    kind, vertex, tensors = "cross_entropy", "popnn::LossCrossEntropy", 3
    if squared:
        kind, vertex, tensors = "mean_squared", "popnn::LossSumSquared", 2
    cycles, size = loss_transform_cycles(m.tile, kind, m.share(x), x.dtype), m.tile_bytes(x)
    m.emit("loss and gradient", vertex, cycles, exchange=size, temp=tensors * size)


def _sum_rows(m: Emitter, x: Placed) -> None:
    """Sum the loss of each row, then of all."""
    m.reduce("add", x)
    m.reduce("add", Placed(x.shape[:1], x.dtype))


def _fused(m: Emitter, x: Placed) -> None:
    """Softmax, the targets one-hot, loss and gradient at once (calcLoss)."""
    softmax_forward(m, x)
    _one_hot(m, x)
    _transform(m, x, squared=False)
    if x.shape[0] > 1:
        _mask(m, x, "mask gradient")
    _sum_rows(m, x)


def _of_probabilities(m: Emitter, x: Placed) -> None:
    """Negative log likelihood of a softmax, and the gradient by the same one-hot targets.

    graphcore/popart willow/src/popx/op/softmaxx.cpp, NlllWithSoftmaxGradDirectOpx, tag
    sdk/poplar/2.4.0; where labels to ignore are given, the gradient is masked and scaled.
    """
    softmax_forward(m, x)
    with m.holding(2 * m.tile_bytes(x)):
        _bring_one_hot(m, x)
        m.binary("mul", x, "probability of target")
        m.generated("gradient", x, Expression(operations=2))
        _mask(m, x, "mask gradient")
        _mean(m, x, "mean gradient")
    m.reduce("add", x)
    chosen = Placed(x.shape[:1], x.dtype)
    m.generated("logarithm", chosen, Expression(operations=2, tensors=1, slow=("log",)))
    _mask_and_mean(m, chosen)


def _of_logarithms(m: Emitter, x: Placed) -> None:
    """Log softmax and negative log likelihood, then the gradient of each.

    Both make the targets one-hot; the gradient of the former takes the softmax of its operand, so
    neither pass works in its place (graphcore/popart willow/src/popx/op/nllx.cpp, NllOpx and
    NllGradOpx, logsoftmaxx.cpp, LogSoftmaxOpx and LogSoftmaxGradOpx, tag sdk/poplar/2.4.0).
    """
    held, rows = m.tile_bytes(x), Placed(x.shape[:1], x.dtype)
    copied = copy_cycles(held, m.chip)
    with m.holding(2 * held):
        m.copy("copy predictions", cycles=copied)
        softmax_forward(m, x, log=True)
        _bring_one_hot(m, x)
        m.binary("mul", x, "loss of target", in_place=True)
        m.reduce("add", x)
        _mask_and_mean(m, rows)
        _bring_one_hot(m, x)
        m.unary("neg", x, "negative targets", in_place=True)
        _mask(m, x, "mask gradient")
        _mean(m, x, "mean gradient")
        m.copy("copy predictions", cycles=copied)
        softmax_forward(m, x)
        m.reduce("add", x)
        # popops::map fuses no operands of different shapes.
        m.by_row("mul", x, "softmax times sum of gradient")
        m.binary("sub", x, "gradient of log softmax")


_CROSS_ENTROPY: dict[str, Callable[[Emitter, Placed], None]] = {
    "fused": _fused,
    "probabilities": _of_probabilities,
    "logarithms": _of_logarithms,
}
"""How each of `CROSS_ENTROPIES` is computed."""


def _mask(m: Emitter, x: Placed, name: str) -> None:
    """Make rows zero, of elements or of one each, whose target says that there is no label."""
    rows = Placed(x.shape[:1], "float32")
    m.scalar("equal", rows, "rows with a label")
    m.cast(rows.of("bool"), x.dtype)
    if len(x.shape) > 1:
        m.by_row("mul", x, name, in_place=True)
    else:
        m.binary("mul", x, name, in_place=True)


def _mean(m: Emitter, x: Placed, name: str) -> None:
    """Divide by labelled rows (nllx.cpp, applyScalingInPlaceForMeanReductionWithIgnoreIndex)."""
    m.reduce("add", Placed(x.shape[:1], x.dtype))
    m.binary("max", COUNTER, "at least one row", in_place=True)
    m.binary("div", COUNTER, "share of a row")
    m.scalar("mul", x, name, in_place=True)


def _mask_and_mean(m: Emitter, rows: Placed) -> None:
    """Mask the losses of rows, once more for their mean, and sum them (handleLossOut...)."""
    _mask(m, rows, "mask loss")
    _mask(m, rows, "mask loss for mean")
    _mean(m, rows, "mean loss")
    m.reduce("add", rows)


def _one_hot(m: Emitter, x: Placed) -> int:
    """Write the targets as rows of zeros and a one; return how many of a row lie on a tile."""
    (rows, classes), tiles = x.shape, m.chip.tiles
    grain = m.tile.width(x.dtype)
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
    return row_grains * grain


def _bring_one_hot(m: Emitter, x: Placed) -> None:
    """Write the targets, then regroup and copy them to where the predictions x lie."""
    written = TensorLayout(grouping=_one_hot(m, x))
    copied = m.bring("regroup targets", x, written, *x.shape)
    m.copy("copy targets", m.tile_bytes(x), cycles=copied)
