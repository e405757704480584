"""Tokens of transformers that see images: patches, and a token before them."""

from math import prod

from ipusim.workload.layers import GraphBuilder


def embed_patches(
    g: GraphBuilder, images: str, hidden: int, patch: int, *, bias: bool = True
) -> str:
    """Add the product of each patch of (N, 3, S, S) with one kernel: (N, patches, hidden)."""
    y = g.conv("proj", images, hidden, patch, stride=patch, bias=bias)
    batch, _, *field = g.shape(y)
    y = g.reshape("flatten", y, (batch, hidden, prod(field)))
    return g.transpose("tokens_first", y, (0, 2, 1))


def put_first(g: GraphBuilder, name: str, x: str, token: str = "") -> str:
    """Put one token (1, 1, H), by default a learnt one, before those of every item (N, T, H)."""
    batch, _, hidden = g.shape(x)
    token = token or g.parameter(name, (1, 1, hidden))
    first = g.expand(f"{name}.expand", token, (batch, 1, hidden))
    return g.concat(f"{name}.concat", first, x, axis=1)
