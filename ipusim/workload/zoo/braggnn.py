"""BraggNN: the centre of a Bragg peak from an 11 x 11 patch of a detector frame.

Liu et al., "BraggNN: fast X-ray Bragg peak analysis using deep learning" (IUCrJ 9, 2022, 104-113;
arXiv 2008.08198), with the layers of its authors' code (github lzhengchun/BraggNN, 0d3fdc3,
``model.py`` with ``fcsz=16_8_4_2``): a convolution without activation, a non-local block, two
convolutions and five dense layers. Names follow that code.
"""

from __future__ import annotations

from ipusim.workload.builder import GraphBuilder
from ipusim.workload.graph import Graph, MatMul
from ipusim.workload.model import Model

PATCH_SIZE = 11
CONV_CHANNELS = (64, 32, 8)
DENSE_UNITS = (16, 8, 4, 2)
COORDINATES = 2


def _non_local_block(g: GraphBuilder, name: str, x: str) -> str:
    """Attention between all positions of a field, added to the field.

    With theta, phi and g as (channels, positions) matrices, the weighted sum of g comes out in the
    same layout as ``g @ softmax(theta^T @ phi)^T``, so no operand changes its order.
    """
    batch, channels, rows, columns = g.shape(x)
    inner, positions = channels // 2, rows * columns
    theta, phi, value = (
        g.reshape(
            f"{name}.{part}.flatten",
            g.conv(f"{name}.{part}", x, inner, 1, bias=True),
            (batch, inner, positions),
        )
        for part in ("theta_layer", "phi_layer", "g_layer")
    )
    transposed = MatMul(
        groups=batch, m=positions, k=inner, n=positions, weights_operand=False, transpose_a=True
    )
    scores = g.apply(f"{name}.scores", transposed, (theta, phi), (batch, positions, positions))
    attention = g.softmax(f"{name}.attention", scores)
    mixed = g.matmul(f"{name}.mix", value, attention, transpose_b=True)
    mixed = g.reshape(f"{name}.unflatten", mixed, (batch, inner, rows, columns))
    out = g.conv(f"{name}.out_cnn", mixed, channels, 1, bias=True)
    return g.elementwise(f"{name}.residual", "add", out, x)


def build_braggnn(micro_batch: int | None) -> Graph:
    """Build the forward graph.

    Parameters
    ----------
    micro_batch : int or None
        Patches per pass; None means 1.

    Returns
    -------
    Graph
        From patches (N, 1, 11, 11) to centres (N, 2), column first, as fractions of the patch.
    """
    g = GraphBuilder("braggnn")
    x = g.input("patches", (micro_batch or 1, 1, PATCH_SIZE, PATCH_SIZE))
    x = g.conv("cnn_layers_1", x, CONV_CHANNELS[0], 3, bias=True)
    x = _non_local_block(g, "nlb", x)
    x = g.elementwise("nlb.activation", "leaky_relu", x)
    for number, channels in enumerate(CONV_CHANNELS[1:], start=2):
        x = g.conv(f"cnn_layers_{number}", x, channels, 3, bias=True)
        x = g.elementwise(f"cnn_layers_{number}.activation", "leaky_relu", x)
    x = g.flatten("flatten", x)
    for number, units in enumerate(DENSE_UNITS, start=1):
        x = g.linear(f"dense_layers.{number}", x, units)
        x = g.elementwise(f"dense_layers.{number}.activation", "leaky_relu", x)
    return g.finish(g.linear("dense_layers.out", x, COORDINATES))


def braggnn() -> Model:
    """BraggNN: 33,172 parameters, 2.094 MMAC per patch."""
    return Model(
        name="braggnn",
        family="braggnn",
        build=build_braggnn,
        source="arXiv 2008.08198; github lzhengchun/BraggNN at 0d3fdc3, fcsz=16_8_4_2",
        loss="mean_squared",
    )
