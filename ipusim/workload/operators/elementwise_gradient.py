"""Gradients of elementwise functions, reductions and layouts, which are made of one another."""

from __future__ import annotations

from dataclasses import replace

from ipusim.workload.operators.elementwise import Elementwise
from ipusim.workload.operators.gradient import Backward, gradient
from ipusim.workload.operators.layout import Layout
from ipusim.workload.operators.reduce import Reduce

FROM_OUTPUT = ("relu", "sigmoid", "tanh", "sqrt", "rsqrt", "reciprocal", "elu", "leaky_relu")
"""Functions whose gradient is computed from the result, so that the input need not be kept."""

FROM_INPUT = (
    "abs",
    "clip",
    "cos",
    "erf",
    "gelu",
    "hard_sigmoid",
    "hard_swish",
    "log",
    "softplus",
    "mish",
    "swish",
)
"""Functions whose gradient is computed from the input."""

LINEAR = ("dropout", "neg", "scale")
"""Functions of one operand whose gradient is the same function of the incoming gradient."""

VIEWS_BACK = ("concat", "pad")
"""Layouts that need new memory, whose gradient is a view of the incoming one."""

SUMS_BACK = ("expand", "tile")
"""Layouts that repeat elements, whose gradient sums the repeats."""


@gradient(Elementwise)
def _elementwise(back: Backward, work: Elementwise) -> None:
    function, (x, *others) = work.function, back.op.inputs
    if function == "bias_add":
        back.give(x, back.gradient)
        _give_summed(back, others[0], back.gradient, "bias_gradient")
    elif function in ("add", "sum", "mean"):
        for index, name in enumerate(back.op.inputs):
            _give_summed(back, name, back.gradient, f"gradient{index}")
    elif function == "sub":
        _give_summed(back, x, back.gradient, "gradient0")
        if others and back.wants(others[0]):
            negative = _unary(back, "neg", back.gradient, "negative")
            _give_summed(back, others[0], negative, "gradient1")
    elif function == "mul" and len(others) == 1:
        for index, (name, other) in enumerate(((x, others[0]), (others[0], x))):
            if back.wants(name):
                product = _times(back, back.gradient, other, f"product{index}")
                _give_summed(back, name, product, f"gradient{index}")
    elif function == "div" and others:
        quotient = _times(back, back.gradient, others[0], "quotient", function="div")
        _give_summed(back, x, quotient, "gradient0")
        if back.wants(others[0]):
            product = _times(back, quotient, back.op.outputs[0], "product")
            negative = _unary(back, "neg", product, "negative")
            _give_summed(back, others[0], negative, "gradient1")
    elif function == "exp":
        back.give(x, _times(back, back.gradient, back.op.outputs[0], "gradient"))
    elif function == "square":
        back.give(x, _times(back, back.gradient, x, "gradient"))
    elif function == "pow" and not (others and back.wants(others[0])):
        back.give(x, _times(back, back.gradient, x, "gradient", function="pow_grad"))
    elif function in ("max", "min") and others:
        _compared(back, function)
    elif function == "select":
        _selected(back)
    elif function in LINEAR or (function == "mul" and not others):
        back.give(x, _unary(back, function, back.gradient, "gradient"))
    elif function in FROM_OUTPUT or function in FROM_INPUT:
        kept = back.op.outputs[0] if function in FROM_OUTPUT else x
        function = f"{function}_grad"
        back.give(x, _times(back, back.gradient, kept, "gradient", function=function))
    else:
        raise back.refusal()


def _compared(back: Backward, function: str) -> None:
    """Send the gradient of a maximum of tensors to the one that was the largest."""
    for index, name in enumerate(back.op.inputs):
        if back.wants(name):
            work = Elementwise(
                function=f"{function}_grad",
                n_inputs=3,
                elements=back.result.elements,
                broadcast=back.elements(name) != back.result.elements,
            )
            part = back.emit(
                f"part{index}", work, (back.gradient, name, back.op.outputs[0]), back.result
            )
            _give_summed(back, name, part, f"gradient{index}")


def _selected(back: Backward) -> None:
    """Send the gradient of a selection by its condition; a constant mask has one operand."""
    condition, *chosen = back.op.inputs
    if not chosen:
        back.give(condition, _unary(back, "select", back.gradient, "gradient"))
    for index, name in enumerate(chosen):
        if back.wants(name):
            part = _times(back, back.gradient, condition, f"part{index}", function="select")
            _give_summed(back, name, part, f"gradient{index}")


def _unary(back: Backward, function: str, operand: str, suffix: str) -> str:
    """Apply a function to a tensor of the shape of the result."""
    work = Elementwise(
        function=function, n_inputs=1, elements=back.result.elements, in_place_ok=True
    )
    return back.emit(suffix, work, (operand,), back.result)


def _times(back: Backward, incoming: str, other: str, suffix: str, *, function: str = "mul") -> str:
    """Combine an incoming gradient with a tensor of the forward pass."""
    work = Elementwise(
        function=function,
        n_inputs=2,
        elements=back.result.elements,
        broadcast=back.elements(other) != back.result.elements,
        in_place_ok=True,
    )
    return back.emit(suffix, work, (incoming, other), back.result)


def _give_summed(back: Backward, name: str, incoming: str, suffix: str) -> None:
    """Send a gradient to an operand that may have been broadcast: sum what it shares.

    The operand's elements are taken to lie innermost, as channels do in every layout of the IPU.
    """
    operand, elements = back.tensor(name).elements, back.elements(incoming)
    if operand == elements:
        back.give(name, incoming)
    else:
        total = Reduce(function="sum", outer=1, reduced=elements // operand, inner=operand)
        back.send(name, suffix, total, (incoming,), back.result.dtype)


@gradient(Reduce)
def _reduce(back: Backward, work: Reduce) -> None:
    x, incoming = back.op.inputs[0], back.gradient
    if work.function in ("max", "min"):
        back.give(x, _shared_by_equals(back, work))
        return
    if work.function == "l2":
        quotient = Elementwise(function="div", n_inputs=2, elements=back.result.elements)
        share = back.emit("share", quotient, (incoming, back.op.outputs[0]), back.result)
        whole = back.tensor(x)
        product = Elementwise(
            function="mul", n_inputs=2, elements=whole.elements, broadcast=True, in_place_ok=True
        )
        back.give(x, back.emit("gradient", product, (x, share), whole))
        return
    if work.function not in ("sum", "mean"):
        raise back.refusal()
    if work.function == "mean":
        incoming = _unary(back, "scale", incoming, "scaled")
    spread = Layout(function="expand", elements=back.tensor(x).elements, moves_data=False)
    back.send(x, "gradient", spread, (incoming,))


def _shared_by_equals(back: Backward, work: Reduce) -> str:
    """Return the gradient of a maximum: elements equal to it share it (TensorFlow's rule)."""
    whole, part = back.tensor(back.op.inputs[0]), back.result

    def spread(suffix: str, function: str, inputs: tuple[str, ...]) -> str:
        product = Elementwise(
            function=function, n_inputs=2, elements=whole.elements, broadcast=True, in_place_ok=True
        )
        return back.emit(suffix, product, inputs, whole)

    equal = spread("equal", "equal", (whole.name, part.name))
    count = back.emit("count", replace(work, function="sum"), (equal,), part)
    quotient = Elementwise(function="div", n_inputs=2, elements=part.elements)
    share = back.emit("share", quotient, (back.gradient, count), part)
    return spread("gradient", "mul", (equal, share))


@gradient(Layout)
def _layout(back: Backward, layout: Layout) -> None:
    source = back.tensor(back.op.inputs[0]).elements
    repeats = layout.function == "resize" and back.result.elements % source == 0
    if layout.function in SUMS_BACK or repeats:
        _give_summed(back, back.op.inputs[0], back.gradient, "gradient")
        return
    if layout.function == "resize":
        raise back.refusal()
    present = tuple(name for name in back.incoming if name is not None)
    arriving = sum(back.elements(name) for name in present)
    for index, name in enumerate(back.op.inputs):
        elements = back.tensor(name).elements
        smaller = arriving < elements
        if layout.function in VIEWS_BACK:
            answer = Layout(function="slice", elements=elements, moves_data=False)
        elif len(back.op.outputs) > 1 or smaller:
            # Slices and splits: the parts are put together, the rest is zero.
            function = "pad" if smaller else "concat"
            answer = Layout(function=function, elements=elements, moves_data=True)
        else:
            answer = replace(layout, elements=elements)
        suffix = f"gradient{index}" if len(back.op.inputs) > 1 else "gradient"
        back.send(name, suffix, answer, present)
