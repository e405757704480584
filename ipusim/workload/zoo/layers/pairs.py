"""Scores of all pairs of two sets of vectors, as networks that compare images and texts end."""

from ipusim.workload.layers import GraphBuilder


def normalise_rows(g: GraphBuilder, x: str) -> str:
    """Divide every row of (N, F) by its length."""
    y = g.reduce("sum", "sum", g.elementwise("square", "square", x), axis=1)
    y = g.column("column", g.elementwise("length", "sqrt", y))
    return g.elementwise("divide", "div", x, y)


def scores_of_pairs(
    g: GraphBuilder, name: str, vectors: tuple[str, str], other: str
) -> tuple[str, str]:
    """Add the products of all rows of two, times a learnt scale, and the same the other way."""
    scores = g.matmul(name, *vectors, transpose_b=True)
    scale = g.elementwise("logit_scale.exp", "exp", g.parameter("logit_scale", (1, 1)))
    scores = g.elementwise(f"{name}.scale", "mul", scores, scale)
    return scores, g.transpose(f"{name}.{other}", scores, (1, 0))
