"""BraggNN: the centre of a Bragg peak from an 11 x 11 patch of a detector frame.

Liu et al., "BraggNN: fast X-ray Bragg peak analysis using deep learning" (IUCrJ 9, 2022, 104-113;
arXiv 2008.08198), with the layers of its authors' code (github lzhengchun/BraggNN, 0d3fdc3,
``model.py`` with ``fcsz=16_8_4_2``): a convolution without activation, a non-local block, two
convolutions and five dense layers. Names follow that code.
"""

from math import prod

from ipusim.workload.zoo.layers import cnn
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


def _non_local_block(g: GraphBuilder, x: str) -> str:
    """Attention between all positions of a field, added to the field."""
    batch, channels, *field = g.shape(x)
    inner = channels // 2
    layers = ("theta_layer", "phi_layer", "g_layer")
    theta, phi, value = (cnn.at_positions(g, layer, x, inner, "flatten") for layer in layers)
    # The weighted sum comes out in the layout of the operands (channels, positions), as ``g @
    # softmax(theta^T @ phi)^T``, so no operand changes its order.
    scores = g.matmul("scores", theta, phi, transpose_a=True)
    attention = g.softmax("attention", scores)
    mixed = g.matmul("mix", value, attention, transpose_b=True)
    mixed = g.reshape("unflatten", mixed, (batch, inner, *field))
    out = g.conv("out_cnn", mixed, channels, 1, bias=True)
    return g.elementwise("residual", "add", out, x)


def _shift_and_crop(g: GraphBuilder, crops: str, c: Config) -> str:
    """Move each patch by random whole pixels and cut it out of its crop."""
    batch, channels, *_ = g.shape(crops)
    pixels = c.patch_size**2
    # The port (github daman-khaira/BraggNN_IPU at 3de617c, ``model.py``) draws the shifts on the
    # chip and looks pixels up one by one in all crops of the batch. Drawing random numbers costs
    # what dropping out does.
    drawn = g.elementwise("shift.draw", "dropout", g.input("peaks", (batch, c.coordinates)))
    corners = g.cast("shift.whole", drawn, "int32")
    corner = g.narrow("shift.corner", corners, axis=1, size=1)
    places = g.constant("shift.places", (1, pixels), "int32")
    repeated = g.expand("shift.repeat", corner, (batch, pixels))
    indices = g.elementwise("shift.index", "add", repeated, places)
    table = g.reshape("crop.table", crops, (prod(g.shape(crops)), 1))
    cut = g.gather("crop", table, g.reshape("crop.indices", indices, (batch * pixels,)))
    return g.reshape("crop.patches", cut, (batch, channels, c.patch_size, c.patch_size))


def _scale(g: GraphBuilder, x: str) -> str:
    """Scale each patch to 0..1: subtract its minimum, divide by what is then its maximum."""
    shape = g.shape(x)
    rows = g.reshape("scale.rows", x, (shape[0], prod(shape[1:])))
    for extreme, function in (("min", "sub"), ("max", "div")):
        found = g.reduce(f"scale.{extreme}", extreme, rows, axis=1, keep=True)
        rows = g.elementwise(f"scale.{function}", function, rows, found)
    return g.reshape("scale.patches", rows, shape)


@networks
def braggnn(g: GraphBuilder, batch: int, c: Config) -> str:
    """BraggNN, from patches (N, 1, 11, 11) to centres (N, 2): column, row, in fractions."""
    name, side = ("crops", c.crop_size) if c.crops else ("patches", c.patch_size)
    x = g.input(name, (batch, 1, side, side))
    if c.crops:
        x = _shift_and_crop(g, x, c)
    if c.scales:
        x = _scale(g, x)
    x = g.conv("cnn_layers_1", x, c.conv_channels[0], 3, bias=True)
    x = _non_local_block(g.at("nlb"), x)
    x = g.elementwise("nlb.activation", "leaky_relu", x)
    for number, channels in enumerate(c.conv_channels[1:], start=2):
        x = g.conv(f"cnn_layers_{number}", x, channels, 3, bias=True)
        x = g.elementwise(f"cnn_layers_{number}.activation", "leaky_relu", x)
    x = g.flatten("flatten", x)
    for number, units in enumerate(c.dense_units, start=1):
        x = g.linear(f"dense_layers.{number}", x, units)
        x = g.elementwise(f"dense_layers.{number}.activation", "leaky_relu", x)
    return g.linear("dense_layers.out", x, c.coordinates)
