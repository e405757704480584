"""A Bayesian network whose weights are sampled by Hamiltonian Monte Carlo.

graphcore/examples tag v2.4.0, code_examples/tensorflow/mcmc/mcmc_tfp.py: 22 features, 40 units with
tanh, one unit, one factor with offset. Every leapfrog step takes the gradient over all data items;
then momenta and weights move, and the normal prior pulls weights back, which is what momentum SGD
with decay does. The likelihood, Student's t there, is a squared error here: as many operations per
item, of which the logarithm is the one left out.
"""

from ipusim.workload.layers import GraphBuilder
from ipusim.workload.zoo.registry import network

FEATURES = 22
UNITS = 40
SOURCE = "graphcore/examples tag v2.4.0, code_examples/tensorflow/mcmc"


@network(family="mcmc", source=SOURCE, loss="mean_squared", parameters=963, macs=920)
def mcmc_bnn(g: GraphBuilder, batch: int) -> str:
    """Bayesian network of the MCMC example, from all data items to their estimates (N, 1)."""
    x = g.parameter("features", (batch, FEATURES), "constant")
    x = g.elementwise("normalise", "scale", x)
    x = g.elementwise("tanh", "tanh", g.linear("w1", x, UNITS))
    x = g.linear("w2", x, 1)
    x = g.elementwise("w3", "mul", x, g.parameter("w3.weight", (1,)))
    return g.elementwise("b3", "add", x, g.parameter("b3.bias", (1,)))
