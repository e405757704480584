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


def test_a_selection_takes_five_cycles_an_element():
    """Poplibs lib/popops/popopsCycleEstimators.cpp, Select: a vertex for each worker."""
    matrix = (1472, 64)
    (step,) = steps("select", matrix, matrix, matrix)
    # 16 vectors of 4 halves for six workers: 12 elements.
    assert step.vertex.startswith("popops::Select")
    assert (step.compute_cycles, step.copy_cycles) == (6 * (5 + 6 + 5 * 12), 0)
    # What constants are chosen from lies with the elements.
    (alone,) = steps("select", matrix)
    assert (alone.compute_cycles, alone.exchange_bytes) == (step.compute_cycles, 0)
    # An operand of fewer elements is written out to full size: each half by itself.
    (written,) = steps("select", matrix, matrix, (1,))
    assert written.compute_cycles == step.compute_cycles
    assert written.copy_cycles == 64 * 2 * 5 // (4 * 2)
