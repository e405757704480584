"""TransE: embeddings of a knowledge graph, whose table lies in Streaming Memory.

Bordes et al. 2013, as github graphcore/distributed-kge-poplar trains it on WikiKG90Mv2
(src/poplar_kge.cpp, src/python/poplar_kge.py, create_wikikg90mv2): the table of entities is shared
out over 16 chips; each reads the rows of its triples and of the tails that it lends to others,
adds the projection of fixed features, sends tails to all other chips, and scores every head against
every tail that it received, its own among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model

RELATIONS = 1392
"""1,387, rounded up to a multiple of 16 shards."""
FEATURES = 768


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Sizes of a step.

    Attributes
    ----------
    name : str
    width : int
        Elements of an embedding.
    triples : int
        True triples of a chip and step, where none are asked for.
    tails : int
        Tails that a chip scores: 96 from each of 16 chips. It reads as many rows to lend.
    """

    name: str = "transe_256"
    width: int = 256
    triples: int = 512
    tails: int = 16 * 96


def build(micro_batch: int | None, *, topology: Topology) -> Graph:
    """Build the forward graph of one chip, from numbers of rows to scores (triples, tails).

    Parameters
    ----------
    micro_batch : int or None
        Triples per pass; None means those of the recipe.
    topology : Topology
    """
    g = GraphBuilder(topology.name)
    triples, width = micro_batch or topology.triples, topology.width
    heads = g.input("head", (triples,), "int32")
    relations = g.input("relation", (triples,), "int32")
    lent = g.input("a2a", (topology.tails,), "int32")
    rows = triples + topology.tails
    entities = g.streamed("entities", (rows, width), dtype="float16")
    features = g.streamed("features", (rows, FEATURES), dtype="float16", trained=False)
    entities = g.cast("entities.cast", entities, "float32")
    features = g.cast("features.cast", features, "float32")
    weight = g.parameter("feature_projection", (FEATURES, width))
    table = g.parameter("relation_embedding", (RELATIONS, width))
    hidden = [
        g.elementwise(
            f"{part}.hidden", "add", g.matmul(f"{part}.projection", features, weight), entities
        )
        for part in ("head", "tail")
    ]
    head = g.gather("head.rows", hidden[0], heads)
    tail = g.all_to_all("tail.exchange", g.gather("tail.rows", hidden[1], lent))
    wanted = g.elementwise("predict", "add", head, g.gather("relation.rows", table, relations))
    distance = g.distance("distance", g.copy("predict.copy", wanted), g.copy("tail.copy", tail))
    return g.finish(g.elementwise("score", "sub", distance))


def transe_256() -> Model:
    """TransE with 256 elements, one of 16 shards: 552,960 parameters beside the table."""
    topology = Topology()
    return Model(
        name=topology.name,
        family="transe",
        build=partial(build, topology=topology),
        source="github graphcore/distributed-kge-poplar, create_wikikg90mv2",
        loss="cross_entropy",
    )
