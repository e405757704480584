"""CookieNetAE: an autoencoder that turns grainy detector images into smooth densities.

AISDC/CookieNetAE (model.py): four convolutions with pooling between them, three transposed ones
that double the image again, one that keeps its size, one to a single channel; ReLU after each.
"""

from ipusim.workload.zoo.registry import Config, GraphBuilder, networks


@networks
def cookienetae(g: GraphBuilder, batch: int, c: Config) -> str:
    """CookieNetAE, from images (N, 1, 128, 128) to images of that size."""
    x = g.input("images", (batch, 1, c.image_size, c.image_size))
    for number, channels in enumerate(c.encoder, start=1):
        x = g.conv(f"encoder.{number}", x, channels, 3, padding=1, bias=True)
        x = g.elementwise(f"encoder.{number}.relu", "relu", x)
        if number < len(c.encoder):
            x = g.max_pool(f"encoder.{number}.pool", x, 2, stride=2)
    for number, (channels, kernel, stride) in enumerate(c.decoder, start=1):
        x = g.conv_transpose(f"decoder.{number}", x, channels, kernel, stride=stride, bias=True)
        x = g.elementwise(f"decoder.{number}.relu", "relu", x)
    x = g.conv("decoder.image", x, 1, 3, padding=1, bias=True)
    return g.elementwise("decoder.image.relu", "relu", x)
