"""Functions applied element by element, and conversions between element types.

Gradients of elementwise functions, reductions and layouts stand here, as they are made of one
another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ipusim.errors import WorkloadError
from ipusim.workload.operators.base import Attributes, Op, Sizes
from ipusim.workload.operators.gradient import Backward, gradient
from ipusim.workload.operators.layout import Layout
from ipusim.workload.operators.reduce import Reduce

_NAMED_OUTPUT = "relu sigmoid tanh sqrt rsqrt reciprocal elu leaky_relu selu celu"
_NAMED_INPUT = (
    "abs clip cos erf gelu hard_sigmoid hard_swish log softplus mish swish softsign "
    "thresholded_relu"
)
FROM_OUTPUT = {
    **{name: f"{name}_grad" for name in _NAMED_OUTPUT.split()},
    "exp": "mul",
    "tan": "tanh_grad",  # 1 + y^2 in the place of 1 - y^2
}
"""Functions whose gradient is one of the incoming gradient and the result, so no input is kept."""

FROM_INPUT = {**{name: f"{name}_grad" for name in _NAMED_INPUT.split()}, "square": "mul"}
"""Functions whose gradient is one of the incoming gradient and the input."""

LINEAR = {"dropout": "dropout", "seeded_dropout": "dropout", "neg": "neg", "scale": "scale"}
"""Functions of one operand with the function of the incoming gradient that is sent back."""

STEPS = ("floor", "ceil", "round", "sign")
"""Functions that are flat wherever they have a slope: nothing is sent back."""

VIEWS_BACK = ("concat", "pad")
"""Layouts that need new memory, whose gradient is a view of the incoming one."""

SUMS_BACK = ("expand", "tile")
"""Layouts that repeat elements, whose gradient sums the repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise(Attributes):
    """One function applied element by element; ``elements`` is the size of the output.

    ``function`` is a lower-case name: "relu", "add", "bias_add" (a per-channel parameter added
    to a convolution or matrix product), "mul", ... ``broadcast`` says that some input is smaller
    than the output. ``in_place_ok`` says that the first input has the output's shape and type and
    is not a parameter, so that its memory may be reused if nobody else reads it.
    """

    KIND: ClassVar[str] = "elementwise"
    VARIANT: ClassVar[str] = "function"
    POSITIVE: ClassVar = ("n_inputs",)

    function: str
    n_inputs: int
    elements: int
    broadcast: bool = False
    in_place_ok: bool = False

    @classmethod
    def in_place(
        cls, function: str, elements: int, n_inputs: int = 2, *, broadcast: bool = False
    ) -> Elementwise:
        """Return a function whose result may take the memory of its first operand."""
        return cls(
            function=function,
            n_inputs=n_inputs,
            elements=elements,
            broadcast=broadcast,
            in_place_ok=True,
        )

    def sizes(self, op: Op) -> Sizes:
        """Elements of the result."""
        if self.n_inputs != len(op.inputs):
            raise WorkloadError(
                f"Operator {op.name!r} declares {self.n_inputs} inputs but reads {len(op.inputs)}."
            )
        return ((op.outputs[0], self.elements),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast(Attributes):
    """Conversion of ``elements`` elements to the type ``to``."""

    KIND: ClassVar[str] = "cast"

    to: str
    elements: int


@gradient(Cast)
def _cast(back: Backward, _cast: Cast) -> None:
    (x,) = back.op.inputs
    tensor = back.tensor(x)
    back.send(x, "gradient", Cast(to=tensor.dtype, elements=tensor.elements), (back.gradient,))


@gradient(Elementwise)
def _elementwise(back: Backward, work: Elementwise) -> None:
    function, (x, *others) = work.function, back.op.inputs
    if function == "bias_add":
        back.give(x, back.gradient)
        _give_summed(back, others[0], back.gradient, "bias_gradient")
    elif function in ("add", "sum", "mean", "scaled_add"):
        for index, name in enumerate(back.op.inputs):
            _give_summed(back, name, back.gradient, f"gradient{index}")
    elif function == "sub":
        _give_summed(back, x, back.gradient, "gradient0")
        if others and back.wants(others[0]):
            _give_negative(back, others[0], back.gradient)
    elif function == "mul" and len(others) == 1:
        for index, (name, other) in enumerate(((x, others[0]), (others[0], x))):
            if back.wants(name):
                product = _combine(back, f"product{index}", "mul", back.gradient, other)
                _give_summed(back, name, product, f"gradient{index}")
    elif function == "div" and others:
        quotient = _combine(back, "quotient", "div", back.gradient, others[0])
        _give_summed(back, x, quotient, "gradient0")
        if back.wants(others[0]):
            product = _combine(back, "product", "mul", quotient, back.op.outputs[0])
            _give_negative(back, others[0], product)
    elif function == "pow":
        back.give(x, _combine(back, "gradient", "pow_grad", back.gradient, x))
        if others and back.wants(others[0]):
            power = _combine(back, "power", "mul", back.gradient, back.op.outputs[0])
            logarithm = _combine(back, "logarithm", "log", x)
            product = _combine(back, "product", "mul", power, logarithm)
            _give_summed(back, others[0], product, "gradient1")
    elif function == "sin":
        cosine = _combine(back, "cosine", "cos", x)
        back.give(x, _combine(back, "gradient", "mul", back.gradient, cosine))
    elif function == "prelu":
        slope = Elementwise(
            function="prelu_grad", n_inputs=3, elements=back.result.elements, broadcast=True
        )
        back.give(x, back.emit("gradient", slope, (back.gradient, x, others[0]), back.result))
        if back.wants(others[0]):
            product = _combine(back, "product", "mul", back.gradient, x)
            _give_summed(back, others[0], product, "gradient1")
    elif function == "mod":
        back.give(x, back.gradient)
    elif function in STEPS:
        return
    elif function in ("max", "min") and others:
        _compared(back, function)
    elif function == "select":
        _selected(back)
    elif function in LINEAR or (function == "mul" and not others):
        function = LINEAR.get(function, function)
        back.give(x, _combine(back, "gradient", function, back.gradient))
    elif function in FROM_OUTPUT:
        (kept,), function = back.op.outputs, FROM_OUTPUT[function]
        back.give(x, _combine(back, "gradient", function, back.gradient, kept))
    elif function in FROM_INPUT:
        back.give(x, _combine(back, "gradient", FROM_INPUT[function], back.gradient, x))
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
        back.give(condition, _combine(back, "gradient", "select", back.gradient))
    for index, name in enumerate(chosen):
        if back.wants(name):
            part = _combine(back, f"part{index}", "select", back.gradient, condition)
            _give_summed(back, name, part, f"gradient{index}")


def _combine(back: Backward, suffix: str, function: str, first: str, *others: str) -> str:
    """Apply a function to a tensor of the size of the result, and to others that may be smaller."""
    elements = back.result.elements
    smaller = any(back.elements(other) != elements for other in others)
    work = Elementwise.in_place(function, elements, 1 + len(others), broadcast=smaller)
    return back.emit(suffix, work, (first, *others), back.result)


def _give_negative(back: Backward, name: str, incoming: str) -> None:
    negative = _combine(back, "negative", "neg", incoming)
    _give_summed(back, name, negative, "gradient1")


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
    y, rule = back.op.outputs[0], _OVER_ELEMENTS.get(work.function)
    if rule is not None:
        back.give(x, rule(back, x, y))
        return
    if work.function not in ("sum", "mean", "logsum"):
        raise back.refusal()
    if work.function == "mean":
        incoming = _combine(back, "scaled", "scale", incoming)
    if work.function == "logsum":
        total = _combine(back, "sum", "exp", y)
        incoming = _narrow(back, "share", "div", incoming, total)
    spread = Layout(function="expand", elements=back.tensor(x).elements, moves_data=False)
    back.send(x, "gradient", spread, (incoming,))


def _narrow(back: Backward, suffix: str, function: str, *inputs: str) -> str:
    """Combine tensors of the size of the result of a reduction."""
    work = Elementwise(function=function, n_inputs=2, elements=back.result.elements)
    return back.emit(suffix, work, inputs, back.result)


def _wide(back: Backward, suffix: str, function: str, *inputs: str) -> str:
    """Combine tensors over all elements that a reduction read; its results repeat."""
    whole = back.tensor(back.op.inputs[0])
    count = len(inputs)
    work = Elementwise.in_place(function, whole.elements, count, broadcast=count > 1)
    return back.emit(suffix, work, inputs, whole)


def _of_length(back: Backward, x: str, y: str) -> str:
    return _wide(back, "gradient", "mul", x, _narrow(back, "share", "div", back.gradient, y))


def _of_exponentials(back: Backward, x: str, y: str) -> str:
    share = _wide(back, "share", "exp", _wide(back, "difference", "sub", x, y))
    return _wide(back, "gradient", "mul", share, back.gradient)


def _of_product(back: Backward, x: str, y: str) -> str:
    product = _narrow(back, "product", "mul", back.gradient, y)
    inverse = _wide(back, "inverse", "reciprocal", x)
    return _wide(back, "gradient", "mul", inverse, product)


_OVER_ELEMENTS = {
    "l1": lambda back, x, _: _wide(back, "gradient", "abs_grad", x, back.gradient),
    "l2": _of_length,
    "sumsquare": lambda back, x, _: _wide(back, "gradient", "mul", x, back.gradient),
    "logsumexp": _of_exponentials,
    "prod": _of_product,
}
"""Reductions whose gradient differs from element to element."""


def _shared_by_equals(back: Backward, work: Reduce) -> str:
    """Return the gradient of a maximum: elements equal to it share it (TensorFlow's rule)."""
    part = back.result
    equal = _wide(back, "equal", "equal", back.op.inputs[0], part.name)
    count = back.emit("count", replace(work, function="sum"), (equal,), part)
    share = _narrow(back, "share", "div", back.gradient, count)
    return _wide(back, "gradient", "mul", equal, share)


@gradient(Layout)
def _layout(back: Backward, layout: Layout) -> None:
    source = back.tensor(back.op.inputs[0]).elements
    repeats = layout.function == "resize" and back.result.elements % source == 0
    if layout.function in SUMS_BACK or repeats:
        _give_summed(back, back.op.inputs[0], back.gradient, "gradient")
        return
    if layout.function == "resize":
        _resized(back, source)
        return
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


def _resized(back: Backward, source: int) -> None:
    """Sum what went to several places: as often as the result is larger, rounded up."""
    arriving, times = back.gradient, -(-back.result.elements // source)
    if back.result.elements % source:
        filled = Layout(function="pad", elements=times * source, moves_data=True)
        like = replace(back.result, shape=(times, source))
        arriving = back.emit("filled", filled, (arriving,), like)
    total = Reduce(function="sum", outer=1, reduced=times, inner=source)
    back.send(back.op.inputs[0], "gradient", total, (arriving,), back.result.dtype)
