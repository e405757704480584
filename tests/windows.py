"""A convolution and a pool with some attributes changed: helper of the tests of several rooms."""

from ipusim.workload.graph import Conv, Pool

NO_PADDING = {"padding_lower": (0, 0), "padding_upper": (0, 0)}
_PADDED = {"padding_lower": (1, 1), "padding_upper": (1, 1)}
_CONV = {"batch": 4, "in_channels": 64, "out_channels": 64, "groups": 1, "field": (14, 14)}
_CONV |= {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1)} | _PADDED
_POOL = {"kind": "max", "batch": 1, "channels": 64, "field": (112, 112)}
_POOL |= {"kernel": (3, 3), "stride": (2, 2)} | _PADDED


def conv(**changes) -> Conv:
    """Return a 3 x 3 convolution of 64 channels on a field of 14 x 14."""
    return Conv(**(_CONV | changes))


def pool(**changes) -> Pool:
    """Return ResNet's 3 x 3 / 2 max pooling."""
    return Pool(**(_POOL | changes))
