"""Code of a program, counted by hand."""

import pytest

from ipusim.compiler import memory
from ipusim.compiler.code_size import BYTES, code_size
from ipusim.compiler.lower import lower
from ipusim.compiler.program import LoweredOp, Program, Superstep
from ipusim.compiler.stacks import load_stack
from ipusim.machine import load_chip
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.operators.base import round_prefix
from ipusim.workload.training import training_graphs

TILES = 1472
MK2, STACK = load_chip("GC200"), load_stack("sdk-2.4")


def step(vertex="popops::Add", *, compute=100, received=0, tiles=TILES, repeats=1):
    return Superstep(
        name="step",
        vertex=vertex,
        sync_cycles=0,
        exchange_cycles=0,
        copy_cycles=0,
        compute_cycles=compute,
        exchange_bytes=received,
        tiles=tiles,
        repeats=repeats,
    )


def lowered(name, *steps, kind="elementwise", codelet="", reads_lines=False):
    return LoweredOp(
        name=name,
        kind=kind,
        function="",
        steps=steps,
        tiles=TILES,
        grouping=16,
        codelet=codelet,
        reads_lines=reads_lines,
    )


def graph_of(channels, *, blocks=1):
    """Convolutions 3x3 of one size, one after the other."""
    g = GraphBuilder("chain")
    x = g.input("x", (1, channels, 16, 16), "float16")
    for block in range(blocks):
        x = g.conv(f"conv{block}", x, channels, 3, padding=1)
    return g.finish(x)


EMPTY = graph_of(16)


def own_code(*ops, update=()):
    """Code of a tile that runs all operations."""
    return code_size(EMPTY, Program(ops), TILES, update=Program(update)).fullest_tile


def test_code_of_two_small_operations_by_hand():
    program = Program(
        (
            lowered("a", step(received=2048, repeats=5), step("copy", compute=0)),
            lowered("b", step(tiles=736), step("popops::Cast1D")),
        )
    )
    code = code_size(EMPTY, program, TILES)
    # Repeats run the same code; a copy has no vertex; two types of vertex, one on all tiles.
    own = code.fullest_tile
    assert own.vertex_code == BYTES["program"] + 2 * BYTES["vertex type"]
    assert own.vertex_state == 3 * BYTES["vertices"]
    assert own.exchange_code == BYTES["exchange"] + 2 * BYTES["KiB of rows"]
    assert own.control_code == 4 * BYTES["superstep"]
    assert own.total == sum(getattr(own, name) for name in own.__slots__)
    assert code.chip.control_code == (3 * TILES + 736) * BYTES["superstep"]
    assert code.chip.vertex_state == (2 * TILES + 736) * BYTES["vertices"]
    assert code.chip.vertex_code == TILES * own.vertex_code


def test_a_convolution_has_larger_vertices_and_more_messages_than_a_product():
    vertex = step("poplin::AMP", received=4096)
    one = lowered("one", vertex, kind="conv", codelet="AMP nx1 1x16x16", reads_lines=True)
    product = lowered("one", vertex, kind="matmul", codelet="AMP 1x1 1x16x16")
    conv, dense = own_code(one), own_code(product)
    assert conv.vertex_state - dense.vertex_state == BYTES["field vertices"]
    per_kib = BYTES["KiB of fields"] - BYTES["KiB of rows"]
    assert conv.exchange_code - dense.exchange_code == 4 * per_kib
    # Without a field, a convolution receives what a product does.
    assert own_code(product._replace(kind="conv")).exchange_code == dense.exchange_code
    assert conv.vertex_code == dense.vertex_code
    # Another grouping of channels is another vertex type, another split is not.
    for codelet, types in (("AMP nx1 1x8x16", 2), ("AMP nx1 1x16x16", 1)):
        two = one._replace(name="two", plan="/ b2", codelet=codelet)
        assert (
            own_code(one, two).vertex_code
            == BYTES["program"] + types * BYTES["planned vertex type"]
        )


def test_the_rounds_of_a_loop_share_their_code():
    rounds = [lowered(f"{round_prefix('loop', n)}a", step(received=2048)) for n in range(3)]
    rounds.append(lowered(f"{round_prefix('loop', 0)}b", step(received=2048)))
    own = own_code(*rounds)
    assert own.control_code == 2 * BYTES["superstep"]
    assert own.vertex_state == 2 * BYTES["vertices"]


def test_pieces_take_more_code_than_whole_rows():
    rows = lowered("a", step(received=4096))
    pieces = (
        lowered("b", step("copy", compute=0, received=4096), kind="layout"),
        lowered("c", step("popops::MultiSlice", received=4096), kind="gather"),
    )
    whole, *small = (own_code(op).exchange_code for op in (rows, *pieces))
    more = BYTES["KiB of pieces"] - BYTES["KiB of rows"]
    assert [code - whole for code in small] == [4 * more] * 2
    # What was transposed on the tiles, and what only moves, arrives in blocks.
    copy = step("copy", compute=0, received=4096)
    blocks = (
        lowered("d", step("popops::Transpose1D"), copy, kind="conv"),
        lowered("e", copy, kind="matmul"),
        lowered("f", copy, kind="norm"),
    )
    assert [own_code(op).exchange_code for op in blocks] == [whole] * 3


def test_equal_convolutions_share_code_and_others_do_not():
    single, triple = graph_of(16), graph_of(16, blocks=3)
    code = [
        code_size(graph, lower(graph, MK2, STACK, host_dtype=None), MK2.tiles).chip
        for graph in (single, triple)
    ]
    assert code[0] == code[1]
    g = GraphBuilder("two sizes")
    x = g.conv("conv0", g.input("x", (1, 16, 16, 16), "float16"), 16, 3, padding=1)
    different = g.finish(g.conv("conv1", x, 32, 3, padding=1))
    program = lower(different, MK2, STACK, host_dtype=None)
    assert code_size(different, program, MK2.tiles).chip.control_code > code[0].control_code


def test_a_data_gradient_runs_by_the_forward_code():
    graph = graph_of(32, blocks=2)
    graphs = training_graphs(graph, loss="mean_squared", optimizer="sgd")
    program = lower(graphs.micro_batch, MK2, STACK, host_dtype=None)
    whole = code_size(graphs.micro_batch, program, MK2.tiles).chip
    without = Program(tuple(op for op in program.ops if op.function != "data_gradient"))
    assert len(without.ops) < len(program.ops)
    assert code_size(graphs.micro_batch, without, MK2.tiles).chip == whole


def test_updates_of_equal_tensors_share_code_beside_the_program():
    main = lowered("a", step())
    first, equal, other = (
        lowered(f"update{n}", step("popops::ScaledAdd", compute=c)) for n, c in enumerate((7, 7, 9))
    )
    bare, one = own_code(main), own_code(main, update=(first, equal))
    assert one.control_code - bare.control_code == BYTES["superstep"]
    two = own_code(main, update=(first, equal, other))
    assert two.control_code - one.control_code == BYTES["superstep"]
    assert two.vertex_code == one.vertex_code


def test_memory_adds_up():
    graph = graph_of(64, blocks=2)
    program = lower(graph, MK2, STACK, host_dtype=None)
    used = memory.measure(graph, program, MK2, resident_bytes=1472 * 100)
    bare = memory.measure(graph, program, MK2)
    assert used.parameter_bytes == bare.parameter_bytes + 100
    assert used.variable_bytes == bare.variable_bytes + 1472 * 100
    image = 64 * 16 * 16 * 2
    weights = graph.parameter_bytes
    # Two neighbouring activations live at once, and temporaries of the convolution.
    temporaries = max(op.temp_bytes * op.tiles for op in program.ops)
    assert bare.variable_bytes == weights + 2 * image + temporaries
    stacks = BYTES["stacks"] * MK2.tiles
    assert bare.total_bytes == bare.variable_bytes + bare.code.chip.total + stacks
    uncompiled = bare.total_bytes - bare.code.chip.vertex_code - stacks
    assert bare.total_bytes_uncompiled == uncompiled
    assert bare.code_bytes == bare.code.fullest_tile.total + BYTES["stacks"]
    assert bare.always_live_bytes == bare.code_bytes + bare.parameter_bytes


@pytest.mark.parametrize("tiles", [100, TILES])
def test_code_of_the_chip_grows_with_its_tiles(tiles):
    program = Program((lowered("a", step(tiles=tiles, received=1024)),))
    chip, own = (
        getattr(code_size(EMPTY, program, TILES), name) for name in ("chip", "fullest_tile")
    )
    assert chip.exchange_code == tiles * own.exchange_code
