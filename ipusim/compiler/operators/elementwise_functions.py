"""Which vertices compute an elementwise function of a graph.

Three kinds: functions with a vertex of their own, those that a framework writes as a series of
popops operations, and expressions that popops::map turns into one generated vertex (poplibs
lib/popops/ExpressionGenerator.cpp, tag sdk/poplar/2.4.0). Gradients take the incoming gradient
first, then what the forward pass kept.
elementwise_functions.csv has the latter two, with a note of what some of them compute.
"""

from pathlib import Path

from ipusim.compiler.eras import ERA_2_4
from ipusim.compiler.vertices import tables
from ipusim.compiler.vertices.elementwise import WHOLE, vertex_of
from ipusim.compiler.vertices.training import Expression
from ipusim.errors import unknown_name
from ipusim.files import read_records
from ipusim.workload.operators.elementwise import DROPOUTS

_LINES = read_records(Path(__file__).with_suffix(".csv"))

COMPOSED: dict[str, tuple[str, ...]] = {
    line["function"]: tuple(line["series"].split()) for line in _LINES if line["series"]
}
"""The popops operations that compute each function without a vertex of its own or of this name, at
least in early eras. Comparisons and logic are charged one compare per element.
"""

EXPRESSIONS: dict[str, Expression] = {
    line["function"]: Expression(
        operations=int(line["operations"]),
        tensors=int(line["tensors"]),
        slow=tuple(line["slow"].split()),
    )
    for line in _LINES
    if line["operations"]
}
"""Gradients that popops::map computes, each with its generated vertex."""

RANDOM = frozenset({*DROPOUTS, "random"})
"""Functions that draw random numbers."""

RUNNING_MEANS = frozenset({"running_mean", "counted_running_mean"})
"""Functions that update a running mean of gradients."""

FALLBACK = "equal"
"""Function whose cycles are charged for one that only later eras have: a compare."""


def gradient_functions(era: int) -> list[str]:
    """Return the gradients that have a popnn vertex in an era."""
    return sorted(f"{name}_grad" for name in tables.NON_LINEARITY_GRAD[era])


def known_functions(era: int) -> list[str]:
    """Return every function name that can be lowered."""
    names = {*COMPOSED, *EXPRESSIONS, *RANDOM, *gradient_functions(era)}
    names.update(tables.NON_LINEARITY[era])
    return sorted(names.union(*(tables.LOOPS[vertex][era] for vertex in WHOLE)))


def vertices_of(function: str, era: int) -> tuple[str, ...]:
    """Return the functions with a vertex each that compute a function, in order.

    A step that only later estimators have becomes one compare.
    """
    if vertex_of(function, era):
        return (function,)
    if function in COMPOSED:
        return tuple(part for one in COMPOSED[function] for part in vertices_of(one, era))
    if vertex_of(function, ERA_2_4) == "UnaryOp1D":
        return (FALLBACK,)
    raise unknown_name("elementwise function", function, known_functions(era))
