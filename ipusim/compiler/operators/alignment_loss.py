"""Losses over alignments: loops over time, or over the diagonals of a lattice.

A CTC is popnn's (lib/popnn/CTCLoss.cpp, tag sdk/poplar/2.4.0). A transducer loss is the custom
operator of graphcore/examples@v3.1.0, speech/transformer_transducer (custom_ops/rnnt_loss, dynamic
form): two loops over steps + labels diagonals, each with a slice, one vertex per cell, and an
update; its vertices are C++ without an estimate, and are taken to cost what popnn's logarithmic
sums do.
"""

from ipusim.compiler.emitter import OFFSET_BYTES, SPREAD, Placed, TensorLayout
from ipusim.compiler.operators.plans.alignment_loss import (
    LOG_ADD_CYCLES,
    LOG_MULTIPLY_CYCLES,
    PARTIAL_BYTES,
    plan_ctc,
)
from ipusim.compiler.state import Lowering, float_dtype, lowers
from ipusim.compiler.tiles import ceil_div, element_bytes
from ipusim.compiler.vertices.training import Expression
from ipusim.workload.graph import AlignmentLoss

_PARTIALS = "float32"
_CTC_LOOPS = (
    ("follow", "popnn::CTCAlpha, CTCBeta"),
    ("gradient", "popnn::CTCGradGivenAlpha, CTCGradGivenBeta"),
)
_CTC_GRADIENT = Expression(operations=3, tensors=3, slow=("exp", "exp"))
"""exp(log probability) - exp(gradient + loss)."""
_TRANSDUCER_GRADIENT = Expression(operations=4, tensors=3, slow=("exp",))


@lowers(AlignmentLoss)
def alignment_loss(
    m: Lowering, op: AlignmentLoss, x: Placed, *_: Placed
) -> tuple[TensorLayout, ...]:
    """Lower a loss over alignments and its gradient, which lies with the probabilities."""
    m.result = x.layout._replace(free=False, mapping="")
    (_ctc if op.kind == "ctc" else _transducer)(m, op, float_dtype(x.dtype))
    return SPREAD, m.result


def _ctc(m: Lowering, op: AlignmentLoss, dtype: str) -> None:
    plan = plan_ctc(op, element_bytes(dtype), m.chip)
    blank = " blank apart" if plan.blank_apart else ""
    m.plan = f"CTC / b{plan.batch} t{plan.time} l{plan.label}{blank}"
    items = ceil_div(op.batch, plan.batch) * ceil_div(op.steps, plan.time)
    held = items * op.classes
    received = held * element_bytes(dtype)
    gradient_bytes = held * PARTIAL_BYTES
    elements = op.batch * op.steps * op.classes
    gradient = Placed((elements,), _PARTIALS)
    m.copy("spread probabilities", received, temp=received + gradient_bytes)
    m.fill(gradient.shaped(elements * plan.label))
    with m.loop(plan.steps, tiles=m.chip.tiles), m.holding(received + gradient_bytes):
        for (name, vertex), (cycles, moved) in zip(_CTC_LOOPS, plan.loops, strict=True):
            # Columns are handed on by copies of their own, before the vertices.
            m.copy(f"{name}, hand on columns", moved or OFFSET_BYTES)
            m.emit(name, vertex, cycles)
    if plan.label > 1:
        m.reduce("add", gradient.shaped(plan.label, elements), 0)
    m.generated("gradient", gradient, _CTC_GRADIENT)
    m.cast(gradient, dtype)


def _transducer(m: Lowering, op: AlignmentLoss, dtype: str) -> None:
    chip = m.chip
    columns = op.labels + 1
    diagonals = op.steps + columns - 1
    cells = op.batch * columns
    per_tile = ceil_div(cells, chip.tiles)
    pairs = Placed((2 * cells * op.steps,), _PARTIALS)

    # Diagonals are laid side by side before, and cells put in order after.
    moved = 2 * ceil_div(cells * diagonals, chip.tiles) * PARTIAL_BYTES
    m.cast(pairs.of(dtype), _PARTIALS)
    m.copy("shift to diagonals", moved, temp=2 * moved)
    per_cell = 2 * LOG_MULTIPLY_CYCLES + LOG_ADD_CYCLES
    with m.loop(2 * (diagonals - 1), tiles=chip.tiles):
        m.slice("slice probabilities", 2 * per_tile, _PARTIALS)
        m.emit(
            "follow diagonal",
            "AlphaVertex, BetaVertex",
            chip.workers * ceil_div(per_tile, chip.workers) * per_cell,
            exchange=2 * per_tile * PARTIAL_BYTES,
        )
        m.slice("write diagonal", per_tile, _PARTIALS)
        m.binary("add", Placed((1,), _PARTIALS, TensorLayout(tiles=1)), "count", in_place=True)
    m.copy("shift back", moved)
    m.generated("gradient", pairs, _TRANSDUCER_GRADIENT)
    m.cast(pairs, dtype)
