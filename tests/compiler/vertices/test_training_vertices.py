"""Vertices of training: cycles by hand from poplibs' formulas, and that more work costs more."""

import pytest
from emitting import MK2, emitted, vector
from hypothesis import given, settings, strategies as st

from ipusim.compiler.emitter import Emitter
from ipusim.compiler.eras import ERA_1_0, ERA_2_4
from ipusim.compiler.operators.elementwise import dropout
from ipusim.compiler.operators.elementwise_functions import (
    EXPRESSIONS,
    RANDOM,
    gradient_functions,
    known_functions,
    vertices_of,
)
from ipusim.compiler.tiles import Tile
from ipusim.compiler.vertices.elementwise import non_linearity_cycles
from ipusim.compiler.vertices.training import (
    Expression,
    generated_cycles,
    loss_transform_cycles,
    multi_slice_cycles,
    multi_update_add_cycles,
    one_hot_cycles,
    random_cycles,
    slow_operator_cycles,
)
from ipusim.errors import UnknownNameError

HALVES = {"float16": 4, "float32": 2}
EARLY, LATE = (Tile(MK2, era) for era in (ERA_1_0, ERA_2_4))


@pytest.mark.parametrize(
    ("function", "dtype", "per_vector"),
    [
        ("relu", "float16", 3),
        ("sigmoid", "float32", 3),
        ("gelu", "float16", 5),
        ("gelu", "float32", 10),
        ("swish", "float16", 9),
        ("swish", "float32", 15),
    ],
)
def test_gradient_of_a_non_linearity(function, dtype, per_vector):
    # 100 vectors for each of six workers: 20 to start, 4 + 99 loops + 1, 4 or 6 for remainders.
    elements = 600 * HALVES[dtype]
    worker = 20 + 4 + 99 * per_vector + 1 + (6 if dtype == "float16" else 4)
    cycles = non_linearity_cycles(LATE, function, elements, dtype, gradient=True)
    assert cycles == 9 + 6 * worker


@pytest.mark.parametrize(
    ("tile", "function", "elements", "worker"),
    [
        # Three halves: no vector, one pair (3 + 2) and one single (3 + 4).
        (LATE, "relu", 3, 20 + 6 + 5 + 7),
        # 2,404 halves are 601 vectors, 101 of them on the fullest of six workers.
        (LATE, "relu", 2404, 20 + 4 + 100 * 3 + 1 + 6),
        # Early ones take three cycles a vector.
        (EARLY, "gelu", 2400, 25 + 4 + 99 * 3 + 1 + 6),
    ],
)
def test_the_fullest_worker_sets_the_gradient(tile, function, elements, worker):
    cycles = non_linearity_cycles(tile, function, elements, "float16", gradient=True)
    assert cycles == 9 + 6 * worker


def test_generated_vertex_runs_every_operator_per_vector_of_every_input():
    three = Expression(operations=3)
    assert generated_cycles(LATE, three, 2400, "float16") == 20 + 2 * 600 * 3 + 4
    assert generated_cycles(LATE, three, 2401, "float16") == 3624 + 6


def test_slow_operators_are_charged_their_own_loop():
    # float16 division: 21 cycles for four elements, two of them loads and stores.
    assert slow_operator_cycles(LATE, "div", 2400, "float16") == 6 * 19 * 100
    plain, slow = (
        generated_cycles(LATE, Expression(operations=2, slow=operators), 2400, "float16")
        for operators in ((), ("div",))
    )
    assert slow - plain == 6 * 19 * 100


def test_loss_transform():
    # 40 halves a worker: twenty passes of 9; 23 to set up and end.
    assert loss_transform_cycles(LATE, "cross_entropy", 240, "float16") == 6 * (23 + 20 * 9)
    assert loss_transform_cycles(LATE, "mean_squared", 240, "float32") == 6 * (19 + 40 * 4)
    # An odd element is stored by itself.
    odd = loss_transform_cycles(LATE, "cross_entropy", 3, "float16")
    assert odd == 6 * (23 + 9 + 11)


def test_one_hot_and_random_bits():
    assert one_hot_cycles(4, "float16") == 11 + 4 * 74
    assert one_hot_cycles(4, "float32") == 400
    assert random_cycles(LATE, "Dropout", 2400, "float16") == 6 + 24 * 6 + 2 * 600
    assert random_cycles(LATE, "Dropout", 2401, "float16") == 6 + 24 * 6 + 2 * 601 + 9
    assert random_cycles(LATE, "Normal", 2400, "float16") == 4 + 24 * 6 + 4 * 600
    assert random_cycles(LATE, "Normal", 2401, "float16") == 4 + 24 * 6 + 4 * 601 + 12
    assert random_cycles(LATE, "Normal", 2401, "float32") == 4 + 22 * 6 + 4 * 1201 + 3
    assert random_cycles(LATE, "SetSeed", 1, "float32") == 14 + 27 * 6
    assert random_cycles(LATE, "Uniform", 1, "float32") == 4 + 22 * 6
    steps = emitted(dropout, vector(2400 * MK2.tiles))
    assert [step.compute_cycles for step in steps] == [176, 176, 1350, 176]
    # The seed, two words, reaches every tile; what is saved stays where it is.
    assert [step.exchange_bytes for step in steps] == [0, 8, 0, 0]


@pytest.mark.parametrize(
    ("tile", "offsets", "found", "row", "dtype", "worker"),
    [
        # 32 halves are 16 words; ten of the hundred indices fall into this worker's part.
        (LATE, 100, 10, 32, "float16", 37 + 10 * (13 + 15 * 3) + 90 * 5),
        (EARLY, 100, 100, 32, "float16", 18 + 100 * (12 + 15 * 3)),
        # Rows of 64 bits have their own path.
        (LATE, 100, 100, 4, "float16", 36 + 100 * 9),
        (LATE, 100, 100, 2, "float32", 37 + 100 * 8),
        # Rows that are not whole words are slow.
        (LATE, 10, 10, 33, "float16", 37 + 10 * (13 + 33 * 20)),
        (LATE, 10, 10, 34, "float16", 37 + 10 * (13 + 16 * 3)),
    ],
)
def test_rows_are_added_by_the_word(tile, offsets, found, row, dtype, worker):
    assert multi_update_add_cycles(tile, offsets, found, row, dtype) == 6 * worker


def test_lookups_skip_rows_that_lie_elsewhere():
    found = multi_slice_cycles(LATE, 10, 4, 32, "float16")
    assert found == 6 * (19 + 4 * (19 + 2 * 16) + 6 * 8)


@settings(max_examples=40)
@given(
    vectors=st.integers(1, 4000),
    further=st.integers(0, 500),
    dtype=st.sampled_from(("float16", "float32")),
    name=st.sampled_from(sorted(EXPRESSIONS)),
)
def test_more_elements_never_take_fewer_cycles(vectors, further, dtype, name):
    small, large = (size * HALVES[dtype] * MK2.tiles for size in (vectors, vectors + further))

    def costs(elements):
        x = vector(elements, dtype)
        return [
            *emitted(Emitter.generated, name, x, EXPRESSIONS[name]),
            *emitted(dropout, x),
        ]

    for first, second in zip(costs(small), costs(large), strict=True):
        assert 0 < first.compute_cycles <= second.compute_cycles
    for function in ("relu", "gelu", "swish"):
        less, more = (
            non_linearity_cycles(LATE, function, elements // MK2.tiles, dtype, gradient=True)
            for elements in (small, large)
        )
        assert 0 < less <= more


def test_every_known_function_is_lowered_somewhere():
    for era in (ERA_1_0, ERA_2_4):
        special = {*EXPRESSIONS, *gradient_functions(era), *RANDOM}
        for function in known_functions(era):
            assert function in special or vertices_of(function, era)


def test_only_comparisons_fall_back_to_a_compare():
    falling = {
        function
        for function in known_functions(ERA_2_4)
        if function not in EXPRESSIONS
        and function not in RANDOM
        and function not in gradient_functions(ERA_2_4)
        and vertices_of(function, ERA_2_4) == ("equal",)
    }
    comparisons = "equal not_equal less less_or_equal greater_or_equal is_nan is_inf"
    logic = "and or xor not"
    assert falling == {*comparisons.split(), *logic.split()}


@pytest.mark.parametrize("era", [ERA_1_0, ERA_2_4])
def test_an_unknown_function_is_refused(era):
    with pytest.raises(UnknownNameError, match="'relu6'.*did you mean 'relu'"):
        vertices_of("relu6", era)
