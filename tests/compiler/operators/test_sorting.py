"""Sorting networks: how many steps, and what one costs, by hand."""

import pytest
from emitting import MK2, emitted, matrix

from ipusim.compiler.operators.sort import compare_and_swap_cycles, sort
from ipusim.errors import WorkloadError
from ipusim.workload.graph import Sort
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.training import training_graphs


def sort_steps(length):
    """Return the steps of sorting one row of whole numbers."""
    return emitted(sort, Sort(outer=1, length=length), matrix(1, length, "int32"))


@pytest.mark.parametrize(("length", "steps"), [(1, 0), (2, 1), (4, 3), (5, 6), (1024, 55)])
def test_steps_of_the_network(length, steps):
    assert len(sort_steps(length)) == steps


def test_a_step_by_hand():
    # 65,536 elements: 23 comparisons on a tile, four for the busiest of six workers.
    step = sort_steps(65536)[0]
    assert step.compute_cycles == 19 + 6 * (42 + 22 + 3 + 4 * 12)
    assert step.exchange_bytes == 2 * 23 * 4
    assert compare_and_swap_cycles(6, "float16", MK2) == 19 + 6 * (40 + 17 + 3 + 13)


def test_bad_sizes_are_named():
    with pytest.raises(WorkloadError, match="outer = 0"):
        Sort(outer=0, length=4)


def test_gradients_go_back_to_where_the_elements_came_from():
    g = GraphBuilder("sorted")
    graph = g.finish(g.sort("sort", g.linear("dense", g.input("x", (2, 4)), 8)))
    assert graph.ops[-1].params == Sort(outer=2, length=8)
    written = [
        op.params
        for op in training_graphs(graph, loss="mean_squared").micro_batch.ops
        if op.kind == "gather"
    ]
    assert [(w.function, w.groups, w.rows, w.width) for w in written] == [("add", 2, 8, 1)]
