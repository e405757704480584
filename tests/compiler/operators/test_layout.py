"""Changes of shape, order and type: views, and what the rounds of a loop slice and carry."""

import pytest
from emitting import MK2

from ipusim.compiler.lower import lower
from ipusim.compiler.stacks import load_stack
from ipusim.compiler.tiles import rearranged_copy_cycles
from ipusim.workload.graph import Cast, Graph, Layout, Op, Tensor
from ipusim.workload.layers import GraphBuilder

SHARE = 96
"""Elements of a row on a tile: four vectors of 64 bits for each worker."""


def _steps(function, rows=1):
    """Supersteps of what moves one row of several."""
    return _lowered(Layout.move(function), rows if function == "dynamic_slice" else 1)


def _lowered(params, rows=1, dtypes=("float16", "float16")):
    """Supersteps of one operation, from rows of one type to a row of another."""
    named = zip("xy", (rows, 1), dtypes, ("input", "output"), strict=True)
    tensors = {
        name: Tensor(name=name, shape=(n, MK2.tiles, SHARE), dtype=dtype, role=role)
        for name, n, dtype, role in named
    }
    op = Op(name="it", params=params, inputs=("x",), outputs=("y",))
    graph = Graph(name="alone", tensors=tensors, ops=(op,), inputs=("x",), outputs=("y",))
    (lowered,) = lower(graph.validate(), MK2, load_stack("sdk-2.4"), host_dtype=None).ops
    return lowered.steps


@pytest.mark.parametrize(
    ("function", "vertex"),
    [("dynamic_slice", "DynamicSlice1D"), ("dynamic_update", "DynamicUpdateSlice1D")],
)
@pytest.mark.parametrize("rows", [2, 50])
def test_the_row_of_a_round_is_read_and_written_where_it_lies(function, vertex, rows):
    (step,) = _steps(function, rows)
    assert step.vertex == f"popops::{vertex}"
    assert step.compute_cycles == 25 + 6 * (35 + 24 + 2 * 4)
    # All tiles wait for the number of the round.
    assert step.exchange_bytes == 4


def test_what_a_round_carries_on_is_copied_twice():
    aside, on = _steps("carry", 1)
    assert (aside.exchange_bytes, on.exchange_bytes) == (0, 2 * SHARE)
    assert aside.copy_cycles >= 2 * SHARE // MK2.memcpy_bytes_per_cycle
    assert aside.temp_bytes == 2 * SHARE


@pytest.mark.parametrize(
    ("function", "moved"),
    [("transpose", 0), ("concat", 0), ("pad", 2 * SHARE), ("copy", 2 * SHARE)],
)
def test_what_poplar_views_moves_nothing(function, moved):
    """What reads a transpose or the parts of a whole rearranges them (PopART transposex.cpp)."""
    assert sum(step.exchange_bytes for step in _steps(function)) == moved


def test_rows_that_sit_together_are_spread_element_by_element():
    g = GraphBuilder("spread")
    x = g.matmul("product", g.input("x", (512, 256)), g.parameter("w", (256, 1024)))
    graph = g.finish(g.copy("spread", x)).with_precision("16.16")
    program = lower(graph.validate(), MK2, load_stack("sdk-2.4"), host_dtype=None)
    (step,) = program.ops[-1].steps
    assert step.copy_cycles == rearranged_copy_cycles(step.exchange_bytes, 2, MK2) > 0


@pytest.mark.parametrize(
    ("source", "target", "converts"),
    [
        ("int32", "float32", True),  # as wide, but another kind of number
        ("float16", "float32", True),
        ("int64", "float32", True),
        ("int64", "int32", False),  # of 32 bits on the chip
        ("float32", "float32", False),
        ("bool", "int32", True),
    ],
)
def test_numbers_of_another_kind_or_width_are_converted(source, target, converts):
    steps = _lowered(Cast(), dtypes=(source, target))
    assert [step.vertex for step in steps] == ["popops::Cast1D"] * converts
