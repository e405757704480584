"""Products in parts: what becomes of each pass, what it costs, what it saves."""

import pytest

import ipusim
from ipusim.cli import main
from ipusim.compiler.tiles import copy_cycles, tile_share
from ipusim.errors import IpuSimError
from ipusim.machine import load_chip
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model
from ipusim.workload.serialization import parse_serial_products, serialise
from ipusim.workload.training import training_graphs

ROWS, WIDTH, WORDS, PARTS = 64, 512, 8192, 4


def _head(batch, *, words=WORDS, tied=False):
    """Rows, a layer, and the product with a large matrix."""
    g = GraphBuilder("head")
    table = g.parameter("table", (words, WIDTH))
    if tied:
        x = g.gather("lookup", table, g.input("ids", (batch or 1, ROWS), "int32"))
    else:
        x = g.input("x", ((batch or 1) * ROWS, WIDTH))
    x = g.elementwise("relu", "relu", g.linear("fc", x, WIDTH))
    return g.finish(g.matmul("head", x, table, transpose_b=True))


HEAD = Model(name="head", family="test", build=_head, loss="cross_entropy")
PART = Model(
    name="part",
    family="test",
    build=lambda batch: _head(batch, words=WORDS // PARTS),
    loss="cross_entropy",
)
TIED = Model(
    name="tied", family="test", build=lambda batch: _head(batch, tied=True), loss="cross_entropy"
)
RUN = {"system": "IPU-M2000", "replicas": 1, "micro_batch": 2, "tier": "specification"}
TRAINING = {**RUN, "mode": "training", "gradient_accumulation": 8}


def micro_batch(model=_head, accumulate="scaled_add", **options):
    graph = model(2, **options).with_precision("16.16")
    graphs = training_graphs(graph, loss="cross_entropy", accumulate=accumulate)
    return graphs.micro_batch


def cut(graph, text=f"head={PARTS}"):
    return serialise(graph, parse_serial_products([text]))


def names(graph, kind, source="head"):
    return [op for op in graph.ops if op.kind == kind and source in (op.name[:4], op.source)]


@pytest.mark.parametrize("dimension", ["input_channels", "reducing_dim", "output_channels"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("accumulate", ["", "scaled_add"])
def test_every_pass_is_cut_and_computes_as_much(dimension, tied, accumulate):
    whole = micro_batch(accumulate=accumulate, tied=tied)
    parts = cut(whole, f"head={PARTS}:{dimension}")
    assert parts.macs == whole.macs
    assert parts.parameters == whole.parameters
    assert parts.parameter_bytes == whole.parameter_bytes
    assert (parts.inputs, parts.outputs, parts.kept) == (whole.inputs, whole.outputs, whole.kept)
    products = [op.params for op in names(parts, "matmul")]
    before = [op.params for op in names(whole, "matmul")]
    assert len(products) == PARTS * len(before) == 3 * PARTS
    index = ("input_channels", "reducing_dim", "output_channels").index(dimension)
    for kind, sizes in (("forward", "mkn"), ("data_gradient", "mnk"), ("weight_gradient", "kmn")):
        (old,) = (params for params in before if params.pass_kind == kind)
        for new in (params for params in products if params.pass_kind == kind):
            expected = {size: getattr(old, size) for size in "mkn"}
            expected[sizes[index]] //= PARTS
            assert {size: getattr(new, size) for size in "mkn"} == expected
    # One pass is added up in parts, whichever is cut where it reduces.
    sums = [op for op in parts.ops if op.function == "add"]
    assert len(sums) - len([op for op in whole.ops if op.function == "add"]) == PARTS - 1


@pytest.mark.parametrize("dimension", ["input_channels", "reducing_dim", "output_channels"])
def test_what_does_not_divide_leaves_smaller_parts(dimension):
    whole = micro_batch()
    parts = cut(whole, f"head=3:{dimension}")
    assert parts.macs == whole.macs
    cuts = {size: [op.params for op in names(parts, "matmul")] for size in "mkn"}
    sizes = {getattr(params, size) for size, found in cuts.items() for params in found}
    expected = {"input_channels": (43, 42), "reducing_dim": (171, 170)}
    assert sizes >= set(expected.get(dimension, (2731, 2730)))


def test_parts_are_accumulated_at_once_where_nothing_else_contributes():
    parts = cut(micro_batch())
    kinds = [op.function for op in parts.ops if op.source == "head"]
    gradient = kinds[kinds.index("weight_gradient") - 1 :]
    assert gradient[: 3 * PARTS] == PARTS * ["slice", "weight_gradient", "scaled_add"]
    adds = [op for op in parts.ops if "table.accumulator" in op.inputs]
    assert [parts.tensors[op.outputs[0]].elements for op in adds] == PARTS * [
        WORDS // PARTS * WIDTH
    ]
    assert [op.outputs[0] for op in adds][-1] == "table.accumulated"
    for graph in (micro_batch(tied=True), micro_batch(accumulate="")):
        together = [op for op in cut(graph).ops if op.function == "concat"]
        assert {op.params.moves_data for op in together} == {False}
        assert len(together) == 2  # the results and the gradient


def test_parts_cost_as_much_as_products_of_their_size():
    head, part = (
        ipusim.simulate(model, **{**RUN, **options}).layers.set_index("op")
        for model, options in ((HEAD, {"serial_products": [f"head={PARTS}"]}), (PART, {}))
    )
    cycles = [head.loc[f"head.part{number}", "cycles"] for number in range(PARTS)]
    # Equal parts share a function, into which each copies its weights.
    chip = load_chip("GC200")
    passed = copy_cycles(2 * tile_share(WORDS // PARTS * WIDTH, "float16", chip), chip)
    assert cycles == PARTS * [part.loc["head", "cycles"] + passed]
    assert head.loc["head", "cycles"] == 0
    trained, alone = (
        ipusim.simulate(model, **{**TRAINING, **options}).layers.set_index("op")
        for model, options in ((HEAD, {"serial_products": [f"head={PARTS}"]}), (PART, {}))
    )
    for kind, copied in (("weight_gradient", 0), ("data_gradient", passed)):
        own = [trained.loc[f"head.{kind}.part{number}", "cycles"] for number in range(PARTS)]
        assert own == PARTS * [alone.loc[f"head.{kind}", "cycles"] + copied]
    assert trained.loc["table.accumulated", "cycles"] == alone.loc["table.accumulated", "cycles"]


def test_lookups_are_done_in_every_part_of_the_table():
    whole = micro_batch(tied=True)
    parts = cut(whole, f"lookup={PARTS}")
    assert parts.parameters == whole.parameters
    assert parts.outputs == whole.outputs
    lookups = [op for op in parts.ops if op.kind == "gather" and op.params.function == "lookup"]
    assert [op.params.rows for op in lookups] == PARTS * [WORDS // PARTS]
    assert {op.params.indices for op in lookups} == {2 * ROWS}
    # Each looks all indices up; what lies in other parts is masked, and all are added.
    added = [
        op.function for op in parts.ops if op.name.startswith("lookup") and op.phase == "forward"
    ]
    for function, times in (("mul", PARTS), ("less", PARTS), ("add", PARTS - 1)):
        assert added.count(function) == times
    # The gradient is one addition into a whole table.
    (back,) = [op for op in parts.ops if op.kind == "gather" and op.params.function == "add"]
    assert back.params.rows == WORDS
    small, large = (
        ipusim.simulate(TIED, **RUN, serial_products=[f"lookup={count}"]).cycles_per_step
        for count in (2, 8)
    )
    assert ipusim.simulate(TIED, **RUN).cycles_per_step < small < large


def test_only_a_part_of_the_gradient_is_ever_there():
    whole, parts = (
        ipusim.simulate(HEAD, **TRAINING, **options)
        for options in ({}, {"serial_products": [f"head={PARTS}"]})
    )
    assert parts.result.memory.resident_bytes == whole.result.memory.resident_bytes
    gradient = 2 * WORDS * WIDTH
    used = [
        {
            point.op: point.chip_bytes - point.temp_bytes * tiles[point.op]
            for point in report.result.memory.points
        }
        for report in (whole, parts)
        for tiles in [report.layers.set_index("op")["tiles"]]
    ]
    first, last = used[0]["head.weight_gradient"], used[1][f"head.weight_gradient.part{PARTS - 1}"]
    assert first - last == pytest.approx(gradient * (PARTS - 1) / PARTS, rel=0.02)
    assert parts.result.step_s > whole.result.step_s


def test_pipelines_and_phases_take_products_in_parts():
    options = {**TRAINING, "system": "IPU-POD16", "serial_products": [f"head={PARTS}"]}
    piped = ipusim.simulate(HEAD, **options, ipus_per_replica=2, pipeline_splits=["relu"])
    assert list(piped.stages["first_op"]) == ["fc", "head.part0"]
    held = piped.result.stages[1].memory
    assert held.resident_bytes >= 2 * 2 * WORDS * WIDTH  # the whole table and its accumulator
    phased = ipusim.simulate(HEAD, **options, phase_splits=["relu"])
    plain = ipusim.simulate(HEAD, **{**options, "serial_products": None}, phase_splits=["relu"])
    for part in ("streamed weights", "streamed accumulators"):
        assert phased.result.parts_s[part] == pytest.approx(plain.result.parts_s[part])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("head", "give operator=parts"),
        ("head=one", "give operator=parts"),
        ("head=1", "2 or more"),
        ("head=4:rows", "output_channels"),
        ("haed=4", "head"),
        ("relu=4", "name a product of two matrices"),
        ("head=9000", "'head' cannot be cut into 9000 parts along output_channels.*use 2 to 8192"),
        ("lookup=9000", "along the rows of its table, of which there are 8192: use 2 to 8192"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_one_sentence(text, message):
    with pytest.raises(IpuSimError, match=message):
        ipusim.simulate(TIED, **RUN, serial_products=[text])


def test_the_command_line_takes_products_in_parts(capsys):
    assert main(["simulate", "resnet18", "--serial-products", "fc=4", "--json"]) == 0
    assert main(["simulate", "resnet18", "--serial-products", "fc"]) == 2
    assert "give operator=parts" in capsys.readouterr().err
