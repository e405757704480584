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

from dataclasses import dataclass

from ipusim.workload.layers import GraphBuilder
from ipusim.workload.zoo.registry import variants

CLASSES = 80
ANCHORS = 4
"""Anchors of each scale."""
BOX_NUMBERS = 5
"""Centre, size and objectness of a box."""
BACKBONE = ((64, 1), (128, 3), (256, 15), (512, 15), (1024, 7))
"""Channels and residual blocks of each stage."""
POOL_KERNELS = (5, 9, 13)
NECK_BLOCKS = 3
CANDIDATES = {896: 1800, 640: 1200, 512: 2600, 416: 3000}
"""Boxes kept before suppression in the recipes of 5 iterations (benchmarks.yml, v2.6.0)."""
MACS = {896: 163_321_675_776, 640: 83_327_385_600, 512: 53_329_526_784, 416: 35_205_820_416}
"""Of one image."""
SOURCE = "arXiv 2011.08036, as in graphcore/examples applications/pytorch/detection"


@dataclass(slots=True)
class _Network:
    """Adds the blocks of the network to a graph."""

    g: GraphBuilder

    def settle(self, prefix: str, x: str, channels: int, kernel: int = 1, stride: int = 1) -> str:
        """Add a convolution without bias, a batch norm and Mish."""
        x = self.bare(f"{prefix}.conv", x, channels, kernel, stride)
        return self.mish(prefix, self.g.batch_norm(f"{prefix}.norm", x))

    def bare(self, name: str, x: str, channels: int, kernel: int = 1, stride: int = 1) -> str:
        """Add a convolution without bias."""
        return self.g.conv(name, x, channels, kernel, stride=stride, padding=kernel // 2)

    def mish(self, prefix: str, x: str) -> str:
        """Add Mish."""
        return self.g.elementwise(f"{prefix}.act", "mish", x)

    def join(self, name: str, *parts: str) -> str:
        """Add a concatenation along the channels."""
        return self.g.concat(name, *parts, axis=1, view=True)

    def residuals(self, prefix: str, x: str, blocks: int, *, shortcut: bool) -> str:
        """Add blocks of a 1x1 and a 3x3 convolution."""
        channels = self.g.shape(x)[1]
        for block in range(blocks):
            y = self.settle(f"{prefix}.{block}.conv1", x, channels)
            y = self.settle(f"{prefix}.{block}.conv2", y, channels, 3)
            x = self.g.elementwise(f"{prefix}.{block}.add", "add", y, x) if shortcut else y
        return x

    def partial_block(self, prefix: str, x: str, channels: int, blocks: int) -> str:
        """Add a block of the backbone: half of the channels go past its residual blocks."""
        hidden = channels // 2
        y = self.settle(f"{prefix}.bottleneck_conv1", x, hidden)
        y = self.residuals(f"{prefix}.res_modules", y, blocks, shortcut=True)
        halves = (
            self.bare(f"{prefix}.conv1", y, hidden),
            self.bare(f"{prefix}.bottleneck_conv2", x, hidden),
        )
        normed = [
            self.g.batch_norm(f"{prefix}.norm{number}", half) for number, half in enumerate(halves)
        ]
        y = self.mish(prefix, self.join(f"{prefix}.cat", *normed))
        return self.settle(f"{prefix}.conv2", y, channels)

    def neck_block(self, prefix: str, x: str, channels: int) -> str:
        """Add a block of the neck, whose residual blocks have no shortcut."""
        x = self.settle(f"{prefix}.bottleneck_conv1", x, channels)
        y = self.residuals(f"{prefix}.res_modules", x, NECK_BLOCKS, shortcut=False)
        y = self.join(f"{prefix}.cat", y, self.bare(f"{prefix}.conv1", x, channels))
        y = self.mish(prefix, self.g.batch_norm(f"{prefix}.norm", y))
        return self.settle(f"{prefix}.conv2", y, channels)

    def pooled(self, prefix: str, x: str, channels: int) -> str:
        """Add spatial pyramid pooling: maxima over three windows beside the data."""
        past = self.bare(f"{prefix}.conv_up1", x, channels)
        x = self.settle(f"{prefix}.conv_up2", x, channels)
        x = self.settle(f"{prefix}.conv1", x, channels, 3)
        x = self.settle(f"{prefix}.conv2", x, channels)
        maxima = [
            self.g.max_pool(f"{prefix}.maxp_{size}", x, size, stride=1, padding=size // 2)
            for size in POOL_KERNELS
        ]
        y = self.join(f"{prefix}.maxp_cat", x, *maxima)
        y = self.settle(f"{prefix}.maxp_bottleneck_conv", y, channels)
        y = self.settle(f"{prefix}.conv3", y, channels, 3)
        y = self.join(f"{prefix}.cat", y, past)
        y = self.mish(prefix, self.g.batch_norm(f"{prefix}.norm", y))
        return self.settle(f"{prefix}.cat_bottleneck", y, channels)

    def up(self, prefix: str, x: str, finer: str) -> str:
        """Halve the channels of the coarser scale, enlarge it and merge it with the finer one."""
        channels = self.g.shape(x)[1] // 2
        x = self.g.resize(f"{prefix}.upsample", self.settle(f"{prefix}.convup", x, channels), 2)
        finer = self.settle(f"{prefix}.conv1", finer, channels)
        return self.neck_block(f"{prefix}.csp", self.join(f"{prefix}.cat", finer, x), channels)

    def down(self, prefix: str, x: str, coarser: str) -> str:
        """Shrink the finer scale and merge it with the coarser one."""
        channels = self.g.shape(coarser)[1]
        x = self.settle(f"{prefix}.bottleneck_conv", x, channels, 3, stride=2)
        x = self.join(f"{prefix}.cat", x, coarser)
        return self.neck_block(f"{prefix}.csp", x, channels)

    def head(self, prefix: str, x: str) -> str:
        """Add the head of one scale; the result is (N, boxes, 85)."""
        g, numbers = self.g, BOX_NUMBERS + CLASSES
        x = g.conv(f"{prefix}.detect", x, ANCHORS * numbers, 1, bias=True)
        batch, _, rows, columns = g.shape(x)
        boxes = ANCHORS * rows * columns
        x = g.reshape(f"{prefix}.reshape", x, (batch, ANCHORS, numbers, rows * columns))
        x = g.transpose(f"{prefix}.permute", x, (0, 1, 3, 2))
        x = g.reshape(f"{prefix}.flatten", x, (batch, boxes, numbers))
        x = g.elementwise(f"{prefix}.sigmoid", "sigmoid", x)
        xy = g.narrow(f"{prefix}.xy", x, axis=2, size=2)
        for step in ("double", "centre", "shift", "stride"):
            xy = g.elementwise(f"{prefix}.xy.{step}", "add" if step == "shift" else "mul", xy)
        wh = g.narrow(f"{prefix}.wh", x, axis=2, size=2)
        wh = g.elementwise(f"{prefix}.wh.double", "mul", wh)
        wh = g.elementwise(f"{prefix}.wh.square", "mul", wh, wh)
        wh = g.elementwise(f"{prefix}.wh.anchors", "mul", wh)
        rest = g.narrow(f"{prefix}.scores", x, axis=2, size=numbers - 4)
        return g.concat(f"{prefix}.cat", xy, wh, rest, axis=2)


def build(g: GraphBuilder, batch: int, image_size: int) -> tuple[str, str]:
    """From an image (N, 3, S, S) to its candidate boxes and their scores."""
    net = _Network(g)
    x = g.input("images", (batch, 3, image_size, image_size))
    x = net.settle("backbone.conv1", x, 32, 3)
    scales: list[str] = []
    for number, (channels, blocks) in enumerate(BACKBONE, start=1):
        prefix = f"backbone.cspdark{number}"
        x = net.settle(f"{prefix}.downsample", x, channels, 3, stride=2)
        x = net.partial_block(f"{prefix}.csp", x, channels, blocks)
        scales.append(x)
    p3, p4, p5 = scales[-3:]
    p5 = net.pooled("neck.SPP", p5, BACKBONE[-1][0] // 2)
    p4 = net.up("neck.cspUp1", p5, p4)
    p3 = net.up("neck.cspUp2", p4, p3)
    p4 = net.down("neck.cspDown1", p3, p4)
    p5 = net.down("neck.cspDown2", p4, p5)
    heads = []
    for number, scale in zip((3, 4, 5), (p3, p4, p5), strict=True):
        doubled = net.settle(f"neck.out{number}", scale, 2 * g.shape(scale)[1], 3)
        heads.append(net.head(f"headp{number}", doubled))
    return _candidates(g, g.concat("heads.cat", *heads, axis=1), image_size)


def _candidates(g: GraphBuilder, boxes: str, image_size: int) -> tuple[str, str]:
    """Turn boxes into corners, and look up those that may be kept, with their class scores."""
    batch, count, numbers = g.shape(boxes)
    corners = g.narrow("nms.boxes", boxes, axis=2, size=4)
    for step, function in (("half", "mul"), ("low", "sub"), ("high", "add")):
        corners = g.elementwise(f"nms.corners.{step}", function, corners)
    scores = g.narrow("nms.classes", boxes, axis=2, size=numbers - BOX_NUMBERS)
    kept = min(CANDIDATES.get(image_size, count), count)
    found = []
    for name, table, width in (("scores", scores, CLASSES), ("boxes", corners, 4)):
        # Element by element, as the application indexes the flattened tensor.
        flat = g.reshape(f"nms.{name}.flat", table, (batch * count * width, 1))
        indices = (batch * kept * width,)
        chosen = g.parameter(f"nms.{name}.chosen", indices, role="constant", dtype="int32")
        picked = g.gather(f"nms.{name}.gather", flat, chosen)
        found.append(g.reshape(f"nms.{name}.kept", picked, (batch, kept, width)))
    return found[0], found[1]


SIZES = tuple((f"yolo_v4_p5_{size}", size, 70_834_012, macs) for size, macs in MACS.items())
NOTE = "Selection of candidates and the suppression loop are left out."
variants(build, SIZES, "image_size", family="yolo", source=SOURCE, note=NOTE)
