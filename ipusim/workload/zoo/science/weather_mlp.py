"""The dense network that emulates gravity-wave drag in ECMWF's weather model.

Chantry et al., J. Adv. Model. Earth Syst. 13 (2021), doi 10.1029/2021MS002477 (arXiv 2101.08195):
three columns of 63 levels and two surface values in, two columns of 63 tendencies out.
"""

from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def weather_mlp(g: GraphBuilder, batch: int, c: Config) -> str:
    """Gravity-wave drag, from columns (N, 191) to tendencies (N, 126)."""
    x = g.input("columns", (batch, 3 * c.levels + 2))
    for layer in range(1, c.layers + 1):
        x = g.elementwise(f"dense{layer}.tanh", "tanh", g.linear(f"dense{layer}", x, c.units))
    return g.linear("out", x, 2 * c.levels)
