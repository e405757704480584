"""Forward and backward passes through a program in a chosen arithmetic."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from ipusim.errors import MISFITS, WorkloadError
from ipusim.numerics.arithmetic import Arithmetic, ArithmeticOptions
from ipusim.numerics.kernels.rounding import NEAREST, Rounding, round_in_place
from ipusim.numerics.operators.control import CONTROL
from ipusim.numerics.operators.elementwise import CASTS, ELEMENTWISE, MOVES
from ipusim.numerics.operators.products import PRODUCTS
from ipusim.numerics.operators.recurrent import RECURRENT
from ipusim.numerics.operators.registry import Applied, Operator
from ipusim.numerics.operators.windows import WINDOWED
from ipusim.numerics.program import Node, Program, is_floating, single

OPERATORS: dict[str, Operator] = PRODUCTS | ELEMENTWISE | WINDOWED | RECURRENT | MOVES | CASTS
"""Operators with arithmetic or a gradient of their own; others are as ONNX defines them."""


def stored_weights(
    weights: Mapping[str, np.ndarray], arithmetic: Arithmetic
) -> dict[str, np.ndarray]:
    """Return the weights as operators read them: masters cast on the device, halves on the host."""
    options = arithmetic.options
    cast = arithmetic.copy if options.half and options.master_weights else partial(_sent, options)
    return {name: cast(x) if is_floating(x) else x for name, x in weights.items()}


def _sent(options: ArithmeticOptions, values: np.ndarray) -> np.ndarray:
    """Return floating-point numbers as the host sends them: halves are rounded to nearest."""
    if options.half:
        return round_in_place(np.array(values, np.float32, order="C"), Rounding(NEAREST))
    return np.require(values, np.float32, ("C", "W"))


def forward(
    program: Program,
    inputs: Mapping[str, np.ndarray],
    weights: Mapping[str, np.ndarray],
    arithmetic: Arithmetic,
    *,
    keep: bool = True,
) -> dict[str, np.ndarray]:
    """Run a program forwards, on inputs and weights that it has checked.

    Values come back by name, halves in float32 arrays: all of them, as `backward` needs, or without
    `keep` only the outputs.
    """
    values = stored_weights(weights, arithmetic)
    for name, array in inputs.items():
        values[name] = _sent(arithmetic.options, array) if is_floating(array) else array
    _run(program, values, arithmetic, keep=keep)
    return values


def _run(
    program: Program, values: dict[str, np.ndarray], arithmetic: Arithmetic, *, keep: bool
) -> None:
    """Add the results of the operators of a program, or of a body, to the values they read."""
    last_use = {name: node for node in program.nodes for name in node.inputs}
    for node in program.nodes:
        results = _apply(node, [values[name] if name else None for name in node.inputs], arithmetic)
        values.update(zip(node.outputs, results, strict=False))
        if not keep:
            for name in set(node.inputs):
                if last_use.get(name) is node and name not in program.outputs:
                    values.pop(name, None)


def _apply(node: Node, inputs: list[np.ndarray | None], arithmetic: Arithmetic) -> list[np.ndarray]:
    if node.op in CONTROL:
        return _controlled(node, inputs, arithmetic)
    floating = any(map(is_floating, inputs))
    several = sum(map(bool, node.outputs)) > 1 and node.op not in RECURRENT
    own = OPERATORS.get(node.op, Operator()).forward
    if own is not None and not several and (floating or not node.opset):
        try:
            return own(node, inputs, arithmetic)
        except MISFITS as error:
            shapes = ", ".join(str(array.shape) for array in inputs if array is not None)
            raise WorkloadError(
                f"Operator {node.op!r}, node {node.name!r}, cannot be computed on operands of "
                f"shapes {shapes} ({error})."
            ) from error
    from ipusim.numerics.from_onnx import evaluate

    results = [single(array) for array in evaluate(node, inputs)]
    if not floating or node.op in MOVES:
        return results
    return [arithmetic.copy(array) if is_floating(array) else array for array in results]


def _controlled(
    node: Node, inputs: list[np.ndarray | None], arithmetic: Arithmetic
) -> list[np.ndarray]:
    own = len(inputs) - len(node.outer)
    outer = dict(zip(node.outer, inputs[own:], strict=True))
    weights = {name: stored_weights(b.values, arithmetic) for name, b in node.bodies.items()}

    def body(name: str, *given: np.ndarray) -> list[np.ndarray]:
        program = node.bodies[name]
        values = {**outer, **weights[name], **dict(zip(program.inputs, given, strict=True))}
        _run(program, values, arithmetic, keep=False)
        return [values[result] for result in program.outputs]

    return CONTROL[node.op](node, inputs[:own], body)


def backward(
    program: Program,
    values: dict[str, np.ndarray],
    output_gradients: Mapping[str, np.ndarray],
    wanted: frozenset[str],
    arithmetic: Arithmetic,
) -> dict[str, np.ndarray]:
    """Differentiate a program that `forward` has run: gradients of those inputs and weights wanted.

    The arithmetic is the one that ran forwards: it continues its streams. `WorkloadError` names an
    operator on the way that has no gradient.
    """
    reached = set(wanted)
    for node in program.nodes:
        if reached.intersection(node.inputs):
            reached.update(node.outputs)
    gradients = dict(output_gradients)
    for node in reversed(program.nodes):
        incoming = [gradients.get(name) for name in node.outputs]
        if not reached.intersection(node.inputs) or all(item is None for item in incoming):
            continue
        applied = Applied(
            node=node,
            inputs=[values[name] if name else None for name in node.inputs],
            outputs=[values[name] for name in node.outputs if name in values],
            gradients=incoming,
            wanted=[name in reached for name in node.inputs],
            arithmetic=arithmetic,
        )
        differentiate = OPERATORS.get(node.op, Operator()).backward
        if differentiate is None:
            raise WorkloadError(
                f"Operator {node.op!r}, node {node.name!r}, has no gradient in numerics; train a "
                "model without it."
            )
        for name, gradient in zip(node.inputs, differentiate(applied), strict=True):
            if gradient is None or name not in reached:
                continue
            known = gradients.get(name)
            gradients[name] = gradient if known is None else arithmetic.store(known + gradient)
        for name in node.outputs:
            if name not in wanted:
                gradients.pop(name, None)
    return {name: gradients[name] for name in wanted if name in gradients}
