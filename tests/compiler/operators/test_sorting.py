"""Sorting networks: how many steps, and what one costs, by hand."""

import pytest
from emitting import MK2, emitted, matrix

from ipusim.compiler.operators.sort import compare_and_swap_cycles, network, sort
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


def test_the_first_two_of_eight_take_five_steps():
    # Pairs are sorted; of two pairs one is dropped and the other sorted again, twice.
    assert list(network(8, 2)) == [(8, 4), (8, 4), (4, 2), (4, 2), (2, 1)]
    # The best of eight is found by three comparisons of what is left.
    assert list(network(8, 1)) == [(8, 4), (4, 2), (2, 1)]
    # An odd element waits for the last comparison.
    assert list(network(5, 1)) == [(5, 2), (3, 1), (2, 1)]
    assert len(list(network(1000, 1000))) == 55


def test_places_move_with_their_keys():
    x = matrix(1472, 8, "float16")
    number, cast, *steps, back = emitted(sort, Sort(outer=1472, length=8, kept=2), x)
    # No tile gets less than 128 bytes of a constant.
    assert number.exchange_bytes == 128
    assert cast.name == back.name == "cast"
    # Four comparisons of a tile, one for each of four workers; four pairs of keys and of places.
    assert steps[0].compute_cycles == 19 + 6 * (23 + 4 + 8 + 11)
    assert steps[0].exchange_bytes == 2 * 2 * 4 * 4
    assert steps[-1].exchange_bytes == 2 * 2 * 1 * 4
    (one, *_) = emitted(sort, Sort(outer=1, length=8, kept=2), matrix(1, 8, "int32"))
    assert one.vertex == "popops::Iota"


def test_more_than_there_is_cannot_be_kept():
    with pytest.raises(WorkloadError, match="kept = 5"):
        Sort(outer=1, length=4, kept=5)
