"""CANDLE Uno: how a tumour's cells respond to two drugs, from dense features.

ECP-CANDLE/Benchmarks, Pilot1/Uno (README and its log): towers of three dense layers read gene
expression, and descriptors and fingerprints of each drug with shared weights; their results and
the two doses go through three more. 15,580 numbers per sample arrive from the host.
"""

from ipusim.workload.zoo.registry import GraphBuilder, networks

GENES, DESCRIPTORS, FINGERPRINTS = 942, 5270, 2048
UNITS = (1000, 1000, 1000)


def _tower(g: GraphBuilder, x: str) -> str:
    for number, units in enumerate(UNITS, start=1):
        x = g.linear(str(number), x, units)
        x = g.elementwise(f"{number}.relu", "relu", x)
    return x


@networks
def uno(g: GraphBuilder, batch: int) -> str:
    """CANDLE Uno, from features to growth (N, 1)."""
    doses = [g.input(f"dose{drug}", (batch, 1)) for drug in (1, 2)]
    towers = [_tower(g.at("gene"), g.input("cell.rnaseq", (batch, GENES)))]
    g.share("tower2.", "tower1.")
    for drug in (1, 2):
        for kind, features in (("descriptors", DESCRIPTORS), ("fingerprints", FINGERPRINTS)):
            x = g.input(f"drug{drug}.{kind}", (batch, features))
            towers.append(_tower(g.at(f"tower{drug}.{kind}"), x))
    x = g.concat("concat", *doses, *towers, axis=1)
    x = _tower(g.at("dense"), x)
    return g.linear("growth", x, 1)
