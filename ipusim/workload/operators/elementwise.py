"""Functions applied element by element, and conversions between element types.

Gradients of elementwise functions, reductions and layouts stand here, as they are made of one
another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from ipusim.files import read_records
from ipusim.workload.operators.base import Attributes, Tensor
from ipusim.workload.operators.gradient import Backward, gradient
from ipusim.workload.operators.layout import Layout
from ipusim.workload.operators.reduce import Reduce

DROPOUTS = ("dropout", "seeded_dropout")
"""Draw from the seed of the step, or from one made for each."""

UNCHANGED, NOTHING = "dy", "nothing"
"""Steps where the incoming gradient goes on as it is, and where none does."""

GRADIENTS = {
    (line["of"], function, line["operand"]): line["steps"]
    for line in read_records(Path(__file__).with_name("gradients.csv"))
    for function in line["functions"].split()
}
"""Steps to the gradient of each operand of a function, and of what a reduction reads.

Operands are the first, "a", to the third, or "every" one; "alone" is that of a function of two
which is given one tensor, and a constant for the other. What is computed in turn is each "function
result operands": ``dy`` is the incoming gradient, ``y`` the result of the forward operator, ``a``
and ``b`` its first two operands, ``own`` the one whose gradient this is, any other name what a step
before wrote. The last writes the gradient. An operand that no step reads is not kept for the
backward pass. The result of a reduction is repeated where it meets elements; "expand" does nothing
else, "count" adds up over the same axes.
"""

VIEWS_BACK = ("concat", "pad")
"""Layouts that need new memory, whose gradient is a view of the incoming one."""

SUMS_BACK = ("expand", "tile", "resize")
"""Layouts that repeat elements, whose gradient sums the repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise(Attributes):
    """One function applied element by element.

    ``function`` is a lower-case name: "relu", "add", "bias_add" (a per-channel parameter added
    to a convolution or matrix product), "mul", ... ``broadcast`` says that some input is smaller
    than the output. ``in_place_ok`` says that the first input has the output's shape and type and
    is not a parameter, so that its memory may be reused if nobody else reads it.
    """

    function: str
    broadcast: bool = False
    in_place_ok: bool = False

    @classmethod
    @lru_cache(maxsize=256)
    def in_place(cls, function: str, *, broadcast: bool = False) -> Elementwise:
        """Return a function whose result may take the memory of its first operand."""
        return cls(function=function, broadcast=broadcast, in_place_ok=True)

    @classmethod
    def of(cls, function: str, shape: tuple[int, ...], dtype: str, *read: Tensor) -> Elementwise:
        """Return a function of tensors with a result of this shape and type."""
        alike = read[0].shape == shape and read[0].dtype == dtype
        return cls(
            function=function,
            broadcast=any(tensor.shape != shape for tensor in read),
            in_place_ok=alike and read[0].role not in ("parameter", "constant"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast(Attributes):
    """Conversion of every element to the type of the result."""


@gradient.register
def _cast(_cast: Cast, back: Backward) -> None:
    (x,) = back.op.inputs
    back.send(x, "gradient", Cast(), (back.gradient,))


@gradient.register
def _elementwise(work: Elementwise, back: Backward) -> None:
    function, operands = work.function, back.op.inputs
    known = {
        "dy": back.gradient,
        "y": back.op.outputs[0],
        **dict(zip("ab", operands, strict=False)),
    }
    for place, name in enumerate(operands):
        forms = ("alone" if len(operands) == 1 else "", "abc"[place : place + 1], "every")
        rows = (GRADIENTS.get(("elementwise", function, form)) for form in forms)
        steps = next(filter(None, rows), None)
        if steps is None:
            raise back.refusal()
        if steps != NOTHING and back.wants(name):
            known["own"] = name
            share = _compute(back, steps.format(function=function, place=place), known)
            suffix = "bias_gradient" if function == "bias_add" else f"gradient{place}"
            _give_summed(back, name, share, suffix)


@gradient.register
def _reduce(work: Reduce, back: Backward) -> None:
    (x,) = back.op.inputs
    steps = GRADIENTS.get(("reduce", work.function, "a"))
    if steps is None:
        raise back.refusal()
    back.give(x, _compute(back, steps, {"dy": back.gradient, "y": back.op.outputs[0], "a": x}))


def _compute(back: Backward, steps: str, known: dict[str, str]) -> str:
    """Add the operators of steps that are not known yet; return what the last one writes."""
    result = "dy"
    for step in () if steps == UNCHANGED else steps.split("; "):
        function, result, *operands = step.split()
        if result not in known:
            if not known.keys() >= set(operands):
                raise back.refusal()
            known[result] = _apply(back, result, function, *(known[name] for name in operands))
    return known[result]


def _apply(back: Backward, suffix: str, function: str, first: str, *others: str) -> str:
    """Add one operator with a result of the size of its first operand; others may be smaller."""
    like, params = back.tensor(first), back.op.params
    if function == "expand":
        like = back.tensor(back.op.inputs[0])
        work = Layout.view(function)
    elif function == "count":
        like, work = back.result, replace(params, function="sum")
    else:
        largest = max(back.tensor(name).elements for name in back.op.inputs)
        work = Elementwise(
            function=function,
            broadcast=any(back.tensor(other).elements != like.elements for other in others),
            # Two results of a reduction make a new tensor.
            in_place_ok=not others or (len(others) == 1 and like.elements >= largest),
        )
    return back.emit(suffix, work, (first, *others), like)


def _give_summed(back: Backward, name: str, incoming: str, suffix: str) -> None:
    """Send a gradient to an operand that may have been broadcast: sum what it shares."""
    operand, elements = back.tensor(name).elements, back.tensor(incoming).elements
    if operand == elements:
        back.give(name, incoming)
    else:
        # The operand's elements are taken to lie innermost, as channels do in every layout of the
        # IPU.
        total = Reduce(function="sum", outer=1, reduced=elements // operand, inner=operand)
        back.send(name, suffix, total, (incoming,), back.result.dtype)


@gradient.register
def _layout(layout: Layout, back: Backward) -> None:
    if layout.function in SUMS_BACK:
        _give_summed(back, back.op.inputs[0], _filled(back), "gradient")
        return
    present = tuple(name for name in back.incoming if name is not None)
    arriving = sum(back.tensor(name).elements for name in present)
    for index, name in enumerate(back.op.inputs):
        smaller = arriving < back.tensor(name).elements
        if layout.function in VIEWS_BACK:
            answer = Layout.view("slice")
        elif len(back.op.outputs) > 1 or smaller:
            # Slices and splits: the parts are put together, the rest is zero.
            function = "pad" if smaller else "concat"
            answer = Layout.move(function)
        else:
            answer = layout
        suffix = f"gradient{index}" if len(back.op.inputs) > 1 else "gradient"
        back.send(name, suffix, answer, present)


def _filled(back: Backward) -> str:
    """Return the gradient of what repeats elements, zeros behind it to as many of each."""
    source = back.tensor(back.op.inputs[0]).elements
    times = -(-back.result.elements // source)
    if times * source == back.result.elements:
        return back.gradient
    like = replace(back.result, shape=(times, source))
    return back.emit("filled", Layout.move("pad"), (back.gradient,), like)
