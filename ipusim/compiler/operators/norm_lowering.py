"""Normalisations, softmax and losses of a graph, forward and backward."""

from __future__ import annotations

from dataclasses import replace

from ipusim.compiler.operators.elementwise_lowering import float_dtype
from ipusim.compiler.operators.loss import loss_steps
from ipusim.compiler.operators.norm import batch_norm_steps, norm_steps
from ipusim.compiler.operators.norm_gradient import norm_gradient_steps
from ipusim.compiler.operators.softmax import softmax_gradient_steps, softmax_steps
from ipusim.compiler.program import LoweredOp
from ipusim.compiler.state import LoweringState, TensorLayout
from ipusim.compiler.superstep import Superstep
from ipusim.workload.graph import Loss, Norm, Op, Softmax


def lower_norm(state: LoweringState, op: Op) -> LoweredOp:
    """Return the supersteps of a normalisation or of its gradients."""
    params: Norm = op.params
    if params.backward:
        return _lower_norm_gradient(state, op)
    layout = state.layout(op.inputs[0])
    dtype = float_dtype(state.dtype(op.outputs[0]))
    common = {
        "era": state.era,
        "channel_grouping": layout.grouping,
        "tiles_used": layout.tiles,
    }
    if params.kind == "batch" and not params.training:
        steps = batch_norm_steps(params.elements, params.channels, dtype, state.chip, **common)
    else:
        steps = norm_steps(
            params.kind,
            params.batch,
            params.channels,
            (params.spatial_elements,),
            dtype,
            state.chip,
            groups=params.groups,
            training=params.training,
            # The applications that train with group norm ask for it (graphcore/examples v2.4.0:
            # TensorFlow's networks force it, PyTorch's leave PopTorch's enableStableNorm on).
            stable=params.kind == "group" and state.training,
            **common,
        )
    return _finish_first(state, op, steps, layout)


def _lower_norm_gradient(state: LoweringState, op: Op) -> LoweredOp:
    params: Norm = op.params
    incoming, data = (state.layout(name) for name in op.inputs[:2])
    steps = norm_gradient_steps(
        params.kind,
        params.batch,
        params.channels,
        (params.spatial_elements,),
        float_dtype(state.dtype(op.outputs[0])),
        state.chip,
        era=state.era,
        groups=params.groups,
        channel_grouping=data.grouping,
        gradient_grouping=incoming.grouping,
        exchanged_gradient=not incoming.lies_with(data),
        tiles_used=data.tiles,
    )
    return _finish_first(state, op, steps, replace(data, from_host=False))


def _finish_first(
    state: LoweringState, op: Op, steps: list[Superstep], layout: TensorLayout
) -> LoweredOp:
    """Finish an operation whose results of another size than the first lie spread by themselves."""
    lowered = state.finish(op, steps, layout=layout)
    first, *others = (state.graph.tensors[name] for name in op.outputs)
    for tensor in others:
        if tensor.elements != first.elements:
            state.layouts[tensor.name] = TensorLayout()
    return lowered


def lower_softmax(state: LoweringState, op: Op) -> LoweredOp:
    """Return the supersteps of a softmax or of its gradient."""
    params: Softmax = op.params
    layout = state.layout(op.inputs[0])
    dtype = float_dtype(state.dtype(op.outputs[0]))
    if params.backward:
        result = state.layout(op.inputs[1])
        steps = softmax_gradient_steps(
            params.outer,
            params.length,
            dtype,
            state.chip,
            era=state.era,
            log=params.log,
            exchanged_gradient=not layout.lies_with(result),
            tiles_used=result.tiles,
        )
        return state.finish(op, steps, layout=replace(result, from_host=False))
    steps = softmax_steps(
        params.outer,
        params.length,
        dtype,
        state.chip,
        era=state.era,
        scaled=False,
        tiles_used=layout.tiles,
    )
    return state.finish(op, steps, layout=layout)


def lower_loss(state: LoweringState, op: Op) -> LoweredOp:
    """Return the supersteps of a loss; its gradient lies with the predictions."""
    params: Loss = op.params
    layout = state.layout(op.inputs[0])
    steps = loss_steps(
        params.kind,
        params.rows,
        params.classes,
        float_dtype(state.dtype(op.inputs[0])),
        state.chip,
        era=state.era,
        tiles_used=layout.tiles,
        scattered=state.rows_scattered(op.inputs[0]),
    )
    lowered = state.finish(op, steps, layout=TensorLayout())
    state.layouts[op.outputs[1]] = replace(layout, from_host=False)
    return replace(lowered, tiles=layout.tiles or state.chip.tiles)
