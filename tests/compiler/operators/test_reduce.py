"""Reductions: what they compute besides sums; the position of the largest element by hand."""

import pytest
from emitting import MK2, emitted, matrix
from hypothesis import given, settings, strategies as st

from ipusim.compiler.lower import lower
from ipusim.compiler.operators.reduce import argmax
from ipusim.compiler.stacks import load_stack
from ipusim.workload.layers import GraphBuilder


def argmax_steps(rows, length, dtype="float16", scattered=False):
    return emitted(argmax, matrix(rows, length, dtype, by_rows=scattered))


def test_one_long_row_by_hand():
    # 282,624 elements are 192 a tile, 32 a worker, so 8,832 partials; then 276, 9 and 1 of them.
    first, *further = argmax_steps(1, 282624)
    assert first.compute_cycles == 9 + 6 * (27 + 3 * 32)
    assert first.exchange_bytes == 384
    assert first.copy_cycles == 0
    assert [step.compute_cycles for step in further] == [
        6 * (24 + 3 * 32),
        6 * (24 + 3 * 32),
        6 * (24 + 3 * 9),
    ]
    assert [step.exchange_bytes for step in further] == [32 * 8, 32 * 8, 9 * 8]


def test_short_rows_cost_a_vertex_each():
    # 2944 rows of 96: two on every tile, and of each three workers read 32 elements.
    first, second = argmax_steps(2944, 96)
    assert first.compute_cycles == 2 * (9 + 6 * (27 + 3 * 32))
    # Two vertices a tile compare three partials each, at the same time.
    assert second.compute_cycles == 6 * (24 + 3 * 3)
    assert second.exchange_bytes == 2 * 3 * 8


def test_few_elements_are_left_to_few_tiles():
    # 49,104 values are 32 a worker: 1,535 partials, then 48, 2 and 1.
    steps = argmax_steps(1, 49_104)
    assert [step.vertex[-6:] for step in steps] == ["Gather", "Sparse", "Sparse", "Sparse"]
    assert [step.exchange_bytes for step in steps[1:]] == [8 * 32, 8 * 32, 8 * 2]


def test_rows_of_one_worker_need_no_further_step():
    assert len(argmax_steps(4, 32, "float32")) == 1


def test_workers_repeat_at_most_4095_times():
    # 40,000 elements a tile are two vertices of 3,334 elements for each worker.
    first = argmax_steps(1472, 40000)[0]
    assert first.compute_cycles == 2 * (9 + 6 * (27 + 3 * 3334))


def test_whole_numbers_are_compared_by_compiled_code():
    # 192 elements: one worker works through six parts of 32.
    first, second = argmax_steps(1, 192, "int32")
    assert first.compute_cycles == 9 + 6 * (22 + 6 * (25 + 6 * 32))
    assert second.compute_cycles == 6 * (23 + 6 * 6)


@given(rows=st.integers(1, 3000), length=st.integers(1, 3000))
@settings(max_examples=40, deadline=None)
def test_a_tile_takes_three_cycles_for_each_of_its_elements(rows, length):
    first = argmax_steps(rows, length)[0]
    # Workers that share a vertex get at most one element more than others.
    assert first.compute_cycles >= 3 * (first.exchange_bytes // 2 - 5)
    scattered = argmax_steps(rows, length, scattered=True)[0]
    assert scattered.copy_cycles >= first.exchange_bytes // 2


def test_rows_of_a_product_are_gathered_element_by_element():
    def largest(product: bool):
        g = GraphBuilder("scores")
        x = g.input("x", (64, 128))
        y = g.linear("dense", x, 512, bias=False) if product else g.elementwise("relu", "relu", x)
        graph = g.finish(g.argmax("largest", y)).with_precision("16.16")
        program = lower(graph, MK2, load_stack("sdk-2.4"), host_dtype=None)
        return program.ops[-1].steps[0]

    assert largest(product=True).copy_cycles > 0
    assert largest(product=False).copy_cycles == 0


@pytest.mark.parametrize(
    ("function", "before", "after"),
    [
        ("sumsquare", [], []),
        ("l1", ["abs"], []),
        ("l2", [], ["sqrt"]),
        ("logsum", [], ["log"]),
        ("logsumexp", ["max", "exponentials"], ["logarithms"]),
    ],
)
def test_what_a_reduction_computes_besides_its_sum(function, before, after):
    """Popart willow/src/popx/op/reducel1x.cpp, reducel2x, reducelogsumx, reducelogsumexpx."""

    def names(function):
        g = GraphBuilder("rows")
        y = g.reduce("y", function, g.input("x", (64, 512)), axis=1)
        program = lower(g.finish(y), MK2, load_stack("sdk-2.4"), host_dtype=None)
        return [step.name for step in program.ops[-1].steps]

    largest = names("max")
    expected = [step for name in before for step in (largest if name == "max" else [name])]
    assert names(function) == [*expected, *names("sum"), *after]
