"""Memory of a tile: what stays, what lives at once, where the interleaved region starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipusim.compiler.lower import lower
from ipusim.compiler.memory import LivePoint, Memory, measure
from ipusim.compiler.stacks import load_stack
from ipusim.machine import load_chip
from ipusim.workload.layers import GraphBuilder

CHIP, STACK = load_chip("GC200"), load_stack("sdk-2.4")
BYTES = 1 * 4 * 64 * 64 * 4


@pytest.fixture(scope="module")
def forked():
    """Memory of y = relu(x), z = relu(y), z + y: y is read twice."""
    g = GraphBuilder("forked")
    x = g.input("x", (1, 4, 64, 64))
    y = g.elementwise("y", "relu", x)
    z = g.elementwise("z", "relu", y)
    graph = g.finish(g.elementwise("sum", "add", z, y))
    options = {"partials": "float", "host_dtype": None, "available_memory_proportion": 0.6}
    return measure(graph, lower(graph, CHIP, STACK, **options), CHIP)


def at(memory, name) -> LivePoint:
    (point,) = (point for point in memory.points if point.op == name)
    return point


def test_a_result_shares_memory_only_where_nobody_else_reads_it(forked):
    held = {name: at(forked, name).chip_bytes for name in ("y", "z", "sum")}
    assert held == {"y": BYTES, "z": 2 * BYTES, "sum": 2 * BYTES}


def with_point(memory: Memory, **changes: int) -> Memory:
    return replace(memory, points=(replace(memory.points[0], **changes),))


def test_interleaved_bytes_begin_where_their_region_does(forked):
    memory = with_point(forked, interleaved_bytes=1000, temp_bytes=1000)
    assert memory.peak_tile_bytes == CHIP.interleaved_offset_bytes + 1000


def test_a_tile_that_is_exactly_full_fits(forked):
    room = CHIP.bytes_per_tile - forked.always_live_bytes
    full = with_point(forked, activation_bytes=room, temp_bytes=0, interleaved_bytes=0)
    assert (full.peak_tile_bytes, full.fits, full.over_bytes) == (CHIP.bytes_per_tile, True, 0)
    over = with_point(full, activation_bytes=room + 1)
    assert (over.fits, over.over_bytes) == (False, 1)
