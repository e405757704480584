"""From an operator graph to a program of supersteps.

Convolutions and products are planned (`planner`); everything else has its own codelets. Between
operations three costs arise that a plan alone does not see: the inputs of a convolution lie where
the operation before it left them, so all of them arrive by exchange and are then copied on the
tile into the order the vertex reads ([D] LESSONS of three prototypes: on-tile copies of operands
move the mean error of published runs by 7 points); where the channel grouping of producer and
consumer differ they are regrouped; and operands of an addition come from different plans.
Tensors that arrive from the host, and parameters, are laid out for their consumer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial

from ipusim.compiler.operators import elementwise
from ipusim.compiler.operators.alignment_loss import lower_alignment_loss
from ipusim.compiler.operators.argmax import argmax_steps
from ipusim.compiler.operators.distance import distance_steps
from ipusim.compiler.operators.elementwise_lowering import float_dtype, lower_elementwise
from ipusim.compiler.operators.gather import gather_steps, update_add_steps
from ipusim.compiler.operators.gather_plan import plan_embedding
from ipusim.compiler.operators.layout import cast_steps, rearrange_steps
from ipusim.compiler.operators.nms import lower_suppression
from ipusim.compiler.operators.norm_lowering import lower_loss, lower_norm, lower_softmax
from ipusim.compiler.operators.pool import PoolParams, pool_steps, pooled_grouping
from ipusim.compiler.operators.products import lower_conv, lower_matmul
from ipusim.compiler.operators.recurrent import lower_recurrent
from ipusim.compiler.operators.reduce import reduce_steps
from ipusim.compiler.operators.sort import sort_steps
from ipusim.compiler.program import LoweredOp, Program
from ipusim.compiler.stacks import Stack
from ipusim.compiler.state import DEFAULT_GROUPING, LoweringState, TensorLayout
from ipusim.compiler.superstep import GENERATIONS, element_bytes
from ipusim.machine import Chip
from ipusim.workload.graph import (
    AlignmentLoss,
    Cast,
    Conv,
    Distance,
    Elementwise,
    Gather,
    Graph,
    Layout,
    Loss,
    MatMul,
    NonMaxSuppression,
    Norm,
    Op,
    Pool,
    Recurrent,
    Reduce,
    Softmax,
    Sort,
    arriving_dtype,
)

_REDUCTIONS = {
    "max": "max",
    "min": "min",
    "prod": "mul",
    "sumsquare": "square_add",
    "l2": "square_add",
}
"""Vertex function of each reduction; all others add."""

CYCLE_PLANS_ERA = 2
"""Planner era from which embeddings are planned by cycles instead of memory."""


def lower(
    graph: Graph,
    chip: Chip,
    stack: Stack,
    *,
    partials: str | None = None,
    host_dtype: str | None,
    available_memory_proportion: float | None = None,
    layouts: Mapping[str, TensorLayout] | None = None,
) -> Program:
    """Lower a graph for one micro-batch to a program on one chip.

    Parameters
    ----------
    graph : Graph
        Shapes fixed, batch norm folded or not as the stack does it.
    chip : Chip
        Tiles that compute (I/O tiles already taken away).
    stack : Stack
        Planner rules, codelets and overheads.
    partials : str, optional
        "half" or "float" instead of the stack's default.
    host_dtype : str or None
        Type in which data arrive from the host; converted on the chip where it differs from the
        graph's. Eight-bit images are also normalised there (one scale, one offset per channel).
    available_memory_proportion : float, optional
        Share of tile memory for the temporaries of one operation instead of the stack's default.
    layouts : mapping of str to TensorLayout, optional
        Where tensors lie at the start that are not laid out for their consumer.

    Returns
    -------
    Program

    Raises
    ------
    ConfigError, UnknownNameError
        If an operation cannot be planned.
    """
    rules = stack.planner_rules(partials, available_memory_proportion)
    state = LoweringState(graph, chip, stack, rules, graph.producers(), dict(layouts or {}))
    ops = [op for name in graph.inputs if (op := _lower_input(state, name, host_dtype))]
    for op in graph.ops:
        ops.append(_LOWER[type(op.params)](state, op))
    return Program(tuple(ops))


def _lower_input(state: LoweringState, name: str, host_dtype: str | None) -> LoweredOp | None:
    tensor = state.graph.tensors[name]
    sent = arriving_dtype(tensor, host_dtype)
    if sent == tensor.dtype:
        return None
    share = partial(cast_steps, tensor.elements, chip=state.chip, era=state.era)
    steps = share(from_dtype=sent, to_dtype=tensor.dtype)
    if sent == "uint8":
        channels = tensor.shape[1]
        steps += [
            elementwise.channel_step(
                function,
                tensor.elements,
                channels,
                tensor.dtype,
                state.chip,
                era=state.era,
                name=f"normalise, {function}",
                in_place=True,
                channel_grouping=channels,
            )
            for function in ("mul", "add")
        ]
    return LoweredOp(
        name=name,
        kind="input",
        function=f"from {sent}",
        steps=tuple(state.step(name, step, None) for step in steps),
        macs=0,
        plan="",
        transform="",
        tiles=state.chip.tiles,
        grouping=DEFAULT_GROUPING,
        temp_bytes=0,
    )


def _lower_pool(state: LoweringState, op: Op) -> LoweredOp:
    params: Pool = op.params
    # A gradient is copied into the layout of the pool's result before it is used.
    layout = state.layout(op.inputs[-1] if params.backward else op.inputs[0])
    pool = PoolParams(
        kind=params.kind,
        batch=params.batch,
        channels=params.channels,
        field=params.field,
        kernel=params.kernel,
        stride=params.stride,
        padding_lower=params.padding_lower,
        padding_upper=params.padding_upper,
        include_padding=params.include_padding,
    )
    dtype = float_dtype(state.dtype(op.outputs[0]))
    common = {
        "era": state.era,
        "backward": params.backward,
        "channel_grouping": layout.grouping,
    }
    steps = pool_steps(pool, dtype, state.chip, **common)
    grouping = pooled_grouping(pool, dtype, state.chip, **common)
    return state.finish(op, steps, layout=TensorLayout(grouping=grouping))


def _lower_reduce(state: LoweringState, op: Op) -> LoweredOp:
    params: Reduce = op.params
    if params.function == "argmax":
        data = op.inputs[0]
        steps = argmax_steps(
            params.outer,
            params.reduced,
            state.dtype(data),
            state.chip,
            scattered=state.rows_scattered(data),
        )
        return state.finish(op, steps, layout=TensorLayout())
    dtype = float_dtype(state.dtype(op.inputs[0]))
    function = _REDUCTIONS.get(params.function, "add")
    apart = bool(params.axes)
    steps = reduce_steps(
        params.shape if apart else (params.outer, params.reduced, params.inner),
        params.axes if apart else (1,),
        dtype,
        state.chip,
        era=state.era,
        function=function,
    )
    return state.finish(op, steps, layout=TensorLayout())


def _lower_layout(state: LoweringState, op: Op) -> LoweredOp:
    params: Layout = op.params
    layout = state.layout(op.inputs[0]) if op.inputs else TensorLayout()
    if not params.moves_data:
        if sum(state.graph.tensors[name].elements for name in op.inputs[:1]) != params.elements:
            # Parts of a tensor do not lie where the whole does.
            layout = replace(layout, mapping="")
        return state.finish(op, [], layout=layout)
    dtype = state.dtype(op.outputs[0])
    grouping = 1 if params.function == "transpose" else layout.grouping
    steps = rearrange_steps(
        params.elements,
        dtype,
        state.chip,
        from_grouping=layout.grouping,
        to_grouping=grouping,
    )
    return state.finish(op, steps, layout=TensorLayout(grouping=layout.grouping))


def _lower_gather(state: LoweringState, op: Op) -> LoweredOp:
    params: Gather = op.params
    dtype = float_dtype(state.dtype(op.outputs[0]))
    # Planner and vertices of embeddings changed between SDK 2.0 and 2.4.
    early = state.stack.planner_era < CYCLE_PLANS_ERA
    era = GENERATIONS[0] if early else state.era
    plan = plan_embedding(
        params.rows,
        params.width,
        params.indices,
        dtype,
        state.chip,
        goal="memory" if early else "cycles",
        updates=_is_updated(state, params),
        groups=params.groups,
    )
    common = {"era": era, "hottest": Fraction(params.hottest, params.indices)}
    if params.function == "lookup":
        # Tables that an operation computes lie as that operation left them.
        elsewhere = not early and not state.layout(op.inputs[0]).from_host
        steps = gather_steps(
            plan, params.rows, dtype, state.chip, table_elsewhere=elsewhere, **common
        )
        return state.finish(op, steps, layout=TensorLayout())
    # A sum starts from zeros, laid out as planned; rows are written where they are stored.
    steps = update_add_steps(
        plan,
        params.rows,
        params.width,
        dtype,
        state.chip,
        wide_partials=early,
        zero_first=params.function == "add",
        **common,
    )
    return state.finish(op, steps, layout=TensorLayout())


def _is_updated(state: LoweringState, params: Gather) -> bool:
    """Whether the graph also changes a table like this one: both share a plan."""
    changes = [replace(params, function=function) for function in ("add", "write")]
    return any(op.params in changes for op in state.graph.ops)


def _lower_distance(state: LoweringState, op: Op) -> LoweredOp:
    params: Distance = op.params
    steps = distance_steps(
        params.rows,
        params.others,
        params.width,
        float_dtype(state.dtype(op.outputs[0])),
        state.chip,
        backward=params.backward,
    )
    return state.finish(op, steps, layout=TensorLayout())


def _lower_sort(state: LoweringState, op: Op) -> LoweredOp:
    params: Sort = op.params
    steps = sort_steps(params.outer, params.length, state.dtype(op.outputs[0]), state.chip)
    return state.finish(op, steps, layout=TensorLayout())


def _lower_cast(state: LoweringState, op: Op) -> LoweredOp:
    params: Cast = op.params
    layout = state.layout(op.inputs[0])
    source, target = state.dtype(op.inputs[0]), state.dtype(op.outputs[0])
    if element_bytes(source) == element_bytes(target) or "int64" in (source, target):
        return state.finish(op, [], layout=layout)
    steps = cast_steps(
        params.elements, source, target, state.chip, era=state.era, tiles_used=layout.tiles
    )
    return state.finish(op, steps, layout=layout)


_LOWER = {
    Conv: lower_conv,
    MatMul: lower_matmul,
    Elementwise: lower_elementwise,
    Pool: _lower_pool,
    Norm: lower_norm,
    Softmax: lower_softmax,
    Recurrent: lower_recurrent,
    NonMaxSuppression: lower_suppression,
    AlignmentLoss: lower_alignment_loss,
    Reduce: _lower_reduce,
    Layout: _lower_layout,
    Gather: _lower_gather,
    Distance: _lower_distance,
    Sort: _lower_sort,
    Loss: lower_loss,
    Cast: _lower_cast,
}
