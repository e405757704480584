"""CookieNetAE: an autoencoder that turns grainy detector images into smooth densities.

AISDC/CookieNetAE (model.py): four convolutions with pooling between them, three transposed ones
that double the image again, one that keeps its size, one to a single channel; ReLU after each.
"""

from ipusim.workload.zoo.registry import GraphBuilder, networks

IMAGE_SIZE = 128
ENCODER = (16, 32, 64, 128)
DECODER = ((128, 2, 2), (64, 2, 2), (32, 2, 2), (16, 3, 1))
"""Channels, kernel and stride of the transposed convolutions."""


@networks
def cookienetae(g: GraphBuilder, batch: int) -> str:
    """CookieNetAE, from images (N, 1, 128, 128) to images of that size."""
    x = g.input("images", (batch, 1, IMAGE_SIZE, IMAGE_SIZE))
    for number, channels in enumerate(ENCODER, start=1):
        x = g.conv(f"encoder.{number}", x, channels, 3, padding=1, bias=True)
        x = g.elementwise(f"encoder.{number}.relu", "relu", x)
        if number < len(ENCODER):
            x = g.max_pool(f"encoder.{number}.pool", x, 2, stride=2)
    for number, (channels, kernel, stride) in enumerate(DECODER, start=1):
        x = g.conv_transpose(f"decoder.{number}", x, channels, kernel, stride=stride, bias=True)
        x = g.elementwise(f"decoder.{number}.relu", "relu", x)
    x = g.conv("decoder.image", x, 1, 3, padding=1, bias=True)
    return g.elementwise("decoder.image.relu", "relu", x)
