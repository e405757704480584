"""TransE: embeddings of a knowledge graph, whose table lies in Streaming Memory.

Bordes et al. 2013, as github graphcore/distributed-kge-poplar trains it on WikiKG90Mv2
(src/poplar_kge.cpp, src/python/poplar_kge.py, create_wikikg90mv2): the table of entities is shared
out over 16 chips; each reads the rows of its triples and of the tails that it lends to others,
adds the projection of fixed features, sends tails to all other chips, and scores every head against
every tail that it received, its own among them.
"""

from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def transe_256(g: GraphBuilder, batch: int, c: Config) -> str:
    """TransE, one of 16 shards: from numbers of rows to scores (triples, tails) of one chip.

    An item is a true triple. A chip reads as many rows to lend as there are tails that it scores.
    """
    heads = g.input("head", (batch,), "int32")
    relations = g.input("relation", (batch,), "int32")
    lent = g.input("a2a", (c.tails,), "int32")
    rows = batch + c.tails
    entities = g.streamed("entities", (rows, c.width), dtype="float16")
    features = g.streamed("features", (rows, c.features), dtype="float16", trained=False)
    entities = g.cast("entities.cast", entities, "float32")
    features = g.cast("features.cast", features, "float32")
    weight = g.parameter("feature_projection", (c.features, c.width))
    table = g.parameter("relation_embedding", (c.relations, c.width))
    hidden = {}
    for part in ("head", "tail"):
        projected = g.matmul(f"{part}.projection", features, weight)
        hidden[part] = g.elementwise(f"{part}.hidden", "add", projected, entities)
    head = g.gather("head.rows", hidden["head"], heads)
    tail = g.all_to_all("tail.exchange", g.gather("tail.rows", hidden["tail"], lent))
    wanted = g.elementwise("predict", "add", head, g.gather("relation.rows", table, relations))
    distance = g.distance("distance", g.copy("predict.copy", wanted), g.copy("tail.copy", tail))
    return g.elementwise("score", "sub", distance)
