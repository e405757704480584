"""A stack of LSTM layers, the kernel benchmark behind a chart of the MK2 blog.

graphcore/examples, commit df5dcba, code_examples/tensorflow/kernel_benchmarks/lstm_multi.py, with
its defaults: two layers of 256 units on 200 steps of 16 values, and a dense layer on the last
output.
"""

from __future__ import annotations

from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model

STEPS, FEATURES, HIDDEN, LAYERS = 200, 16, 256, 2


def build(micro_batch: int | None) -> Graph:
    """Build the graph from sequences (200, N, 16) to one value each."""
    g = GraphBuilder("lstm_2_layers")
    x = g.input("sequence", (STEPS, micro_batch or 1, FEATURES))
    for layer in range(LAYERS):
        x = g.recurrent(f"lstm{layer}", x, HIDDEN, sequence=layer < LAYERS - 1)
    return g.finish(g.linear("dense", x, 1))


def lstm_2_layers() -> Model:
    """Return two LSTM layers of 256 units with a dense layer."""
    return Model(
        name="lstm_2_layers",
        family="lstm",
        build=build,
        source="graphcore/examples@df5dcba:code_examples/tensorflow/kernel_benchmarks/lstm_multi.py",
        note="the best candidate for the LSTM of the MK2 blog, which does not name its sizes",
        loss="mean_squared",
    )
