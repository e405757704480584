"""ONNX recurrent operators: LSTM and GRU, in either direction, at the same cost, or both.

Gates lie in the order of the ONNX specification (LSTM: input, output, forget, cell; GRU: update,
reset, hidden). The order changes no cost: poplibs runs any order at the same cycles.
"""

from itertools import cycle

import numpy as np

from ipusim.workload.graph import Layout, Recurrent
from ipusim.workload.onnx.operators.emission import Emission, Handler

_DEFAULT_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}
_LENGTHS, _INITIAL_OUTPUT, _INITIAL_CELL, _PEEPHOLES = 4, 5, 6, 7


def recurrent(e: Emission) -> None:
    """LSTM or GRU: one recurrent operator per direction, results put side by side."""
    _note(e)
    steps, batch, features = e.shape()
    directions, _, hidden = e.shape(2)
    wanted = [bool(name) and e.context.reads(name) for name in e.node.output]
    wanted += [False] * (3 - len(wanted))
    every = wanted[0] or not any(wanted)
    params = Recurrent(
        kind=e.node.op_type.lower(),
        steps=steps,
        batch=batch,
        features=features,
        hidden=hidden,
        sequence=every,
        reset_after=bool(e.get("linear_before_reset", 0)),
    )
    operands = _operands(e, params, directions)
    parts = []
    for index in range(directions):
        own = [
            _part(e, name, f".{place}.{index}") if directions > 1 else name
            for place, name in enumerate(operands)
        ]
        parts.append(_direction(e, params, own, index, cell=wanted[2]))
    if wanted[0]:
        _side_by_side(e, 0, [results[0] for results in parts])
    if wanted[1]:
        finals = [
            _part(e, results[0], f".direction{index}.last") if every else results[0]
            for index, results in enumerate(parts)
        ]
        _side_by_side(e, 1, finals)
    if wanted[2]:
        _side_by_side(e, 2, [results[1] for results in parts])


def _note(e: Emission) -> None:
    """Say what a poplibs layer computes otherwise than this one."""
    default = _DEFAULT_ACTIVATIONS[e.node.op_type]
    named = zip(e.get("activations", default), cycle(default))
    usual = all(name.lower() == own.lower() for name, own in named)
    lengths = e.context.array(e.node, _LENGTHS)
    shorter = lengths is None or bool(np.any(lengths != e.shape()[0]))
    reasons = {
        f"activations other than {', '.join(default)} cost what these do": not usual,
        "clipping of gates is left out": bool(e.get("clip", 0)),
        "coupled gates cost what separate ones do": bool(e.get("input_forget", 0)),
        "peephole weights are left out": e.has(_PEEPHOLES),
        "every sequence runs all its steps": e.has(_LENGTHS) and shorter,
    }
    for reason, present in reasons.items():
        if present:
            e.note(f"recurrent layers: {reason}")


def _operands(e: Emission, params: Recurrent, directions: int) -> list[str]:
    """Return the operands that have one part per direction: weights, biases, initial states."""
    names = [e.operand(place, weight=True) for place in (1, 2)]
    if e.has(3):
        names.append(e.operand(3, weight=True))
    else:
        shape = (directions, 2 * params.gates * params.hidden)
        names.append(e.context.graph.parameter(f"{e.label}.zero_bias", shape, role="constant"))
    initial = (place for place in (_INITIAL_OUTPUT, _INITIAL_CELL) if e.has(place))
    return [*names, *(e.operand(place, role="constant") for place in initial)]


def _part(e: Emission, name: str, suffix: str) -> str:
    """Return a view of one slice along the first axis: of a direction, or of the last step."""
    whole = e.context.graph.tensors[name]
    shape = whole.shape[1:]
    return e.step(suffix, Layout.view("slice"), name, shape=shape, dtype=whole.dtype)


def _direction(
    e: Emission, params: Recurrent, operands: list[str], index: int, *, cell: bool
) -> tuple[str, ...]:
    """Add the layer of one direction; return its outputs and, if wanted, its cell state."""
    last = (params.batch, params.hidden)
    shapes = [(params.steps, *last) if params.sequence else last, *([last] if cell else [])]
    inputs = (e.operand(), *operands)
    return e.context.graph.apply_several(f"{e.label}.direction{index}", params, inputs, shapes)


def _side_by_side(e: Emission, position: int, parts: list[str]) -> None:
    """Let the node's output hold the parts of all directions; a single part is a mere view."""
    output, several = e.node.output[position], len(parts) > 1
    params = Layout.move("concat") if several else Layout.view("reshape")
    e.emit(params, *parts, suffix=f".output{position}", outputs=[output])


RECURRENT_HANDLERS: dict[str, Handler] = {"LSTM": recurrent, "GRU": recurrent}
