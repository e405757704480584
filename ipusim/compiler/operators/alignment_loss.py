"""Losses over alignments: loops over time, or over the diagonals of a lattice.

A CTC is popnn's (poplibs lib/popnn/CTCLoss.cpp, CTCLossPlan.cpp and PerformanceEstimation.hpp, tag
sdk/poplar/2.4.0). Time and labels are both split; each time step of a part is one superstep, in
which one worker per sequence follows the alignments through its part of the lattice. Going through
time from both ends at once, the first half of the steps computes probabilities of beginnings and of
ends, the second the gradient.

A transducer loss is the custom operator of graphcore/examples@v3.1.0, speech/transformer_transducer
(custom_ops/rnnt_loss, dynamic form): two loops over steps + labels diagonals, each with a slice,
one vertex per cell, and an update; its vertices are C++ without an estimate, and are taken to cost
what popnn's logarithmic sums do.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from ipusim.compiler.emitter import OFFSET_BYTES, SPREAD, Placed, TensorLayout
from ipusim.compiler.state import Lowering, float_dtype, lowers
from ipusim.compiler.tiles import ceil_div, distinct_splits, element_bytes
from ipusim.compiler.vertices.training import Expression
from ipusim.machine import Chip
from ipusim.workload.graph import AlignmentLoss

LOG_ADD_CYCLES, LOG_MULTIPLY_CYCLES = 16, 1
"""Of one worker, for a sum and a product of values kept as logarithms."""
_LOG_CYCLES = LOG_ADD_CYCLES + LOG_MULTIPLY_CYCLES

PARTIAL_BYTES = 4
LABEL_BYTES = 2
MEMORY_PROPORTION = 0.6
"""Share of tile memory that the loss may use."""

_EXCHANGE_CYCLES, _SYNC_CYCLES = 100, 90
"""Fixed costs of a step that the planner reckons with."""


class CtcPlan(NamedTuple):
    """A split of a CTC loss into parts of batch, time and labels.

    The last blank may lie on tiles of its own (`blank_apart`). Each of the two `loops` runs `steps`
    times and is given as (compute cycles, bytes received) of a step.
    """

    batch: int
    time: int
    label: int
    blank_apart: bool
    steps: int
    loops: tuple[tuple[int, int], tuple[int, int]]

    @property
    def tiles(self) -> int:
        """Tiles that take part."""
        return self.batch * self.time * (self.label + self.blank_apart)


def step_cycles(labels: int, *, extra_blank: bool) -> tuple[int, int]:
    """Return a worker's cycles for a step of labels and blanks, without and with the gradient."""
    logarithms = _LOG_CYCLES * (2 * labels + extra_blank)
    follow = (2 * 4 + 2) * labels + logarithms
    return follow, follow + 2 * 3 * labels + logarithms


@lru_cache(maxsize=256)
def plan_ctc(op: AlignmentLoss, dtype_bytes: int, chip: Chip) -> CtcPlan:
    """Return the cheapest split that fits, or of all: least cycles, then memory, then tiles."""

    def price(plan: CtcPlan) -> tuple[bool, int, int, int]:
        used = _bytes(plan, op, dtype_bytes)
        too_large = used > MEMORY_PROPORTION * chip.bytes_per_tile
        cycles, moved = map(sum, zip(*plan.loops, strict=True))
        fixed = 2 * (_EXCHANGE_CYCLES + _SYNC_CYCLES)
        per_step = cycles + moved // chip.exchange_bytes_per_cycle + fixed
        return too_large, plan.steps * per_step, used, plan.tiles

    return min(_plans(op, chip), key=price)


def _plans(op: AlignmentLoss, chip: Chip) -> Iterator[CtcPlan]:
    splits = (distinct_splits(size, size) for size in (op.steps, op.labels))
    for time, label, blank_apart in product(*splits, (False, True)):
        # With an odd number of parts one direction waits for the other in the middle.
        steps = ceil_div(op.steps, time) * (time + time % 2) // 2
        part, inner = ceil_div(op.labels, label), time > 2
        each = step_cycles(part, extra_blank=op.labels % label == 0 and not blank_apart)
        moved = part * inner + 2 * (label > 1) + 2 * (label > 1 and inner), 2 + 4 * part
        most = min(op.batch, chip.tiles // (time * (label + blank_apart)))
        for batch in distinct_splits(most, most):
            rounds = ceil_div(ceil_div(op.batch, batch), chip.workers) * chip.workers
            loops = [
                (rounds * cycles, partials * PARTIAL_BYTES)
                for cycles, partials in zip(each, moved, strict=True)
            ]
            yield CtcPlan(batch, time, label, blank_apart, steps, tuple(loops))


def _bytes(plan: CtcPlan, op: AlignmentLoss, dtype_bytes: int) -> int:
    """Return the bytes of the fullest tile: data, labels, gradient, sums that steps hand on."""
    items, times = ceil_div(op.batch, plan.batch), ceil_div(op.steps, plan.time)
    part = ceil_div(op.labels, plan.label)
    extended = 2 * part + (op.labels % plan.label == 0)
    data = items * times * op.classes
    return (
        data * (dtype_bytes + PARTIAL_BYTES)
        + items * part * LABEL_BYTES
        + 4 * items * extended * PARTIAL_BYTES
    )


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
    m.result = x.layout._replace(free=False, mapping=None)
    (_ctc if op.kind == "ctc" else _transducer)(m, op, float_dtype(x.dtype))
    return SPREAD, m.result


def _ctc(m: Lowering, op: AlignmentLoss, dtype: str) -> None:
    plan = plan_ctc(op, element_bytes(dtype), m.chip)
    blank = " blank apart" if plan.blank_apart else ""
    m.known["plan"] = f"CTC / b{plan.batch} t{plan.time} l{plan.label}{blank}"
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
            m.tile.workers * m.tile.per_worker(per_tile) * per_cell,
            exchange=2 * per_tile * PARTIAL_BYTES,
        )
        m.slice("write diagonal", per_tile, _PARTIALS)
        m.count("count")
    m.copy("shift back", moved)
    m.generated("gradient", pairs, _TRANSDUCER_GRADIENT)
    m.cast(pairs, dtype)
