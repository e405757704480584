"""Which vertices compute an elementwise function of a graph.

Three kinds: functions with a vertex of their own, those that a framework writes as a series of
popops operations, and expressions that popops::map turns into one generated vertex (poplibs
lib/popops/ExpressionGenerator.cpp, tag sdk/poplar/2.4.0). Gradients take the incoming gradient
first, then what the forward pass kept.
"""

from ipusim.compiler.tiles import CODELET_VERSIONS
from ipusim.compiler.vertices import tables
from ipusim.compiler.vertices.elementwise import (
    binary_functions,
    canonical_function,
    unary_functions,
)
from ipusim.compiler.vertices.training import Expression
from ipusim.errors import unknown_name

COMPOSED: dict[str, tuple[str, ...]] = {
    "leaky_relu": ("mul", "max"),
    "prelu": ("mul", "max"),
    "clip": ("max", "min"),
    "elu": ("exp", "sub", "max"),
    "selu": ("exp", "sub", "max", "mul"),
    "celu": ("exp", "sub", "max"),
    "softplus": ("exp", "add", "log"),
    "softsign": ("abs", "add", "div"),
    "hard_sigmoid": ("mul", "max", "min"),
    "hard_swish": ("add", "max", "min", "mul"),
    "mish": ("exp", "add", "log", "tanh", "mul"),
    "mean": ("add", "mul"),
    "mod": ("div", "floor", "mul", "sub"),
    "scale": ("mul",),
    "scaled_add": ("mul", "add"),  # where it broadcasts; otherwise it has a vertex
    "reciprocal": ("inverse",),
    "thresholded_relu": ("greater", "mul"),
    "exp_grad": ("mul",),
    "log_grad": ("div",),
    "neg_grad": ("neg",),
}
"""Functions without a vertex of their own: the popops operations that compute them."""

_EARLY: dict[str, tuple[str, ...]] = {"swish": ("sigmoid", "mul")}
"""Series that stand for vertices which only later versions have."""

EXPRESSIONS: dict[str, Expression] = {
    # |x| <= limit, cast, slope, gradient: lib/popnn/HardSigmoid.cpp.
    "hard_sigmoid_grad": Expression(operations=5),
    # x / 3 + 1 / 2 between two compares with their selections, then the gradient.
    "hard_swish_grad": Expression(operations=7),
    # s + y (1 - s) and the gradient, where there is no vertex for it.
    "swish_grad": Expression(operations=5, slow=("sigmoid",)),
    "leaky_relu_grad": Expression(operations=3),  # compare, select the slope, multiply
    "prelu_grad": Expression(operations=3, tensors=3),
    "thresholded_relu_grad": Expression(operations=3),
    "elu_grad": Expression(operations=4),  # y + alpha where x is negative
    "selu_grad": Expression(operations=5),
    "celu_grad": Expression(operations=5),
    "clip_grad": Expression(operations=4),  # two compares, and, multiply
    "abs_grad": Expression(operations=2),  # sign, multiply
    "sqrt_grad": Expression(operations=2, slow=("div",)),  # half, divide by the root
    "rsqrt_grad": Expression(operations=4),
    "square_grad": Expression(operations=2),
    "reciprocal_grad": Expression(operations=3),
    "erf_grad": Expression(
        operations=5, slow=("exp",)
    ),  # exp of the negated square, factor, gradient
    "cos_grad": Expression(operations=3, slow=("sin",)),  # sine, negate, multiply
    "softplus_grad": Expression(operations=2, slow=("sigmoid",)),
    "softsign_grad": Expression(operations=4, slow=("div",)),
    "mish_grad": Expression(operations=11, slow=("exp", "log", "tanh", "sigmoid")),
    "pow_grad": Expression(operations=3, slow=("pow",)),
    "max_grad": Expression(operations=3, tensors=3),  # compare, cast, multiply
    "min_grad": Expression(operations=3, tensors=3),
    "div_grad": Expression(operations=4, tensors=3, slow=("div",)),  # gradient of the divisor
}
"""Gradients that popops::map computes in one generated vertex, as operators and inputs."""

COMPARISONS = frozenset(
    {
        *("equal", "not_equal", "less", "less_or_equal", "greater", "greater_or_equal"),
        *("and", "or", "xor", "not", "is_nan", "is_inf", "select"),
    }
)
"""Comparisons, logic and selection; all are charged one compare per element."""

RANDOM = frozenset({"dropout", "seeded_dropout"})
"""Functions that draw random numbers."""

RUNNING_MEANS = frozenset({"running_mean", "counted_running_mean"})
"""Functions that take gradients into their mean so far."""

FALLBACK = "equal"
"""Vertex that stands for comparisons, logic and selection: one compare per element."""


def gradient_functions(version: str) -> list[str]:
    """Return the gradients that have a popnn vertex in a version."""
    return sorted(f"{name}_grad" for name in tables.NON_LINEARITY_GRAD[version])


def known_functions(version: str) -> list[str]:
    """Return every function name that can be lowered."""
    names = {*COMPOSED, *EXPRESSIONS, *COMPARISONS, *RANDOM, "bias_add"}
    names.update(unary_functions(version), binary_functions(version))
    names.update(gradient_functions(version), _EARLY, tables.SYNONYMS)
    return sorted(names)


def vertices_of(function: str, version: str) -> tuple[str, ...]:
    """Return the functions with a vertex each that compute a function, in order.

    A comparison, or a step that only a later version of the estimators has, becomes one compare.
    """
    known = (*unary_functions(version), *binary_functions(version))
    canonical = canonical_function(function)
    if canonical in known:
        return (canonical,)
    parts = COMPOSED.get(function) or _EARLY.get(canonical)
    if parts:
        return tuple(part if part in known else FALLBACK for part in parts)
    if canonical in COMPARISONS or canonical in unary_functions(CODELET_VERSIONS[-1]):
        return (FALLBACK,)
    raise unknown_name("elementwise function", function, known_functions(version))
