"""Blocks of networks for speech: convolutions along time, gates, repeated symbols.

Activations are (items, steps, features), as in `transformer`. A convolution along time reads them
as (items, features, steps): on the IPU a change of the order of axes is a view, and the convolution
rearranges what it receives.
"""

from ipusim.workload.layers import GraphBuilder


def conv_along_time(
    g: GraphBuilder,
    name: str,
    x: str,
    out_features: int,
    kernel: int,
    *,
    causal: bool = False,
    **settings: int,
) -> str:
    """Add a convolution of (N, T, C), with bias by default: (N, T', out features).

    The result has as many steps as the input over the stride; `causal` reads nothing later than
    the step it computes. Settings are those of `GraphBuilder.conv`.
    """
    items, steps, features = g.shape(x)
    reach = (kernel - 1) * settings.get("dilation", 1)
    before = reach if causal else reach // 2
    y = g.reshape(f"{name}.columns", x, (items, features, steps))
    settings = {"padding": before, "padding_upper": reach - before, "bias": True} | settings
    y = g.conv(name, y, out_features, kernel, **settings)
    return g.reshape(f"{name}.rows", y, (items, g.shape(y)[2], out_features))


def gated(g: GraphBuilder, name: str, x: str) -> str:
    """Multiply the first half of the features by the sigmoid of the second (GLU)."""
    values, gates = g.split(f"{name}.halves", x, 2, axis=2)
    return g.elementwise(name, "mul", values, g.elementwise(f"{name}.gate", "sigmoid", gates))


def multiply_lengths(g: GraphBuilder, name: str, x: str, frames: int, ends: str) -> str:
    """Repeat each step of (N, T, C) as long as its symbol lasts, by a product with zeros and ones.

    `ends` (N, T) are the frames at which symbols end; each frame is compared with where every
    symbol starts and ends.
    """
    items, steps, _ = g.shape(x)
    row = g.reshape(f"{name}.row", ends, (items, 1, steps))
    number = g.constant(f"{name}.numbers", (frames, 1))
    before = g.expand(f"{name}.expand", row, (items, frames, steps))
    started = g.elementwise(f"{name}.started", "less_or_equal", before, number)
    lasting = g.elementwise(f"{name}.lasting", "greater", before, number)
    both = g.elementwise(f"{name}.both", "and", started, lasting)
    return g.matmul(name, g.cast(f"{name}.chosen", both, "float32"), x)
