"""Pooling: the supersteps of popnn's forward and gradient passes.

Sources: poplibs lib/popnn/Pooling.cpp (what is done) and lib/popnn/PoolVertices.cpp (which vertex
runs where), at tags 1.0.136 ("2020-01") and sdk/poplar/2.4.0 ("2021-11").
"""

from math import gcd, prod

from ipusim.compiler.emitter import Emitter, Placed, TensorLayout
from ipusim.compiler.operators.plans.pool import PoolPass, plan_pool
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.tiles import ceil_div, copy_cycles, element_bytes, rearranged_copy_cycles
from ipusim.compiler.vertices.pool import pool_tile_cycles
from ipusim.workload.graph import Pool


@lowers(Pool)
def pool(m: Lowering, op: Pool, *inputs: Placed) -> TensorLayout:
    """Lower a pass; a gradient is copied into the layout of the pool's result before it is used."""
    layout = inputs[-1 if op.backward else 0].layout
    acts = inputs[1].layout.grouping if op.backward and op.kind == "max" else None
    return TensorLayout(grouping=pool_pass(m, op, m.dtype, layout.grouping, acts))


def pool_pass(m: Emitter, op: Pool, dtype: str, grouping: int, acts: int | None = None) -> int:
    """Run one pass on a tensor in groups of channels; return those of the result.

    The gradient of a maximum also reads what was pooled, whose groups are those of `acts`.

    A window that covers the field is a reduction (Pooling.cpp, substPoolingWithReduction), and the
    gradient of its average a broadcast (substPoolingGradientWithBroadcast). Other averages scale
    the incoming gradient by the elements of each window first (scaleGradient).
    """
    whole_field = op.kernel == op.field and not op.padded
    average = op.kind == "average"
    if whole_field and not op.backward:
        block = grouping if op.channels % grouping == 0 else 1
        shape = (op.channels // block, op.batch, prod(op.field), block)
        m.reduce("add" if average else "max", Placed(shape, dtype), 2)
        return grouping
    if average and op.backward:
        pooled = Placed((op.batch * op.channels * prod(op.out_field),), dtype)
        m.binary("mul", pooled, "scale gradient by window", exchanged=True)
        if whole_field:
            # One gradient per channel is copied to the whole field it was averaged over.
            field = Placed((op.batch * op.channels * prod(op.field),), dtype)
            values = min(op.batch * op.channels, m.share(field)) * element_bytes(dtype)
            copied = copy_cycles(m.tile_bytes(field), m.chip)
            m.copy("broadcast gradient", values, cycles=copied)
            return grouping
    result = _pool(m, PoolPass(op, dtype, grouping, m.library), acts)
    if average and op.padded and not op.include_padding and not op.backward:
        # Windows over padding have fewer elements, so each output is scaled on its own
        # (SelectiveScaling, which the estimators charge 10 cycles per worker).
        m.emit("scale by window", "popnn::SelectiveScaling", 10 * m.chip.workers)
    return result


def _pool(m: Emitter, asked: PoolPass, acts: int | None) -> int:
    """Run the planned vertex; return the channels that sit together in its result.

    Windows that come in other groups of channels are rearranged, each input on its own.
    """
    op, chip = asked.op, m.chip
    split, plan = plan_pool(asked, chip)
    part, vertex = split.part(plan), split.vertex(chip, m.tile.version)
    cycles = pool_tile_cycles(vertex, split.out_field, plan.field_split, part)
    size = element_bytes(asked.dtype)
    planes = part.batch * part.channel_groups * part.channel_grouping
    in_bytes = vertex.geometry.input_extent(part.field) * planes * size
    out_bytes = prod(part.field) * planes * size
    windows = [(in_bytes, asked.grouping)]
    if asked.is_grad:
        # The gradient lies as the result does; of what was pooled the outputs' places are read.
        windows += [*windows, (out_bytes, acts or asked.grouping)]
    received = sum(each for each, _ in windows)
    copied = sum(
        rearranged_copy_cycles(each, gcd(grouping, plan.channel_grouping) * size, chip)
        for each, grouping in windows
        if grouping != plan.channel_grouping
    )
    if asked.is_grad:
        # The incoming gradient is first copied into the layout of the pooled output.
        pooled = ceil_div(op.batch * op.channels * prod(op.out_field), chip.tiles)
        m.copy("rearrange gradient", pooled * size)
    kind = ("MaxPoolingGrad" if asked.is_grad else "MaxPooling") if asked.is_max else "SumPooling"
    name = f"{op.kind} pool" + (" gradient" if op.backward else "")
    m.emit(name, f"popnn::{kind}", cycles, received=received, copy=copied)
    return plan.channel_grouping
