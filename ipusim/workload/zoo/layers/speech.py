"""Blocks of networks for speech: convolutions along time, gates, repeated symbols.

Activations are (items x steps, features) matrices, as in `transformer`. A convolution along time
reads them as (items, features, steps): on the IPU a change of the order of axes is a view, and the
convolution rearranges what it receives.
"""

from ipusim.workload.layers import GraphBuilder


def conv_along_time(
    g: GraphBuilder,
    name: str,
    x: str,
    batch: int,
    out_features: int,
    kernel: int,
    *,
    causal: bool = False,
    **settings: int,
) -> str:
    """Add a 1-D convolution of rows (N x T, C), with bias by default: (N x T', out features).

    The result has as many steps as the input over the stride; `causal` reads nothing later than
    the step it computes. Settings are those of `GraphBuilder.conv1d`.
    """
    rows, features = g.shape(x)
    reach = (kernel - 1) * settings.get("dilation", 1)
    padding = (reach, 0) if causal else (reach // 2, reach - reach // 2)
    y = g.reshape(f"{name}.columns", x, (batch, features, rows // batch))
    settings = {"padding": padding, "bias": True} | settings
    y = g.conv1d(name, y, out_features, kernel, **settings)
    return g.reshape(f"{name}.rows", y, (batch * g.shape(y)[2], out_features))


def gated(g: GraphBuilder, name: str, x: str) -> str:
    """Multiply the first half of the features by the sigmoid of the second (GLU)."""
    half = g.shape(x)[1] // 2
    values, gates = g.split(f"{name}.halves", x, (half, half), axis=1)
    return g.elementwise(name, "mul", values, g.elementwise(f"{name}.gate", "sigmoid", gates))


def multiply_lengths(g: GraphBuilder, name: str, x: str, batch: int, frames: int, ends: str) -> str:
    """Repeat each row (N x T, C) as long as its symbol lasts, by a product with zeros and ones.

    `ends` (N, T) are the frames at which symbols end; each frame is compared with where every
    symbol starts and ends.
    """
    rows, features = g.shape(x)
    steps = rows // batch
    size = (batch, frames, steps)
    row = g.reshape(f"{name}.row", ends, (batch, 1, steps))
    number = g.parameter(f"{name}.numbers", (frames, 1), role="constant")
    before = g.expand(f"{name}.expand", row, size)
    started = g.elementwise(f"{name}.started", "less_or_equal", before, number)
    lasting = g.elementwise(f"{name}.lasting", "greater", before, number)
    chosen = g.cast(
        f"{name}.chosen", g.elementwise(f"{name}.both", "and", started, lasting), "float32"
    )
    y = g.reshape(f"{name}.items", x, (batch, steps, features))
    return g.reshape(f"{name}.rows", g.matmul(name, chosen, y), (batch * frames, features))
