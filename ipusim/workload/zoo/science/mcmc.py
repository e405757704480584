"""A Bayesian network whose weights are sampled by Hamiltonian Monte Carlo.

graphcore/examples tag v2.4.0, code_examples/tensorflow/mcmc/mcmc_tfp.py: 22 features, 40 units with
tanh, one unit, one factor with offset. Every leapfrog step takes the gradient over all data items;
then momenta and weights move, and the normal prior pulls weights back, which is what momentum SGD
with decay does. The likelihood, Student's t there, is a squared error here: as many operations per
item, of which the logarithm is the one left out.
"""

from __future__ import annotations

from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model

FEATURES = 22
UNITS = 40


def build_mcmc_bnn(micro_batch: int | None) -> Graph:
    """Build the forward graph from the features of all data items to their estimates (N, 1).

    Parameters
    ----------
    micro_batch : int or None
        Data items; None means 1. Features stay on the chip.
    """
    g = GraphBuilder("mcmc_bnn")
    x = g.parameter("features", (micro_batch or 1, FEATURES), "constant")
    x = g.elementwise("normalise", "scale", x)
    x = g.elementwise("tanh", "tanh", g.linear("w1", x, UNITS))
    x = g.linear("w2", x, 1)
    x = g.elementwise("w3", "mul", x, g.parameter("w3.weight", (1,)))
    return g.finish(g.elementwise("b3", "add", x, g.parameter("b3.bias", (1,))))


def mcmc_bnn() -> Model:
    """Bayesian network of the MCMC example: 963 parameters, 921 MAC per data item."""
    return Model(
        name="mcmc_bnn",
        family="mcmc",
        build=build_mcmc_bnn,
        source="graphcore/examples tag v2.4.0, code_examples/tensorflow/mcmc",
        loss="mean_squared",
    )
