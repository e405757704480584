"""A stack of LSTM layers, the kernel benchmark behind a chart of the MK2 blog.

graphcore/examples, commit df5dcba, code_examples/tensorflow/kernel_benchmarks/lstm_multi.py, with
its defaults: two layers of 256 units on 200 steps of 16 values, and a dense layer on the last
output.
"""

from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def lstm_2_layers(g: GraphBuilder, batch: int, c: Config) -> str:
    """Two LSTM layers and a dense layer, from sequences (200, N, 16) to one value each."""
    x = g.input("sequence", (c.steps, batch, c.features))
    for layer in range(c.layers):
        x = g.recurrent(f"lstm{layer}", x, c.hidden, sequence=layer < c.layers - 1)
    return g.linear("dense", x, 1)
