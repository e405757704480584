"""ONNX recurrent operators: LSTM and GRU, in either direction, at the same cost.

Gates lie in the order of the ONNX specification (LSTM: input, output, forget, cell; GRU: update,
reset, hidden). The order changes no cost: poplibs runs any order at the same cycles.
"""

from itertools import cycle

import numpy as np

from ipusim.workload.graph import Layout, Recurrent
from ipusim.workload.onnx.operators.emission import Emission, Handler

ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
"""Functions of one direction of a layer, where a file names none."""

_LAST, _CELL = 1, 2
_LENGTHS, _INITIAL_OUTPUT, _INITIAL_CELL, _PEEPHOLES = 4, 5, 6, 7


def recurrent(e: Emission) -> None:
    """LSTM or GRU of one direction."""
    _note(e)
    steps, batch, features = e.shape()
    hidden = e.shape(2)[2]
    wanted = [bool(name) and e.context.reads(name) for name in e.node.output]
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
    last = (batch, hidden)
    shapes = [(steps, *last) if every else last, *([last] if any(wanted[2:]) else [])]
    inputs = (e.operand(), *_operands(e, params))
    made = e.context.graph.apply_several(e.label, params, inputs, shapes)
    for place, name in enumerate(e.node.output):
        if wanted[place]:
            source = made[-1] if place == _CELL else made[0]
            if place == _LAST and every:
                source = e.step(".last", Layout.view("slice"), source, shape=last)
            e.emit(Layout.view("reshape"), source, suffix=f".output{place}", outputs=[name])


def _note(e: Emission) -> None:
    """Say what a poplibs layer computes otherwise than this one."""
    default = ACTIVATIONS[e.node.op_type]
    named = zip(e.get("activations", default), cycle(default))
    usual = all(name.lower() == own.lower() for name, own in named)
    lengths = e.known(_LENGTHS)
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


def _operands(e: Emission, params: Recurrent) -> list[str]:
    names = [e.operand(place, weight=True) for place in (1, 2)]
    if e.has(3):
        names.append(e.operand(3, weight=True))
    else:
        shape = (1, 2 * params.gates * params.hidden)
        names.append(e.context.graph.constant(f"{e.label}.zero_bias", shape))
    initial = (place for place in (_INITIAL_OUTPUT, _INITIAL_CELL) if e.has(place))
    return [*names, *(e.operand(place, role="constant") for place in initial)]


RECURRENT_HANDLERS: dict[str, Handler] = {"LSTM": recurrent, "GRU": recurrent}
