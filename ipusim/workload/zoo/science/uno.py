"""CANDLE Uno: how a tumour's cells respond to two drugs, from dense features.

ECP-CANDLE/Benchmarks, Pilot1/Uno (README and its log): towers of three dense layers read gene
expression, and descriptors and fingerprints of each drug with shared weights; their results and
the two doses go through three more. 15,580 numbers per sample arrive from the host.
"""

from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


def _tower(g: GraphBuilder, x: str, c: Config) -> str:
    for number, units in enumerate(c.units, start=1):
        x = g.linear(str(number), x, units)
        x = g.elementwise(f"{number}.relu", "relu", x)
    return x


@networks
def uno(g: GraphBuilder, batch: int, c: Config) -> str:
    """CANDLE Uno, from features to growth (N, 1)."""
    doses = [g.input(f"dose{drug}", (batch, 1)) for drug in (1, 2)]
    towers = [_tower(g.at("gene"), g.input("cell.rnaseq", (batch, c.genes)), c)]
    g.share("tower2.", "tower1.")
    for drug in (1, 2):
        for kind, features in (("descriptors", c.descriptors), ("fingerprints", c.fingerprints)):
            x = g.input(f"drug{drug}.{kind}", (batch, features))
            towers.append(_tower(g.at(f"tower{drug}.{kind}"), x, c))
    x = g.concat("concat", *doses, *towers, axis=1)
    x = _tower(g.at("dense"), x, c)
    return g.linear("growth", x, 1)
