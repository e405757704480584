"""Losses over alignments: loops over time, or over the diagonals of a lattice.

A CTC is popnn's (lib/popnn/CTCLoss.cpp, tag sdk/poplar/2.4.0). A transducer loss is the custom
operator of graphcore/examples@v3.1.0, speech/transformer_transducer (custom_ops/rnnt_loss, dynamic
form): two loops over steps + labels diagonals, each with a slice, one vertex per cell, and an
update; its vertices are C++ without an estimate, and are taken to cost what popnn's logarithmic
sums do.
"""

from __future__ import annotations

from dataclasses import replace

from ipusim.compiler.operators.alignment_loss_plan import (
    LOG_ADD_CYCLES,
    LOG_MULTIPLY_CYCLES,
    PARTIAL_BYTES,
    plan_ctc,
)
from ipusim.compiler.operators.elementwise import elementwise_step
from ipusim.compiler.operators.elementwise_functions import Expression
from ipusim.compiler.operators.elementwise_gradient import generated_steps
from ipusim.compiler.operators.elementwise_lowering import float_dtype
from ipusim.compiler.operators.layout import cast_steps, fill_steps
from ipusim.compiler.operators.reduce import reduce_steps
from ipusim.compiler.program import LoweredOp
from ipusim.compiler.state import LoweringState, TensorLayout
from ipusim.compiler.superstep import Superstep, ceil_div, element_bytes
from ipusim.compiler.vertices.elementwise import dynamic_slice_cycles
from ipusim.workload.graph import AlignmentLoss, Op

_PARTIALS = "float32"
_CTC_GRADIENT = Expression(operations=3, tensors=3, slow=("exp", "exp"))
"""exp(log probability) - exp(gradient + loss)."""

_OFFSET_BYTES = 4


def lower_alignment_loss(state: LoweringState, op: Op) -> LoweredOp:
    """Return the supersteps of a loss over alignments and of its gradient."""
    params: AlignmentLoss = op.params
    dtype = float_dtype(state.dtype(op.inputs[0]))
    build = _ctc if params.kind == "ctc" else _transducer
    before, loops, after, plan = build(state, params, dtype)
    layout = replace(state.layout(op.inputs[0]), from_host=False, mapping="")
    lowered = state.finish(op, [*before, *after], layout=layout)
    steps = list(lowered.steps[: len(before)])
    for step, repeats in loops:
        steps.append(replace(state.step(op.name, step, None), repeats=repeats))
    steps += lowered.steps[len(before) :]
    state.layouts[op.outputs[0]] = TensorLayout()
    return replace(lowered, steps=tuple(steps), plan=plan)


_Loops = list[tuple[Superstep, int]]


def _ctc(
    state: LoweringState, params: AlignmentLoss, dtype: str
) -> tuple[list[Superstep], _Loops, list[Superstep], str]:
    chip, era = state.chip, state.era
    plan = plan_ctc(
        params.batch,
        params.steps,
        params.labels,
        params.classes,
        element_bytes(dtype),
        chip,
    )
    items = ceil_div(params.batch, plan.batch) * ceil_div(params.steps, plan.time)
    held = items * params.classes
    received = held * element_bytes(dtype)
    gradient_bytes = held * PARTIAL_BYTES
    elements = params.batch * params.steps * params.classes
    before = [
        Superstep(
            name="spread probabilities",
            vertex="copy",
            compute_cycles=0,
            exchange_bytes=received,
            temp_bytes=received + gradient_bytes,
        ),
        *fill_steps(elements * plan.label, _PARTIALS, chip, era=era),
    ]
    held_bytes = received + gradient_bytes
    loops = []
    for name, vertex, cycles, moved in (
        ("follow", "popnn::CTCAlpha, CTCBeta", plan.follow_cycles, plan.exchange_bytes),
        (
            "gradient",
            "popnn::CTCGradGivenAlpha, CTCGradGivenBeta",
            plan.gradient_cycles,
            plan.gradient_exchange_bytes,
        ),
    ):
        # Columns are handed on by copies of their own, before the vertices.
        handed = Superstep(
            name=f"{name}, hand on columns",
            vertex="copy",
            compute_cycles=0,
            exchange_bytes=moved or _OFFSET_BYTES,
            temp_bytes=held_bytes,
        )
        step = Superstep(name=name, vertex=vertex, compute_cycles=cycles, temp_bytes=held_bytes)
        loops += [(handed, plan.steps), (step, plan.steps)]
    after: list[Superstep] = []
    if plan.label > 1:
        after += reduce_steps((plan.label, elements), (0,), _PARTIALS, chip, era=era)
    after += generated_steps("gradient", elements, _CTC_GRADIENT, _PARTIALS, chip, era=era)
    after += cast_steps(elements, _PARTIALS, dtype, chip, era=era)
    described = f"CTC / b{plan.batch} t{plan.time} l{plan.label}" + (
        " blank apart" if plan.blank_apart else ""
    )
    return before, loops, after, described


def _transducer(
    state: LoweringState, params: AlignmentLoss, dtype: str
) -> tuple[list[Superstep], _Loops, list[Superstep], str]:
    chip, era = state.chip, state.era
    columns = params.labels + 1
    diagonals = params.steps + columns - 1
    cells = params.batch * columns
    per_tile = ceil_div(cells, chip.tiles)
    generation = era.estimator

    def sliced(name: str, values: int) -> Superstep:
        return Superstep(
            name=name,
            vertex="popops::DynamicSlice1D",
            compute_cycles=dynamic_slice_cycles(
                values * per_tile, 1, _PARTIALS, chip, generation=generation
            ),
            exchange_bytes=_OFFSET_BYTES,
        )

    per_cell = 2 * LOG_MULTIPLY_CYCLES + LOG_ADD_CYCLES
    follow = Superstep(
        name="follow diagonal",
        vertex="AlphaVertex, BetaVertex",
        compute_cycles=chip.workers * ceil_div(per_tile, chip.workers) * per_cell,
        exchange_bytes=2 * per_tile * PARTIAL_BYTES,
    )
    (count,) = elementwise_step(
        "add", 1, _PARTIALS, chip, era=era, n_inputs=2, in_place=True, tiles_used=1, name="count"
    )
    loop = [sliced("slice probabilities", 2), follow, sliced("write diagonal", 1), count]
    # Diagonals are laid side by side before, and cells put in order after.
    moved = 2 * ceil_div(cells * diagonals, chip.tiles) * PARTIAL_BYTES
    before = [
        *cast_steps(2 * cells * params.steps, dtype, _PARTIALS, chip, era=era),
        Superstep(
            name="shift to diagonals",
            vertex="copy",
            compute_cycles=0,
            exchange_bytes=moved,
            temp_bytes=2 * moved,
        ),
    ]
    gradient = Expression(operations=4, tensors=3, slow=("exp",))
    after = [
        Superstep(name="shift back", vertex="copy", compute_cycles=0, exchange_bytes=moved),
        *generated_steps("gradient", 2 * cells * params.steps, gradient, _PARTIALS, chip, era=era),
        *cast_steps(2 * cells * params.steps, _PARTIALS, dtype, chip, era=era),
    ]
    return before, [(step, 2 * (diagonals - 1)) for step in loop], after, ""
