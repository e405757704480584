"""Normalisation layers and their gradients as the series of operations that poplin and popnn emit.

Sources: poplibs lib/poplin/Norms.cpp (statistics, whitening, scale and bias; normParamGradients,
normGradients, normStatisticsGradients), lib/popnn/BatchNorm.cpp, lib/popnn/GroupNorm.cpp and
lib/popnn/NormsInternal.cpp, tags 1.0.136 and sdk/poplar/2.4.0. Both versions emit the same
operations for inference; the statistics of later ones run in the same compute sets (reduceMany).
The forward pass keeps the mean and the deviation only: the activations are whitened again, once for
both gradients. Products of batch norm across replicas (its two all-reduced vectors) belong to the
step, not to the chip.
"""

from functools import partial
from itertools import zip_longest

from ipusim.compiler.emitter import SPREAD, Emitter, Placed, TensorLayout
from ipusim.compiler.reduction import together
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.tiles import ceil_div, copy_cycles
from ipusim.compiler.vertices.elementwise import found_group, loop_cycles
from ipusim.workload.graph import Norm


@lowers(Norm)
def norm(m: Lowering, op: Norm, *inputs: Placed) -> tuple[TensorLayout, ...]:
    """Lower a normalisation or its gradients; results of another size than the first are spread."""
    if op.backward:
        incoming, x = (tensor.of(m.dtype) for tensor in inputs[:2])
        norm_gradient(m, op, x, incoming)
        layout = x.layout._replace(free=False)
    else:
        norm_forward(m, op, inputs[0].of(m.dtype))
        layout = inputs[0].layout
    sizes = [result.elements for result in m.task.results]
    return tuple(layout if size == sizes[0] else SPREAD for size in sizes)


def norm_forward(m: Emitter, op: Norm, x: Placed) -> None:
    """Statistics, whitening, scale and offset."""
    if op.kind == "batch" and not op.training:
        inverse = Placed((op.channels,), x.dtype)
        m.scalar("variance_to_inv_std_dev", inverse, "batch norm, inverse deviation")
        _joined_parameters(m, op, x)
        return
    x = x.shaped(op.elements)
    # Frameworks join the parameters of a batch norm first, as in inference (graphcore/tensorflow
    # driver/ops/norm_ops.cc, BatchNormalise; graphcore/popart nn/batchnormx.cpp): two passes over
    # the activations instead of four. The deviation is there already.
    if op.kind == "batch":
        _statistics(m, op, x)
        _joined_parameters(m, op, x)
        return
    # The whitened activations are a tensor of their own until they are scaled; before them, those
    # that are regrouped for the statistics take as much.
    whitened = m.tile_bytes(x)
    with m.holding(whitened):
        _regroup_channels(m, op, x)
        _statistics(m, op, x)
        _with_statistic(m, op, x, "sub", "subtract mean", in_place=False)
        _with_statistic(m, op, x, "mul", "scale to unit variance")
        m.by_channel("mul", x, op.channels, "scale")
    m.by_channel("add", x, op.channels, "offset", in_place=True)


def _by_channel(op: Norm, x: Placed) -> Placed:
    """Return the activations as (channel groups, batch and field, channels of a group)."""
    grouping = x.layout.grouping if op.channels % x.layout.grouping == 0 else 1
    return x.shaped(op.channels // grouping, x.elements // op.channels, grouping)


def _by_statistic(op: Norm, x: Placed) -> Placed:
    """Return the activations so that each mean is one over their second dimension."""
    if op.kind == "batch":
        return _by_channel(op, x)
    return x.shaped(op.statistics, x.elements // op.statistics)


def _regroup_channels(m: Emitter, op: Norm, x: Placed) -> None:
    """Regroup activations so that channels are adjacent for statistics, where elements of rows are.

    Only the statistics read the regrouped tensor, whose groups are a vector of channels
    (lib/popnn/GroupNorm.cpp, groupNormStatistics, in all versions).
    """
    group = found_group(x.layout.grouping, op.elements // op.channels)
    width = m.tile.width(x.dtype)
    if x.layout.rows and op.channels % width == 0:
        m.regroup("regroup channels", x, group, width)


def _with_statistic(
    m: Emitter, op: Norm, x: Placed, function: str, name: str, *, in_place: bool = True
) -> None:
    """Combine every element with the statistic (`_statistics`) of its channel, or of its row."""
    if op.kind == "batch":
        m.by_channel(function, x, op.channels, name, in_place=in_place)
    else:
        m.by_row(function, _by_statistic(op, x), name, in_place=in_place)


def _statistics(m: Emitter, op: Norm, x: Placed) -> None:
    """Sum values and squares in the same compute sets, step by step; then the deviation.

    The stable form subtracts the mean before it sums squares: one more pass, and sums one after the
    other (normStatisticsImpl, stableAlgo).
    """
    values = _by_statistic(op, x).spread()
    if op.stable:
        m.reduce("add", values, 1)
        with m.holding(m.tile_bytes(x)):
            _with_statistic(m, op, x, "sub", "remove mean", in_place=False)
            m.reduce("square_add", values, 1, out="float32")
    else:
        mean = m.reduction("add", values, 1)
        power = m.reduction("square_add", values, 1, out="float32")
        for pair in zip_longest(mean, power):
            m.run(together([stage for stage in pair if stage], m.chip))
    # poplin InverseStdDeviation: workers, 4 cycles per region and 5 per pair of floats.
    share = m.share(Placed((op.statistics,), x.dtype))
    pairs = ceil_div(m.tile.per_worker(share), 2)
    m.emit("inverse deviation", "poplin::InverseStdDeviation", m.chip.workers * (10 + 5 * pairs))


def _joined_parameters(m: Emitter, op: Norm, x: Placed) -> None:
    """Join deviation, scale and offset, then apply both in two passes over the activations.

    popnn::bn::batchNormalise with a combined multiplicand and addend. The addend ``bias -
    multiplicand * mean`` is one generated vertex (popops::map), which loads three operands and
    stores one per vector: the loop of a two-operand vertex plus one load and one operation.
    """
    x = x.shaped(op.elements)
    vector = Placed((op.channels,), x.dtype)
    m.binary("mul", vector, "batch norm, multiplicand")
    share = m.share(vector)
    vectors = ceil_div(m.tile.per_worker(share), m.tile.width(x.dtype))
    subtract = loop_cycles(m.tile, "BinaryOp1D", "sub", share, x.dtype)
    m.emit(
        "batch norm, addend",
        "popops::map (generated)",
        subtract + 2 * m.chip.workers * vectors,
    )
    m.by_channel("mul", x, op.channels, "batch norm, scale")
    m.by_channel("add", x, op.channels, "batch norm, offset", in_place=True)


def norm_gradient(m: Emitter, op: Norm, x: Placed, incoming: Placed) -> None:
    """Gradients of data, scale and offset of a normalisation of x.

    An incoming gradient that lies elsewhere is sent three times: as it is, for the gradients of
    scale and offset; after it was scaled where it lies, to be multiplied by the whitened data, and
    again to be copied. Unscaled and scaled it is regrouped once each (lib/poplin/Norms.cpp,
    normParamGradients and normStatisticsGradients, in all versions). Beside inputs and result live
    the whitened data and one product: at the peak there are the whitened data, the scaled gradient
    and a product of both, but not yet the result, whose place the scaled gradient takes in the
    reckoning.
    """
    x, incoming = x.shaped(op.elements), incoming.shaped(op.elements)
    held = m.tile_bytes(x)
    statistics = Placed((op.statistics,), x.dtype)
    elsewhere = not incoming.layout.lies_with(x.layout)
    sizes = op.elements // op.channels, op.channels

    by_statistic = partial(_with_statistic, m, op, x)

    def times(name: str) -> int:
        """Multiply by a gradient of the incoming layout; return cycles of its on-tile copies."""
        copies = m.bring(f"regroup {name}", x, incoming.layout, *sizes) if elsewhere else 0
        received = held if elsewhere else 0
        m.binary("mul", x, f"whitened times {name}", received=received, copy=copies)
        return copies

    def sums(name: str, values: Placed) -> None:
        """Reduce two such tensors at once, to two values per channel or mean."""
        first, *rest = values.shape
        m.reduce("add", values.spread().shaped(2 * first, *rest), 1, name=name)

    with m.holding(2 * held):
        if op.kind == "batch":
            m.scalar("variance_to_inv_std_dev", statistics, "inverse deviation")
        by_statistic("sub", "whiten, subtract mean", in_place=False)
        by_statistic("mul", "whiten, scale to unit variance")
        # Gradients of scale and offset.
        times("gradient")
        sums("scale and offset gradient", _by_channel(op, x))
        # Gradient of the data.
        m.by_channel("mul", incoming, op.channels, "gradient times scale")
        copies = times("scaled gradient")
        sums("statistics gradient", _by_statistic(op, x))
        # The scaled gradient is copied, then worked on in place.
        if elsewhere:
            m.copy("copy gradient", held, cycles=copies)
        else:
            m.copy("copy gradient", cycles=copy_cycles(held, m.chip))
        by_statistic("mul", "whitened times variance gradient", in_place=False)
        m.scalar("mul", statistics, "scale mean gradient", in_place=True)
        by_statistic("add", "add mean gradient")
        m.scaled_add(x)
        by_statistic("mul", "scale by inverse deviation")
