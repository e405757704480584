"""Elementwise operations: which vertex runs for operands of which shapes."""

from ipusim.compiler.lower import lower
from ipusim.compiler.stacks import load_stack
from ipusim.machine import load_chip
from ipusim.workload.layers import GraphBuilder

CHIP = load_chip("GC200")
STACK = load_stack("sdk-2.4")


def steps(function, *shapes):
    """Return the supersteps of a function of float16 inputs."""
    g = GraphBuilder("inputs")
    inputs = [g.input(f"x{index}", shape) for index, shape in enumerate(shapes)]
    graph = g.finish(g.elementwise("y", function, *inputs)).with_precision("16.16")
    (op,) = [op for op in lower(graph, CHIP, STACK, host_dtype=None).ops if op.name == "y"]
    return op.steps


def test_a_column_meets_the_rows_of_a_matrix():
    """Poplibs lib/popops/ElementWise.cpp, binaryOpBroadcastOuterVector."""
    (step,) = steps("mul", (1472, 64), (1472, 1))
    assert step.vertex == "popops::BroadcastVectorOuter"
    # A row on each tile and one value for it; a worker takes three vectors.
    assert step.exchange_bytes == 2
    assert step.compute_cycles == 11 + 6 * (15 + 7 + 2 * 3)


def test_a_row_meets_a_matrix_and_a_number_a_column():
    (step,) = steps("mul", (1472, 64), (64,))
    assert step.vertex.startswith("popops::BroadcastVectorInner1D")
    (step,) = steps("mul", (1472, 1), (1,))
    assert step.vertex.startswith("popops::BroadcastScalar1D")
