"""Scaled-YOLOv4 in its P5 size, as Graphcore runs it.

Wang et al. (arXiv 2011.08036): a backbone of cross-stage partial blocks, spatial pyramid pooling, a
path aggregation neck, one head for each of three scales. Structure, names and the arithmetic of the
heads are those of graphcore/examples applications/pytorch/detection (v2.4.0). There an application
folds the batch norm behind the concatenation of a backbone block into the two convolutions before
it; here each half has its own batch norm, which is the same and is folded like any other. Mish is
written as exp, add, log, tanh and multiply, as there.

Of what follows the heads, the change of boxes to corners and the lookup of the candidates are
here. Left out is the selection of the `candidates` highest objectness values, and the loop of
non-maximum suppression: it ends when no score is above its threshold, which depends on the data.
"""

from ipusim.workload.zoo.layers.cnn import conv_norm
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks

BOX_NUMBERS = 5
"""Centre, size and objectness of a box."""
NECK_BLOCKS, POOL_KERNELS = 3, (5, 9, 13)


def _settle(g: GraphBuilder, x: str, channels: int, kernel: int = 1, stride: int = 1) -> str:
    """Add a convolution without bias, a batch norm and Mish."""
    names = ("conv", "norm", "act")
    return conv_norm(g, names, x, channels, kernel, stride=stride, activation="mish")


def _residuals(g: GraphBuilder, x: str, blocks: int, *, shortcut: bool) -> str:
    """Add blocks of a 1x1 and a 3x3 convolution."""
    channels = g.shape(x)[1]
    for block in range(blocks):
        y = _settle(g.at(f"{block}.conv1"), x, channels)
        y = _settle(g.at(f"{block}.conv2"), y, channels, 3)
        x = g.elementwise(f"{block}.add", "add", y, x) if shortcut else y
    return x


def _partial_block(g: GraphBuilder, x: str, channels: int, blocks: int) -> str:
    """Add a block of the backbone: half of the channels go past its residual blocks."""
    hidden = channels // 2
    y = _settle(g.at("bottleneck_conv1"), x, hidden)
    y = _residuals(g.at("res_modules"), y, blocks, shortcut=True)
    halves = (g.conv("conv1", y, hidden, 1), g.conv("bottleneck_conv2", x, hidden, 1))
    normed = [g.batch_norm(f"norm{number}", half) for number, half in enumerate(halves)]
    y = g.elementwise("act", "mish", g.concat("cat", *normed, axis=1))
    return _settle(g.at("conv2"), y, channels)


def _neck_block(g: GraphBuilder, x: str, channels: int) -> str:
    """Add a block of the neck, whose residual blocks have no shortcut."""
    x = _settle(g.at("bottleneck_conv1"), x, channels)
    y = _residuals(g.at("res_modules"), x, NECK_BLOCKS, shortcut=False)
    y = g.concat("cat", y, g.conv("conv1", x, channels, 1), axis=1)
    y = g.elementwise("act", "mish", g.batch_norm("norm", y))
    return _settle(g.at("conv2"), y, channels)


def _pooled(g: GraphBuilder, x: str, channels: int) -> str:
    """Add spatial pyramid pooling: maxima over three windows beside the data."""
    past = g.conv("conv_up1", x, channels, 1)
    x = _settle(g.at("conv_up2"), x, channels)
    x = _settle(g.at("conv1"), x, channels, 3)
    x = _settle(g.at("conv2"), x, channels)
    maxima = [
        g.max_pool(f"maxp_{size}", x, size, stride=1, padding=size // 2) for size in POOL_KERNELS
    ]
    y = g.concat("maxp_cat", x, *maxima, axis=1)
    y = _settle(g.at("maxp_bottleneck_conv"), y, channels)
    y = _settle(g.at("conv3"), y, channels, 3)
    y = g.concat("cat", y, past, axis=1)
    y = g.elementwise("act", "mish", g.batch_norm("norm", y))
    return _settle(g.at("cat_bottleneck"), y, channels)


def _up(g: GraphBuilder, x: str, finer: str) -> str:
    """Halve the channels of the coarser scale, enlarge it and merge it with the finer one."""
    channels = g.shape(x)[1] // 2
    x = g.resize("upsample", _settle(g.at("convup"), x, channels), 2)
    finer = _settle(g.at("conv1"), finer, channels)
    return _neck_block(g.at("csp"), g.concat("cat", finer, x, axis=1), channels)


def _down(g: GraphBuilder, x: str, coarser: str) -> str:
    """Shrink the finer scale and merge it with the coarser one."""
    channels = g.shape(coarser)[1]
    x = _settle(g.at("bottleneck_conv"), x, channels, 3, stride=2)
    x = g.concat("cat", x, coarser, axis=1)
    return _neck_block(g.at("csp"), x, channels)


def _head(g: GraphBuilder, x: str, c: Config) -> str:
    """Add the head of one scale; the result is (N, boxes, 85)."""
    numbers = BOX_NUMBERS + c.classes
    x = g.conv("detect", x, c.anchors * numbers, 1, bias=True)
    batch, _, rows, columns = g.shape(x)
    boxes = c.anchors * rows * columns
    x = g.reshape("reshape", x, (batch, c.anchors, numbers, rows * columns))
    x = g.transpose("permute", x, (0, 1, 3, 2))
    x = g.reshape("flatten", x, (batch, boxes, numbers))
    x = g.elementwise("sigmoid", "sigmoid", x)
    xy = g.narrow("xy", x, axis=2, size=2)
    xy = g.at("xy").chain(xy, double="mul", centre="mul", shift="add", stride="mul")
    wh = g.elementwise("wh.double", "mul", g.narrow("wh", x, axis=2, size=2))
    wh = g.elementwise("wh.square", "mul", wh, wh)
    wh = g.elementwise("wh.anchors", "mul", wh)
    rest = g.narrow("scores", x, axis=2, size=numbers - 4)
    return g.concat("cat", xy, wh, rest, axis=2)


@networks
def yolo(g: GraphBuilder, batch: int, c: Config) -> tuple[str, str]:
    """From an image (N, 3, S, S) to its candidate boxes, so many at most, and their scores."""
    x = g.input("images", (batch, 3, c.image_size, c.image_size))
    x = _settle(g.at("backbone.conv1"), x, 32, 3)
    scales: list[str] = []
    for number, (channels, blocks) in enumerate(c.backbone, start=1):
        stage = g.at(f"backbone.cspdark{number}")
        x = _settle(stage.at("downsample"), x, channels, 3, stride=2)
        x = _partial_block(stage.at("csp"), x, channels, blocks)
        scales.append(x)
    p3, p4, p5 = scales[-3:]
    p5 = _pooled(g.at("neck.SPP"), p5, c.backbone[-1][0] // 2)
    p4 = _up(g.at("neck.cspUp1"), p5, p4)
    p3 = _up(g.at("neck.cspUp2"), p4, p3)
    p4 = _down(g.at("neck.cspDown1"), p3, p4)
    p5 = _down(g.at("neck.cspDown2"), p4, p5)
    heads = []
    for number, scale in zip((3, 4, 5), (p3, p4, p5), strict=True):
        doubled = _settle(g.at(f"neck.out{number}"), scale, 2 * g.shape(scale)[1], 3)
        heads.append(_head(g.at(f"headp{number}"), doubled, c))
    return _candidates(g.at("nms"), g.concat("heads.cat", *heads, axis=1), c)


def _candidates(g: GraphBuilder, boxes: str, c: Config) -> tuple[str, str]:
    """Turn boxes into corners, and look up those that may be kept, with their class scores."""
    batch, count, numbers = g.shape(boxes)
    corners = g.narrow("boxes", boxes, axis=2, size=4)
    corners = g.at("corners").chain(corners, half="mul", low="sub", high="add")
    scores = g.narrow("classes", boxes, axis=2, size=numbers - BOX_NUMBERS)
    kept = min(c.candidates, count)
    found = []
    for name, table, width in (("scores", scores, c.classes), ("boxes", corners, 4)):
        # Element by element, as the application indexes the flattened tensor.
        flat = g.reshape(f"{name}.flat", table, (batch * count * width, 1))
        indices = (batch * kept * width,)
        chosen = g.constant(f"{name}.chosen", indices, "int32")
        picked = g.gather(f"{name}.gather", flat, chosen)
        found.append(g.reshape(f"{name}.kept", picked, (batch, kept, width)))
    return found[0], found[1]
