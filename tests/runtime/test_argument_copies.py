"""Weights that calls of shared functions copy: which, how many cycles and bytes, on which chips."""

import pytest

from ipusim.compiler.lower import lower
from ipusim.compiler.program import Program
from ipusim.compiler.stacks import load_stack
from ipusim.machine import load_chip
from ipusim.runtime.argument_copies import with_arguments, without_arguments
from ipusim.runtime.compile import compile_run, tile_steps
from ipusim.runtime.options.config import make_config
from ipusim.runtime.replica.partition import partition
from ipusim.workload import zoo
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.training import training_graphs

MK2 = load_chip("GC200")
STACK = load_stack("sdk-2.4")


def copied(graph, **where):
    """Return the lowered operations with what they pass, those that copy, and as they were."""
    program = lower(graph, MK2, STACK, host_dtype=None)
    passing = with_arguments(graph, program.ops, MK2, **where)
    return passing, {op.name: op for op in passing if op not in program.ops}, program


def layers():
    """Two equal products, one of other sizes, and two that read the same weights."""
    g = GraphBuilder("layers")
    x = g.input("x", (8, 64))
    g.share("more", "again")
    x = g.linear("one", x, 64, bias=False)
    x = g.linear("two", x, 64, bias=False)
    x = g.linear("other", x, 96, bias=False)
    for name in ("again", "more"):
        x = g.linear(name, x, 96, bias=False)
    return g.finish(x).with_precision("16.16")


def test_equal_products_copy_their_weights():
    passing, found, program = copied(layers())
    assert set(found) == {"one", "two"}
    # 64 x 64 halves, at least 128 B on a tile: 64 tiles, each of which copies 8 B in a cycle.
    step = found["one"].steps[0]
    assert (step.cycles, step.copy_cycles, step.tiles, step.exchange_bytes) == (16, 16, 64, 0)
    before = program.ops[0]
    assert found["one"].steps[1:] == before.steps
    assert found["one"].temp_bytes == before.temp_bytes + 128
    held = before.chip_temp_bytes or before.temp_bytes * before.tiles
    assert found["one"].chip_temp_bytes == held + 2 * 64 * 64
    whole = Program(passing)
    assert whole.cycles == program.cycles + 2 * 16
    assert without_arguments(whole).steps == program.steps
    assert tile_steps(whole) == tile_steps(program)


def test_functions_are_those_of_one_chip():
    assert not copied(layers(), ipu_of=lambda name: int(name == "two"))[1]
    assert len(copied(layers(), ipu_of=lambda _: 1)[1]) == 2


def test_gradients_of_products_pass_weights_and_those_of_convolutions_do_not():
    g = GraphBuilder("network")
    x = g.input("x", (2, 16, 8, 8))
    for name in ("conv1", "conv2", "conv3"):
        x = g.conv(name, x, 16, 3, padding=1, bias=False)
    x = g.flatten("flat", x)
    for name in ("fc1", "fc2"):
        x = g.linear(name, x, 1024, bias=False)
    graph = training_graphs(g.finish(x).with_precision("16.16"), loss="cross_entropy")
    found = copied(graph.micro_batch)[1]
    passes = {(op.source or op.name, op.params.pass_kind) for op in graph.micro_batch.ops
              if op.name in found}  # fmt: skip
    assert passes == {
        *((f"conv{number}", "forward") for number in (1, 2, 3)),
        *((f"fc{number}", kind) for number in (1, 2) for kind in ("forward", "data_gradient")),
    }


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        ({}, 16),
        ({"ipus_per_replica": 2}, 12),
        ({"phases": 2, "weights": "on_chip"}, 16),
        ({"phases": 2, "weights": "off_chip"}, 0),
    ],
)
def test_runs_have_the_copies_once_and_none_of_what_they_load(options, copies):
    """Four products in each of four layers; one of these alone on the second chip shares none."""
    run = {"system": "IPU-M2000", "framework": "popart", "micro_batch": 1, "replicas": 1}
    model = zoo.bert_base_squad(layers=4, hidden=64, heads=2, tokens=128)
    compiled = compile_run(model, make_config(**run | options))
    stages = tuple(range(options.get("ipus_per_replica", 1)))
    cut = partition(compiled, ("encoder.layer.2.mlp.norm",) * (len(stages) - 1), stages)
    steps = [step.name for op in cut.lowered.values() for step in op.steps]
    assert steps.count("arguments") == copies
