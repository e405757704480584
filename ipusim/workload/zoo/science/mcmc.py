"""A Bayesian network whose weights are sampled by Hamiltonian Monte Carlo.

graphcore/examples tag v2.4.0, code_examples/tensorflow/mcmc/mcmc_tfp.py: 22 features, 40 units with
tanh, one unit, one factor with offset; Student's t likelihood of 2.2 degrees of freedom. Data stay
on the chip. Every leapfrog step takes the gradient over all data items; then momenta and weights
move, and the normal prior pulls weights back, which is what momentum SGD with decay does.
"""

from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def mcmc_bnn(g: GraphBuilder, batch: int, c: Config) -> str:
    """Bayesian network of the MCMC example, from all data items to their log likelihood (1,)."""
    x = g.constant("features", (batch, c.features))
    x = g.elementwise("normalise", "scale", x)
    x = g.elementwise("tanh", "tanh", g.linear("w1", x, c.units))
    x = g.linear("w2", x, 1)
    x = g.elementwise("w3", "mul", x, g.parameter("w3.weight", (1,)))
    x = g.elementwise("b3", "add", x, g.parameter("b3.bias", (1,)))
    x = g.elementwise("residual", "sub", x, g.constant("returns", (batch, 1)))
    x = g.elementwise("residual.scale", "scale", x)
    x = g.elementwise("log.scale", "scale", g.chain(x, square="square", one="add", log="log"))
    return g.reduce("likelihood", "sum", x, axis=0)
