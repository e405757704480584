"""Memory of a tile: what stays, what lives at once, where the interleaved region starts.

What is far beyond the memory of a chip is refused before it is planned; the rest is profiled.
"""

import time
from dataclasses import replace

import pytest

from ipusim import api
from ipusim.compiler.lower import lower
from ipusim.compiler.memory import BEYOND, LivePoint, Memory, measure, require_room
from ipusim.compiler.program import Program
from ipusim.compiler.stacks import load_stack
from ipusim.errors import ConfigError
from ipusim.machine import load_chip
from ipusim.workload import zoo
from ipusim.workload.layers import GraphBuilder

CHIP, STACK = load_chip("GC200"), replace(load_stack("sdk-2.4"), partials="float")
BYTES = 1 * 4 * 64 * 64 * 4


@pytest.fixture(scope="module")
def fork():
    """Lower y = relu(x), z = relu(y), z + y: y is read twice."""
    g = GraphBuilder("forked")
    x = g.input("x", (1, 4, 64, 64))
    y = g.elementwise("y", "relu", x)
    z = g.elementwise("z", "relu", y)
    graph = g.finish(g.elementwise("sum", "add", z, y))
    return graph, lower(graph, CHIP, STACK, host_dtype=None)


@pytest.fixture(scope="module")
def forked(fork):
    return measure(*fork, CHIP)


def at(memory, name) -> LivePoint:
    (point,) = (point for point in memory.points if point.op == name)
    return point


def test_a_result_shares_memory_only_where_nobody_else_reads_it(forked):
    held = {name: at(forked, name).chip_bytes for name in ("y", "z", "sum")}
    assert held == {"y": BYTES, "z": 2 * BYTES, "sum": 2 * BYTES}


def test_parts_of_a_concatenation_are_its_memory():
    """PopART concatx.cpp, ConcatInplaceOpx: what reads the whole finds the parts where they are."""
    g = GraphBuilder("joined")
    x = g.input("x", (1, 4, 64, 64))
    left, right = (g.elementwise(name, "relu", x) for name in ("left", "right"))
    graph = g.finish(g.elementwise("end", "neg", g.concat("both", left, right, axis=1)))
    memory = measure(graph, lower(graph, CHIP, STACK, host_dtype=None), CHIP)
    held = [at(memory, name).chip_bytes for name in ("both", "end")]
    assert held == [2 * BYTES] * 2  # left and right, whose place the last one takes


def with_point(memory: Memory, **changes: int) -> Memory:
    return replace(memory, points=(replace(memory.points[0], **changes),))


def test_interleaved_bytes_begin_where_their_region_does(forked):
    memory = with_point(forked, interleaved_bytes=1000, temp_bytes=1000)
    assert memory.peak_tile_bytes == CHIP.interleaved_offset_bytes + 1000


def test_a_tile_that_is_exactly_full_fits(forked):
    room = CHIP.bytes_per_tile - forked.always_live_bytes
    full = with_point(forked, activation_bytes=room, temp_bytes=0, interleaved_bytes=0)
    assert (full.peak_tile_bytes, full.fits, full.over_bytes) == (CHIP.bytes_per_tile, True, 0)
    assert forked.over_bytes == 0 < CHIP.bytes_per_tile - forked.peak_tile_bytes
    over = with_point(full, activation_bytes=room + 1)
    assert (over.fits, over.over_bytes) == (False, 1)


def test_the_fullest_moment_counts_temporaries(fork, forked):
    """Two tensors live beside the sum, but the temporaries beside one of them are larger."""
    graph, program = fork
    assert forked.peak_op == "z"  # the first of the two moments with two tensors
    changed = [op._replace(temp_bytes=1 << 16) if op.name == "y" else op for op in program.ops]
    assert measure(graph, Program(tuple(changed)), CHIP).peak_op == "y"


def test_temporaries_of_the_chip_may_be_fewer_than_those_of_each_tile(fork):
    graph, program = fork
    few = {"temp_bytes": 1 << 16, "chip_temp_bytes": 3 << 16}
    changed = [op._replace(**few) if op.name == "y" else op for op in program.ops]
    memory = measure(graph, Program(tuple(changed)), CHIP)
    assert at(memory, "y").chip_bytes == BYTES + (3 << 16)
    assert at(memory, "y").temp_bytes == 1 << 16


def test_a_result_that_is_handed_out_lives_to_the_end():
    g = GraphBuilder("two results")
    x = g.input("x", (1, 4, 64, 64))
    early = g.elementwise("early", "relu", x)
    late = g.elementwise("late", "relu", g.elementwise("between", "relu", x))
    graph = replace(g.finish(late), outputs=(early, late))
    memory = measure(graph, lower(graph, CHIP, STACK, host_dtype=None), CHIP)
    assert at(memory, "late").chip_bytes == 2 * BYTES


def test_stacks_of_workers_are_code(forked):
    compiled = forked.total_bytes - forked.total_bytes_uncompiled - forked.code.chip.vertex_code
    assert compiled % CHIP.tiles == 0 < compiled
    of_code = forked.always_live_bytes - forked.parameter_bytes
    assert of_code == forked.code.fullest_tile.total + compiled // CHIP.tiles


@pytest.mark.parametrize("times", [BEYOND - 0.1, BEYOND + 0.1])
def test_an_operand_far_beyond_a_chip_is_refused(times):
    """Here the input alone is: its sum is small."""
    g = GraphBuilder("large")
    elements = int(times * CHIP.sram_bytes / 4 / 1024)
    graph = g.finish(g.reduce("sum", "add", g.input("x", (1, 1024, elements)), axis=2))
    if times < BEYOND:
        require_room(graph, CHIP)
    else:
        with pytest.raises(ConfigError, match="'sum' needs at least"):
            require_room(graph, CHIP)


@pytest.mark.parametrize("micro_batch", [1024, 20_000, 2**40])
def test_a_request_far_beyond_memory_is_refused_in_a_second(micro_batch):
    begin = time.process_time()
    with pytest.raises(ConfigError, match=r"needs at least [\d,.e+]+ GB at once and a GC200 has"):
        api.simulate("resnet50", micro_batch=micro_batch)
    assert time.process_time() - begin < 1


def test_the_bound_counts_operands_and_results_of_convolutions_and_products():
    def needed(items: int) -> int:
        graph = zoo.load("braggnn").graph(items)
        return max(
            sum(graph.tensors[name].bytes for name in {*op.inputs, *op.outputs})
            for op in graph.ops
            if op.kind in ("conv", "matmul")
        )

    many = 100_000
    items = many * BEYOND * CHIP.tiles * CHIP.bytes_per_tile // needed(many)
    require_room(zoo.load("braggnn").graph(int(0.95 * items)), CHIP)
    with pytest.raises(ConfigError):
        require_room(zoo.load("braggnn").graph(int(1.05 * items)), CHIP)
