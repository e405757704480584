"""Elementwise operations: which vertex runs for operands of which shapes."""

import pytest

from ipusim.compiler.emitter import TensorLayout
from ipusim.compiler.lower import lower
from ipusim.compiler.stacks import load_stack
from ipusim.compiler.tiles import rearranged_copy_cycles
from ipusim.compiler.vertices.elementwise import regrouping
from ipusim.machine import load_chip
from ipusim.workload.layers import GraphBuilder

CHIP = load_chip("GC200")
STACK = load_stack("sdk-2.4")


def steps(function, *shapes, layouts=(), stack=STACK, kept=False):
    """Return the supersteps of a function of float16 inputs, which have layouts, or none.

    The host gets inputs that are `kept`, too, so that the result overwrites none.
    """
    g = GraphBuilder("inputs")
    inputs = [g.input(f"x{index}", shape) for index, shape in enumerate(shapes)]
    graph = g.finish(g.elementwise("y", function, *inputs), *inputs * kept).with_precision("16.16")
    placed = {f"x{index}": layout for index, layout in enumerate(layouts)}
    program = lower(graph, CHIP, stack, host_dtype=None, layouts=placed)
    (op,) = [op for op in program.ops if op.name == "y"]
    return op.steps


COLUMNS, ROWS = TensorLayout(mapping=0), TensorLayout(mapping=1, rows=True)
"""Neighbours along columns, or along rows, sit together in groups of 16."""


@pytest.mark.parametrize("layouts", [(COLUMNS, ROWS), (ROWS, COLUMNS)])
def test_an_operand_whose_neighbours_are_others_is_regrouped(layouts):
    """Poplibs lib/popops/ElementWise.cpp, binaryOpGeneral, from tag sdk/poplar/2.4.0 on."""
    matrix = (1472, 64)
    regroup, add = steps("add", matrix, matrix, layouts=layouts)
    blocks = regrouping(1472 * 64, 16, 16, "float16", CHIP)
    assert (regroup.exchange_bytes, regroup.compute_cycles) == blocks
    assert (add.exchange_bytes, add.copy_cycles) == (128, 0)
    # Before, it came element by element; so do rows that are no whole groups, and what is chosen.
    (early,) = steps("add", matrix, matrix, layouts=layouts, stack=load_stack("sdk-2.0"))
    (chosen,) = steps("select", matrix, matrix, matrix, layouts=(*layouts, layouts[0]))
    for step in (early, chosen):
        copies = rearranged_copy_cycles(128, 2, CHIP)
        assert (step.exchange_bytes, step.copy_cycles) == (128, copies)
    (odd,) = steps("add", (1471, 64), (1471, 64), layouts=layouts)
    assert odd.copy_cycles > 0


@pytest.mark.parametrize(("grouping", "copies"), [(16, 0), (8, 128 * 451 // 1024 - 32)])
def test_an_operand_whose_neighbours_are_the_same_only_moves(grouping, copies):
    matrix = (1472, 64)
    elsewhere = COLUMNS._replace(mapping=1, grouping=grouping)
    (add,) = steps("add", matrix, matrix, layouts=(COLUMNS, elsewhere))
    assert (add.exchange_bytes, add.copy_cycles) == (128, copies)


FEW, MANY = TensorLayout(tiles=64, mapping=0), TensorLayout(tiles=1024, mapping=1)


@pytest.mark.parametrize("layouts", [(FEW, MANY), (MANY, FEW)])
def test_a_new_result_lies_like_the_operand_on_most_tiles(layouts):
    """A gate before or after its tensor takes the same time, unless it is overwritten."""
    matrix = (1472, 64)
    (step,) = steps("mul", matrix, matrix, layouts=layouts, kept=True)
    assert step.exchange_bytes == 2 * 1472 * 64 // 1024
    (step,) = steps("mul", matrix, matrix, layouts=layouts)
    assert step.exchange_bytes == 2 * 1472 * 64 // layouts[0].tiles


def test_a_result_takes_no_layout_of_what_is_laid_out_for_it():
    matrix = (1472, 64)
    free = MANY._replace(free=True)
    (step,) = steps("mul", matrix, matrix, layouts=(free, FEW), kept=True)
    assert (step.exchange_bytes, step.tiles) == (0, 64)


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


def test_a_division_by_a_constant_has_a_vertex_of_its_own():
    """Eight cycles for two halves: popopsCycleEstimators.hpp, broadcastOpPerfInfo, DIVIDE."""
    (divide,) = steps("div", (1472, 96))
    assert divide.vertex == "popops::BroadcastScalar1DInPlace"
    assert divide.compute_cycles == 6 * (20 + 8 * 8) + 11
