"""The dense network that emulates gravity-wave drag in ECMWF's weather model.

Chantry et al., J. Adv. Model. Earth Syst. 13 (2021), doi 10.1029/2021MS002477 (arXiv 2101.08195):
three columns of 63 levels and two surface values in, two columns of 63 tendencies out.
"""

from ipusim.workload.zoo.registry import GraphBuilder, networks

INPUTS, OUTPUTS = 3 * 63 + 2, 2 * 63
HIDDEN_LAYERS, UNITS = 6, 95


@networks
def weather_mlp(g: GraphBuilder, batch: int) -> str:
    """Gravity-wave drag, from columns (N, 191) to tendencies (N, 126)."""
    x = g.input("columns", (batch, INPUTS))
    for layer in range(1, HIDDEN_LAYERS + 1):
        x = g.elementwise(f"dense{layer}.tanh", "tanh", g.linear(f"dense{layer}", x, UNITS))
    return g.linear("out", x, OUTPUTS)
