"""A stack of LSTM layers, the kernel benchmark behind a chart of the MK2 blog.

graphcore/examples, commit df5dcba, code_examples/tensorflow/kernel_benchmarks/lstm_multi.py, with
its defaults: two layers of 256 units on 200 steps of 16 values, and a dense layer on the last
output.
"""

from ipusim.workload.zoo.registry import GraphBuilder, networks

STEPS, FEATURES, HIDDEN, LAYERS = 200, 16, 256, 2


@networks
def lstm_2_layers(g: GraphBuilder, batch: int) -> str:
    """Two LSTM layers and a dense layer, from sequences (200, N, 16) to one value each."""
    x = g.input("sequence", (STEPS, batch, FEATURES))
    for layer in range(LAYERS):
        x = g.recurrent(f"lstm{layer}", x, HIDDEN, sequence=layer < LAYERS - 1)
    return g.linear("dense", x, 1)
