"""ONNX recurrent operators: LSTM and GRU, in either direction or both.

Gates lie in the order of the ONNX specification (LSTM: input, output, forget, cell; GRU: update,
reset, hidden). The order changes no cost: poplibs runs any order at the same cycles.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ipusim.workload.graph import Layout, Recurrent, Tensor
from ipusim.workload.onnx.context import Handler, ImportContext, Node, has_input

_DEFAULT_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}
_LENGTHS, _INITIAL_OUTPUT, _INITIAL_CELL, _PEEPHOLES = 4, 5, 6, 7


def recurrent(context: ImportContext, node: Node) -> None:
    """LSTM or GRU: one recurrent operator per direction, results put side by side."""
    given = node.given
    _note(context, node, given)
    steps, batch, features = context.shape(node.input[0])
    directions, _, hidden = context.shape(node.input[2])
    wanted = [bool(name) and context.reads(name) for name in node.output]
    wanted += [False] * (3 - len(wanted))
    every = wanted[0] or not any(wanted)
    params = Recurrent(
        kind=node.op_type.lower(),
        steps=steps,
        batch=batch,
        features=features,
        hidden=hidden,
        sequence=every,
        reset_after=bool(given.get("linear_before_reset", 0)),
    )
    operands = _operands(context, node, params, directions)
    parts = []
    for index in range(directions):
        reverse = given.get("direction", "forward") == "reverse" or index == 1
        parts.append(
            _direction(
                context,
                node,
                params=replace(params, reverse=reverse),
                operands=tuple(
                    _part(context, node, name, place, index, directions)
                    for place, name in enumerate(operands)
                ),
                index=index,
                cell=wanted[2],
            )
        )
    if wanted[0]:
        _side_by_side(context, node, 0, [results[0] for results in parts])
    if wanted[1] or not every:
        finals = [
            _last_step(context, node, results[0], params, index) if every else results[0]
            for index, results in enumerate(parts)
        ]
        _side_by_side(context, node, 1, finals)
    if wanted[2]:
        _side_by_side(context, node, 2, [results[1] for results in parts])


def _note(context: ImportContext, node: Node, given: dict[str, object]) -> None:
    """Say what a poplibs layer computes otherwise than this one."""
    default = _DEFAULT_ACTIVATIONS[node.op_type]
    named = [
        name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        for name in given.get("activations", default)
    ]
    usual = all(
        name.lower() == default[index % len(default)].lower() for index, name in enumerate(named)
    )
    reasons = {
        f"activations other than {', '.join(default)} cost what these do": not usual,
        "clipping of gates is left out": bool(given.get("clip", 0)),
        "coupled gates cost what separate ones do": bool(given.get("input_forget", 0)),
        "peephole weights are left out": has_input(node, _PEEPHOLES),
        "every sequence runs all its steps": _shorter(context, node),
    }
    for reason, present in reasons.items():
        if present:
            context.notes[f"recurrent layers: {reason}"] += 1


def _shorter(context: ImportContext, node: Node) -> bool:
    if not has_input(node, _LENGTHS):
        return False
    lengths = context.array(node, _LENGTHS)
    return lengths is None or bool(np.any(lengths != context.shape(node.input[0])[0]))


def _operands(context: ImportContext, node: Node, params: Recurrent, directions: int) -> list[str]:
    """Return the operands that have one part per direction: weights, biases, initial states."""
    names = [context.operand(node.input[position], weight=True) for position in (1, 2)]
    if has_input(node, 3):
        names.append(context.operand(node.input[3], weight=True))
    else:
        zeros = f"{context.op_name(node)}.zero_bias"
        shape = (directions, 2 * params.gates * params.hidden)
        names.append(context.graph.parameter(zeros, shape, role="constant"))
    for position in (_INITIAL_OUTPUT, _INITIAL_CELL):
        if has_input(node, position):
            names.append(context.operand(node.input[position], role="constant"))
    return names


def _part(
    context: ImportContext, node: Node, name: str, place: int, index: int, directions: int
) -> str:
    """Return one direction's part of the operand at a place."""
    if directions == 1:
        return name
    tensor = context.graph.tensors[name]
    shape = tensor.shape[1:]
    output = context.graph.add_tensor(
        Tensor(name=f"{context.op_name(node)}.{place}.{index}", shape=shape, dtype=tensor.dtype)
    )
    view = Layout(function="slice", elements=prod(shape), moves_data=False)
    context.graph.add_op(output, view, (name,), output)
    return output


def _direction(
    context: ImportContext,
    node: Node,
    *,
    params: Recurrent,
    operands: tuple[str, ...],
    index: int,
    cell: bool,
) -> list[str]:
    """Add the layer of one direction; return its outputs and, if wanted, its cell state."""
    label = f"{context.op_name(node)}.direction{index}"
    dtype = context.dtype(node.input[0], node)
    last = (params.batch, params.hidden)
    shapes = [(params.steps, *last) if params.sequence else last, *([last] if cell else [])]
    outputs = [
        context.graph.add_tensor(Tensor(name=f"{label}.out{place}", shape=shape, dtype=dtype))
        for place, shape in enumerate(shapes)
    ]
    inputs = (context.operand(node.input[0]), *operands)
    context.graph.add_op(label, params, inputs, *outputs)
    return outputs


def _last_step(
    context: ImportContext, node: Node, outputs: str, params: Recurrent, index: int
) -> str:
    """Return the output of the step that runs last, out of those of all steps."""
    tensor = context.graph.tensors[outputs]
    name = f"{context.op_name(node)}.direction{index}.last"
    context.graph.add_tensor(Tensor(name=name, shape=tensor.shape[1:], dtype=tensor.dtype))
    view = Layout(function="slice", elements=params.batch * params.hidden, moves_data=False)
    context.graph.add_op(name, view, (outputs,), name)
    return name


def _side_by_side(context: ImportContext, node: Node, position: int, parts: list[str]) -> None:
    """Let the node's output hold the parts of all directions; a single part is a mere view."""
    output = node.output[position]
    shape = context.shape(output)
    context.graph.add_tensor(Tensor(name=output, shape=shape, dtype=context.dtype(output, node)))
    several = len(parts) > 1
    params = Layout(
        function="concat" if several else "reshape", elements=prod(shape), moves_data=several
    )
    context.graph.add_op(f"{context.op_name(node)}.output{position}", params, tuple(parts), output)


RECURRENT_HANDLERS: dict[str, Handler] = {"LSTM": recurrent, "GRU": recurrent}
