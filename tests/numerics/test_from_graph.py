"""Graphs of the zoo's builder as programs: what each operator computes, and what has no form."""

import numpy as np
import pytest
from rounding_bound import HALF, assert_within, loose_bound

from ipusim import numerics
from ipusim.errors import WorkloadError
from ipusim.workload.layers import GraphBuilder


def test_operators_of_a_graph_are_those_of_their_definitions():
    g = GraphBuilder("all")
    x = g.batch_norm("norm", g.input("x", (2, 3, 2, 2)))
    x = g.elementwise("gate", "hard_sigmoid", x)
    x = g.dropout("dropout", g.cast("narrow", x, "float16"))
    graph = g.finish(g.reshape("rows", x, (2, 12)))
    random = np.random.default_rng(0)
    given = random.normal(size=(2, 3, 2, 2)).astype(np.float32)
    names = ("weight", "bias", "running_mean", "running_var")
    weights = {f"norm.{name}": random.uniform(0.5, 1.5, 3).astype(np.float32) for name in names}
    scale, shift, mean, variance = (one.reshape(3, 1, 1) for one in weights.values())
    wanted = np.clip(scale * (given - mean) / np.sqrt(variance + 1e-5) / 6 + shift / 6 + 0.5, 0, 1)
    (ran,) = numerics.run(graph, given, weights=weights, precision="32.32").values()
    wanted, operands = wanted.reshape(2, 12), (given, *weights.values())
    assert_within(ran, wanted, loose_bound(8, wanted, *operands))
    (half,) = numerics.run(graph, given, weights=weights, precision="16.16").values()
    assert half.dtype == np.float16
    assert_within(half, wanted, loose_bound(2, wanted, *operands, unit=HALF))


def test_random_weights_of_norms_leave_their_input_alone():
    g = GraphBuilder("norm")
    graph = g.finish(g.batch_norm("norm", g.input("x", (1, 2, 2, 2))))
    given = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    (result,) = numerics.run(graph, given, precision="32.32").values()
    wanted = given / np.sqrt(1 + 1e-5)
    assert_within(result, wanted, loose_bound(4, wanted, given))


def test_what_has_no_form_is_named():
    g = GraphBuilder("none")
    graph = g.finish(g.layer_norm("norm", g.input("x", (1, 2, 4))))
    with pytest.raises(WorkloadError, match=r"Operator 'norm' of kind norm \(layer\)"):
        numerics.run(graph, np.zeros((1, 2, 4)))
