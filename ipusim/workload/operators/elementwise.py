"""Functions applied element by element, and conversions between element types.

Gradients of elementwise functions, reductions and layouts stand here, as they are made of one
another.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import repeat

from ipusim.workload.operators.base import Attributes, Tensor
from ipusim.workload.operators.gradient import Backward, gradient
from ipusim.workload.operators.layout import Layout
from ipusim.workload.operators.reduce import Reduce

Steps = tuple[str, ...]
"""What is computed in turn, each "function result operands": ``dy`` is the incoming gradient, ``y``
the result of the forward operator, ``a`` and ``b`` its first two operands, ``own`` the one whose
gradient this is, any other name what a step before wrote. The last writes the gradient."""

UNCHANGED: Steps = ()
"""The incoming gradient as it is."""

_OF_RESULTS = "relu sigmoid tanh sqrt rsqrt reciprocal elu leaky_relu selu celu"
_OF_OPERANDS = (
    "abs cos erf gelu hard_sigmoid hard_swish log softplus mish swish softsign thresholded_relu"
)
"""Functions of one operand whose gradient reads the result, or the operand again."""

DROPOUTS = ("dropout", "seeded_dropout")
"""Draw from the seed of the step, or from one made for each."""

_QUOTIENT = "div quotient dy b"

GRADIENTS: dict[str, Iterable[Steps | None]] = {
    "bias_add": (UNCHANGED, UNCHANGED),
    **dict.fromkeys(("add", "sum", "mean", "scaled_add"), repeat(UNCHANGED)),
    "sub": (UNCHANGED, ("neg negative dy",)),
    "mul": (("mul product0 dy b",), ("mul product1 dy a",)),
    "div": ((_QUOTIENT,), (_QUOTIENT, "mul product quotient y", "neg negative product")),
    "mod": (UNCHANGED, None),
    "pow": (
        ("pow_grad gradient dy a",),
        ("mul power dy y", "log logarithm a", "mul product power logarithm"),
    ),
    "prelu": (("prelu_grad gradient dy a b",), ("mul product dy a",)),
    "max": repeat(("max_grad part{place} dy own y",)),
    "min": repeat(("min_grad part{place} dy own y",)),
    "select": (None, ("select part0 dy a",), ("select part1 dy a",)),
    "clip": (("clip_grad gradient dy a",), None, None),
    "sin": (("cos cosine a", "mul gradient dy cosine"),),
    "exp": (("mul gradient dy y",),),
    "tan": (("tanh_grad gradient dy y",),),  # 1 + y^2 in the place of 1 - y^2
    "square": (("mul gradient dy a",),),
    "neg": (("neg gradient dy",),),
    "scale": (("scale gradient dy",),),
    **dict.fromkeys(DROPOUTS, (("dropout gradient dy",),)),
    **dict.fromkeys(("floor", "ceil", "round", "sign", "random"), (None,)),
    **{name: ((f"{name}_grad gradient dy y",),) for name in _OF_RESULTS.split()},
    **{name: ((f"{name}_grad gradient dy a",),) for name in _OF_OPERANDS.split()},
}
"""Steps to the gradient of each operand of a function; None where nothing is sent back.

An operand that no step reads is not kept for the backward pass.
"""

OF_CONSTANTS = {name: ((f"{name} gradient dy",),) for name in ("mul", "div", "select")}
"""Those of a function of two operands that is given one tensor, and a constant for the other."""

REDUCTIONS: dict[str, Steps] = {
    "sum": ("expand gradient dy",),
    "mean": ("scale scaled dy", "expand gradient scaled"),
    "logsum": ("exp sum y", "div share dy sum", "expand gradient share"),
    "l1": ("abs_grad gradient a dy",),
    "l2": ("div share dy y", "mul gradient a share"),
    "sumsquare": ("mul gradient a dy",),
    "logsumexp": ("sub difference a y", "exp share difference", "mul gradient share dy"),
    "prod": ("mul product dy y", "reciprocal inverse a", "mul gradient inverse product"),
    # Elements equal to the extremum share its gradient (TensorFlow's rule).
    **dict.fromkeys(
        ("max", "min"),
        ("equal equal a y", "count count equal", "div share dy count", "mul gradient equal share"),
    ),
}
"""Steps to the gradient of what a reduction read.

Its result is repeated where it meets elements; "expand" does nothing else, "count" adds up over the
same axes.
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
    shares = OF_CONSTANTS.get(function) if len(operands) == 1 else None
    shares = shares or GRADIENTS.get(function)
    if shares is None or (isinstance(shares, tuple) and len(shares) < len(operands)):
        raise back.refusal()
    known = {
        "dy": back.gradient,
        "y": back.op.outputs[0],
        **dict(zip("ab", operands, strict=False)),
    }
    for place, (name, steps) in enumerate(zip(operands, shares, strict=False)):
        if steps is not None and back.wants(name):
            steps = tuple(step.format(place=place) for step in steps)
            known["own"] = name
            share = _compute(back, steps, known)
            suffix = "bias_gradient" if function == "bias_add" else f"gradient{place}"
            _give_summed(back, name, share, suffix)


@gradient.register
def _reduce(work: Reduce, back: Backward) -> None:
    (x,) = back.op.inputs
    if work.function not in REDUCTIONS:
        raise back.refusal()
    known = {"dy": back.gradient, "y": back.op.outputs[0], "a": x}
    back.give(x, _compute(back, REDUCTIONS[work.function], known))


def _compute(back: Backward, steps: Steps, known: dict[str, str]) -> str:
    """Add the operators of steps that are not known yet; return what the last one writes."""
    result = "dy"
    for step in steps:
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
