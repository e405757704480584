"""U-Net for medical images: unpadded convolutions, skips cropped to the decoder's field.

Ronneberger et al. (arXiv 1505.04597) with the changes of Graphcore's application
(graphcore/examples, applications/tensorflow2/unet, whose layer names are kept): transposed
convolutions are followed by a ReLU, and crops are even-sized. Trained with cross entropy per pixel;
the application adds a Dice loss, a few sums over the same values, that is left out here.
"""

from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def unet_medical(g: GraphBuilder, batch: int, c: Config) -> str:
    """U-Net at 572 pixels, from an image (N, 1, 572, 572) to scores (N x 388 x 388, 2)."""
    x = g.input("images", (batch, 1, c.image_size, c.image_size))
    skips: list[str] = []
    *outer, inner = c.channels
    for level, channels in enumerate(outer):
        prefix = f"encoder_block_{level}"
        x = _double_conv(g, prefix, x, channels)
        crop = _decoder_field(g.shape(x)[2], len(outer) - level)
        skips.append(g.crop(f"{prefix}_crop", x, (crop, crop)))
        x = g.max_pool(f"{prefix}_maxpooling", x, 2, stride=2)
    lowest = f"encoder_block_{len(outer)}"
    x = g.dropout(f"{lowest}_dropout", _double_conv(g, lowest, x, inner))
    for level, channels in enumerate(reversed(outer)):
        prefix = f"decoder_block_{level}"
        x = g.conv_transpose(f"{prefix}_transpose", x, channels, 2, stride=2, bias=True)
        x = g.elementwise(f"{prefix}_transpose_relu", "relu", x)
        x = g.concat(f"{prefix}_concat", x, skips.pop(), axis=1)
        x = _double_conv(g, prefix, x, channels)
    x = g.conv("conv", x, c.classes, 1, bias=True)
    batch, classes, *field = g.shape(x)
    # Channels are innermost in memory, so pixels as rows are the same elements in the same order.
    return g.reshape("pixels", x, (batch * field[0] * field[1], classes))


def _double_conv(g: GraphBuilder, prefix: str, x: str, channels: int) -> str:
    for number in range(2):
        x = g.conv(f"{prefix}_conv_{number}", x, channels, 3, bias=True)
        x = g.elementwise(f"{prefix}_relu_{number}", "relu", x)
    return x


def _decoder_field(field: int, levels: int) -> int:
    """Side of the decoder's field where the encoder's is `field`, `levels` above the lowest."""
    if levels == 0:
        return field
    # Each level below halves, convolves twice without padding (4 pixels less), and doubles again;
    # the levels between convolve twice more on their way up.
    below = field // 2 - 4
    inner = _decoder_field(below, levels - 1)
    return 2 * (inner if levels == 1 else inner - 4)
