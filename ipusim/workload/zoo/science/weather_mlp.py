"""The dense network that emulates gravity-wave drag in ECMWF's weather model.

Chantry et al., J. Adv. Model. Earth Syst. 13 (2021), doi 10.1029/2021MS002477 (arXiv 2101.08195):
three columns of 63 levels and two surface values in, two columns of 63 tendencies out.
"""

from __future__ import annotations

from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model

INPUTS, OUTPUTS = 3 * 63 + 2, 2 * 63
HIDDEN_LAYERS, UNITS = 6, 95


def build_weather_mlp(micro_batch: int | None) -> Graph:
    """Build the forward graph from columns (N, 191) to tendencies (N, 126).

    Parameters
    ----------
    micro_batch : int or None
        Columns per pass; None means 1.
    """
    g = GraphBuilder("weather_mlp")
    x = g.input("columns", (micro_batch or 1, INPUTS))
    for layer in range(1, HIDDEN_LAYERS + 1):
        x = g.elementwise(f"dense{layer}.tanh", "tanh", g.linear(f"dense{layer}", x, UNITS))
    return g.finish(g.linear("out", x, OUTPUTS))


def weather_mlp() -> Model:
    """Emulator of gravity-wave drag: 75,936 parameters."""
    return Model(
        name="weather_mlp",
        family="weather",
        build=build_weather_mlp,
        source="doi 10.1029/2021MS002477",
        note="Depth, width and activation are recalled, not checked.",
        loss="mean_squared",
    )
