"""Elementwise operations of a graph: which vertices run, and what has to move first."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from ipusim.compiler.operators import elementwise
from ipusim.compiler.operators.elementwise_functions import (
    EXPRESSIONS,
    RANDOM,
    gradient_functions,
    vertices_of,
)
from ipusim.compiler.operators.elementwise_gradient import (
    dropout_steps,
    generated_steps,
    non_linearity_gradient_steps,
)
from ipusim.compiler.operators.layout import cast_steps, rearrange_steps
from ipusim.compiler.program import LoweredOp
from ipusim.compiler.state import LoweringState, TensorLayout
from ipusim.compiler.superstep import Superstep, element_bytes, linear_share, tile_share
from ipusim.compiler.vertices.elementwise import binary_functions
from ipusim.workload.graph import Elementwise, Op

FLOATING = ("float16", "float32")


def float_dtype(dtype: str) -> str:
    """Integers and booleans are charged like the float of their width or the next wider one."""
    return dtype if dtype in FLOATING else "float32"


def lower_elementwise(state: LoweringState, op: Op) -> LoweredOp:
    """Return the supersteps of an elementwise operation.

    Raises
    ------
    UnknownNameError
        If no vertex or expression computes the function.
    """
    params: Elementwise = op.params
    layout = state.layout(op.inputs[0])
    dtype = float_dtype(state.dtype(op.outputs[0]))
    if op.function == "bias_add":
        channels = state.graph.tensors[op.inputs[1]].elements
        steps = elementwise.bias_add_steps(
            params.elements,
            channels,
            dtype,
            state.chip,
            era=state.era,
            channel_grouping=layout.grouping,
            tiles_used=layout.tiles,
        )
    elif (op.function == "scaled_add" and not params.broadcast) or _accumulates_product(state, op):
        steps = _scaled_add(state, op, layout)
    elif op.function in RANDOM:
        steps = dropout_steps(params.elements, dtype, state.chip, tiles_used=layout.tiles)
        steps = _with_result(state, op, steps, layout, dtype)
    elif op.function in EXPRESSIONS or op.function in gradient_functions(state.era.library):
        layout = _kept_layout(state, op)
        steps = _with_result(state, op, _gradient(state, op, dtype), layout, dtype)
    else:
        op = _whole_first(state, op)
        layout = state.layout(op.inputs[0])
        if state.graph.tensors[op.inputs[0]].elements < params.elements:
            # No operand is whole, as where a row meets a column: the result is spread evenly.
            layout = replace(layout, tiles=None, mapping="")
        steps = _series(state, op, layout, dtype)
    return state.finish(op, steps, layout=layout)


def _whole_first(state: LoweringState, op: Op) -> Op:
    """Return the operation with an operand of the result's size first: the result lies like it.

    popops takes the mapping of the operand that is not repeated, whichever comes first
    (lib/popops/ElementWise.cpp, createOutputForElementWiseOp).
    """
    tensors = state.graph.tensors
    whole = [x for x in op.inputs if tensors[x].elements == op.params.elements]
    if not whole or whole[0] == op.inputs[0]:
        return op
    rest = list(op.inputs)
    rest.remove(whole[0])
    return replace(op, inputs=(whole[0], *rest))


def _with_result(
    state: LoweringState, op: Op, steps: list[Superstep], layout: TensorLayout, dtype: str
) -> list[Superstep]:
    """Charge the result where the graph lets it share memory but the vertex writes a new tensor."""
    if not op.params.in_place_ok:
        return steps
    share = tile_share(op.params.elements, dtype, state.chip, layout.tiles)
    held = share.elements * element_bytes(dtype)
    return [replace(step, temp_bytes=step.temp_bytes + held) for step in steps]


def _scaled_add(state: LoweringState, op: Op, layout: TensorLayout) -> list[Superstep]:
    """Return the steps of ``a += scale * b``; a may be wider than b, or narrower.

    In the sum with a product (matMulAcc) C is laid out like the product, and IPUModel's gemms want
    half a cycle per float16 element, the rate of operands in different memory elements.
    """
    target, addend = (state.graph.tensors[name] for name in op.inputs[:2])
    source = state.layout(addend.name)
    if op.phase == "update" or target.role in ("parameter", "state"):
        # Accumulators and moments are laid out like the gradient that is added to them (PopART
        # accumulatex.cpp), weights like their consumer: what passes between them is exchanged.
        same = (target.role == "parameter") == (addend.role == "parameter")
        if target.role == "state" and not source.from_host:
            layout = replace(source, from_host=True)
    else:
        same = source.lies_with(layout)
    return elementwise.scaled_add_steps(
        op.params.elements,
        float_dtype(target.dtype),
        state.chip,
        era=state.era,
        addend_dtype=float_dtype(addend.dtype),
        constrained=_accumulates_product(state, op),
        same_mapping=same,
        tiles_used=layout.tiles,
    )


def _accumulates_product(state: LoweringState, op: Op) -> bool:
    """Whether a full matrix from the host is added to a matrix product."""
    if op.function not in ("add", "scaled_add") or op.params.broadcast or len(op.inputs) != 2:
        return False
    producer = state.producers.get(op.inputs[0])
    return (
        producer is not None and producer.kind == "matmul" and state.layout(op.inputs[1]).from_host
    )


def _kept_layout(state: LoweringState, op: Op) -> TensorLayout:
    """Return the layout of what the forward pass kept, which a gradient takes on."""
    kept = op.inputs[1] if len(op.inputs) > 1 else op.inputs[0]
    return replace(state.layout(kept), from_host=False)


def _gradient(state: LoweringState, op: Op, dtype: str) -> list[Superstep]:
    """Return the steps of a gradient with a vertex, made for it or generated.

    The result is mapped like the tensor of the forward pass (popnn nonLinearityInputGradient), so
    the incoming gradient moves there, and is regrouped if its channels lie otherwise.
    """
    params: Elementwise = op.params
    incoming, kept = state.layout(op.inputs[0]), _kept_layout(state, op)
    steps: list[Superstep] = []
    if not params.broadcast and not incoming.lies_with(kept):
        steps += rearrange_steps(
            params.elements,
            dtype,
            state.chip,
            from_grouping=incoming.grouping,
            to_grouping=kept.grouping,
            tiles_used=kept.tiles,
        )
    if op.function not in gradient_functions(state.era.library):
        expression = EXPRESSIONS[op.function]
        steps += generated_steps(
            op.function,
            params.elements,
            expression,
            dtype,
            state.chip,
            era=state.era,
            tiles_used=kept.tiles,
        )
    else:
        steps += non_linearity_gradient_steps(
            op.function.removesuffix("_grad"),
            params.elements,
            dtype,
            state.chip,
            era=state.era,
            tiles_used=kept.tiles,
        )
    return steps


def _series(state: LoweringState, op: Op, layout: TensorLayout, dtype: str) -> list[Superstep]:
    """Return the steps of a function that popops computes, one or several operations."""
    params: Elementwise = op.params
    steps = _casts(state, op, layout, dtype)
    elsewhere = sum(
        not (other := state.layout(name)).from_host and other.mapping != layout.mapping
        for name in op.inputs[1:]
    )
    spread = _repeats_matrix(state, op)
    repeated = params.broadcast and not spread
    for count, function in enumerate(vertices_of(op.function, state.era.estimator)):
        binary = function in binary_functions(state.era.estimator)
        moved = count == 0 and params.n_inputs > 1 and (spread or elsewhere > 0) and not repeated
        steps += elementwise.elementwise_step(
            function,
            params.elements,
            dtype,
            state.chip,
            era=state.era,
            n_inputs=2 if binary else 1,
            broadcast=binary and (repeated or params.n_inputs == 1),
            in_place=params.in_place_ok,
            channels=None if repeated and not _repeats_one(state, op) else 1,
            channel_grouping=gcd(layout.grouping, params.elements),
            exchanged_inputs=int(binary and moved),
            tiles_used=layout.tiles,
            name=op.function,
        )
    return steps


def _repeats_one(state: LoweringState, op: Op) -> bool:
    """Whether the operand that is repeated over the result is a single number."""
    return min(state.graph.tensors[name].elements for name in op.inputs) == 1


def _repeats_matrix(state: LoweringState, op: Op) -> bool:
    """Whether the second operand is repeated along leading axes only, and whole on no tile.

    A causal mask for all heads is one: a tile holds parts of the scores of one head, so nothing
    repeats there. popops takes the vertex of two full operands, and the part that the tile needs
    arrives by exchange (lib/popops/ElementWise.cpp, binaryOpBroadcast, the last case).
    """
    if not op.params.broadcast or op.params.n_inputs != 2:
        return False
    out = state.graph.tensors[op.outputs[0]]
    operand = state.graph.tensors[op.inputs[1]]
    share = linear_share(out.elements, out.dtype, state.chip).elements
    rows = len(out.shape) > 2 and operand.shape[-2:] == out.shape[-2:]
    return rows and share <= operand.elements


def _casts(state: LoweringState, op: Op, layout: TensorLayout, dtype: str) -> list[Superstep]:
    """Return the casts of float operands of another width: popops vertices take one type."""
    steps: list[Superstep] = []
    for name in op.inputs:
        tensor = state.graph.tensors[name]
        if tensor.dtype in FLOATING and tensor.dtype != dtype:
            if state.dtype(op.outputs[0]) not in FLOATING:
                continue
            cast = cast_steps(
                tensor.elements,
                tensor.dtype,
                dtype,
                state.chip,
                era=state.era,
                tiles_used=layout.tiles,
            )
            share = tile_share(tensor.elements, dtype, state.chip, layout.tiles)
            held = share.elements * element_bytes(dtype)
            steps += [replace(step, temp_bytes=held) for step in cast]
    return steps
