"""Losses over alignments: their plan, their loops, and the gradient that they hand on."""

import pytest
from hypothesis import given, settings, strategies as st

from ipusim.compiler.lower import lower
from ipusim.compiler.operators.alignment_loss import plan_ctc, step_cycles
from ipusim.compiler.stacks import load_stack
from ipusim.errors import WorkloadError
from ipusim.files import evidence_records
from ipusim.machine import load_chip
from ipusim.workload.graph import AlignmentLoss
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.training import training_graphs

CHIP, STACK = load_chip("GC200"), load_stack("sdk-2.0")


def network(kind: str, batch: int, steps: int, labels: int, classes: int):
    """Return a dense layer, log softmax and a loss."""
    g = GraphBuilder("aligned")
    rows = batch * steps * (labels + 1 if kind == "transducer" else 1)
    x = g.linear("dense", g.input("x", (rows, 4)), classes)
    targets = g.input("targets", (batch, labels), "int32")
    x = g.softmax("log_softmax", x, log=True)
    return g.finish(g.alignment_loss("loss", x, targets, kind=kind, steps=steps))


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(2, 60), st.integers(1, 30), st.sampled_from([2, 4]))
def test_plans_cover_the_lattice(batch, steps, labels, size):
    op = AlignmentLoss(kind="ctc", batch=batch, steps=steps, labels=labels, classes=20)
    plan = plan_ctc(op, size, CHIP)
    assert 1 <= plan.tiles <= CHIP.tiles
    assert plan.batch <= batch
    assert plan.label <= labels
    # Both directions together go through every step once.
    assert 2 * plan.steps >= steps
    (follow, _), (gradient, _) = plan.loops
    assert gradient > follow


def test_cycles_of_a_label_by_hand():
    """Four accesses and two sums and products of logarithms for label and blank, a branch."""
    assert step_cycles(1, extra_blank=False)[0] == 4 * 2 + 2 * 16 + 2 * 1 + 2
    assert step_cycles(3, extra_blank=True)[0] == 3 * 44 + 17
    more = 3 * 2 + 2 * (16 + 1)
    assert step_cycles(2, extra_blank=False)[1] == 2 * (44 + more)


def test_ctc_near_ipumodel():
    """Two rows; they include the upload of data, which no lowering runs."""
    errors = []
    for record in evidence_records("ipumodel_layers_dev.csv"):
        if record["op_kind"] != "ctc_loss" or record["target"] != "mk2":
            continue
        sizes = (int(record[f"ctc_{name}"]) for name in ("max_time", "max_label", "classes"))
        graph = network("ctc", int(record["batch"]), *sizes).with_precision("32.32")
        program = lower(graph, CHIP, STACK, host_dtype=None)
        cycles = sum(op.cycles for op in program.ops if op.name in ("log_softmax", "loss"))
        errors.append(cycles / int(record["cycles"]) - 1)
    assert len(errors) == 2
    assert max(abs(error) for error in errors) <= 0.35
    assert min(abs(error) for error in errors) <= 0.10


def test_a_transducer_walks_diagonals():
    graph = network("transducer", 2, 30, 10, 2).with_precision("16.16")
    program = lower(graph, CHIP, STACK, host_dtype=None)
    (loss,) = [op for op in program.ops if op.name == "loss"]
    loops = {step.repeats for step in loss.steps if step.repeats > 1}
    assert loops == {2 * (30 + 11 - 2)}


@pytest.mark.parametrize(("kind", "classes"), [("ctc", 20), ("transducer", 2)])
def test_losses_train_what_comes_before(kind, classes):
    graph = network(kind, 2, 6, 3, classes)
    graphs = training_graphs(graph, loss="identity")
    assert "dense.weight" in graphs.gradient_bytes
    scaled = next(op for op in graphs.micro_batch.ops if op.name == "loss.gradient")
    assert scaled.inputs[0] == "loss.out_gradient"
    assert lower(graphs.micro_batch, CHIP, STACK, host_dtype=None).cycles > 0


def test_unknown_losses_are_named():
    with pytest.raises(WorkloadError, match="viterbi"):
        AlignmentLoss(kind="viterbi", batch=1, steps=2, labels=1, classes=3)
