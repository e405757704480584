"""Which operand's memory an elementwise result takes."""

import pytest

from ipusim.compiler.overwriting import overwritten
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.training import training_graphs


def built(wire, *, outputs=("z",), second=(4, 8)):
    """Return what is overwritten in a graph of inputs a and b."""
    g = GraphBuilder("inputs")
    made = wire(g, g.input("a", (4, 8)), g.input("b", second))
    return overwritten(g.finish(*(made[name] for name in outputs)))


def summed(function, read_later):
    def wire(g, a, b):
        y = g.elementwise("y", function, a, b)
        z = g.elementwise("z", "add", y, {"a": a, "b": b}[read_later])
        return {"y": y, "z": z}

    return wire


def test_the_first_operand_is_overwritten_before_the_second():
    for function in ("add", "sub"):
        assert built(summed(function, "b")) == {"y": 0, "z": 0}


def test_of_a_sum_or_product_the_second_is_where_the_first_is_read_later():
    """PopART has a form of both that writes to the second operand."""
    for function in ("add", "mul"):
        assert built(summed(function, "a")) == {"y": 1, "z": 0}
    assert built(summed("sub", "a")) == {"z": 0}


def test_what_leaves_the_chip_or_is_smaller_or_a_weight_stays():
    wire = summed("add", "a")
    assert built(wire, outputs=("z", "y")) == {"y": 1, "z": 1}
    assert built(summed("add", "a"), second=(1, 8)) == {"z": 0}
    g = GraphBuilder("weight")
    a = g.input("a", (4, 8))
    y = g.elementwise("y", "mul", g.parameter("w", (4, 8)), a)
    assert overwritten(g.finish(y)) == {}


def test_a_view_that_is_read_later_keeps_the_whole():
    def wire(g, a, b):
        row = g.reshape("row", a, (32,))
        y = g.elementwise("y", "exp", a)
        return {"z": g.elementwise("z", "add", g.reshape("flat", y, (32,)), row)}

    assert built(wire) == {"z": 0}


@pytest.mark.parametrize("recompute", ["none", ["y"]])
def test_what_a_gradient_reads_stays_in_both_passes(recompute):
    """The gradient of a product reads both operands, that of a sum none."""
    g = GraphBuilder("gates")
    x = g.input("x", (16, 8))
    gate = g.linear("gate", x, 8)
    value = g.elementwise("shifted", "add", g.linear("value", x, 8), g.constant("one", (1,)))
    product = g.elementwise("product", "mul", value, gate)
    y = g.elementwise("y", "add", product, g.linear("skip", x, 8))
    graph = g.finish(g.linear("head", y, 4))
    micro_batch = training_graphs(graph, loss="mean_squared", recompute=recompute).micro_batch
    found = overwritten(micro_batch)
    names = [op.name for op in micro_batch.ops]
    assert ("value.bias_add.again" in names) == (recompute != "none")
    assert not found.keys() & {"product", "product.again"}
    assert found["y"] == 0
    assert "value.bias_add.again" not in names or found["shifted.again"] == found["shifted"] == 0
