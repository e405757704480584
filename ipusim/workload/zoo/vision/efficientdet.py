"""EfficientDet: an EfficientNet, a pyramid of features that runs both ways, and two shared heads.

Tan, Pang and Le (arXiv 1911.09070) as in google/automl, whose code Graphcore runs
(graphcore/examples vision/efficientdet/tensorflow2, v3.3.0): every input of a pyramid node has its
own 1x1 convolution where its channels differ, nodes add their inputs by normalised weights, and
the heads share convolutions among the levels but not batch norms. Padding is symmetric; the shapes
are the same.

What runs is what Graphcore's benchmark runs (benchmarks.yml there). Weights are variables of Keras,
so no batch norm is folded. XLA doubles a field by a depthwise convolution with a fixed kernel
(graphcore/tensorflow tensorflow/compiler/tf2xla/kernels/image_resize_ops.cc).
Scores of all classes of a box are computed on the chip and reduced there, and all boxes go to
non-maximum suppression. Its threshold is 0.4 (ipu_inference.py, create_config), while the weights
are random and the bias of the scores starts at a probability of 0.01: the loop ends after one
round, and the other detections keep what they were filled with.
"""

from ipusim.workload.graph import NonMaxSuppression
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks
from ipusim.workload.zoo.vision import efficientnet


@networks
def efficientdet(g: GraphBuilder, batch: int, c: Config) -> tuple[str, ...]:
    """From an image (N, 3, S, S) to the detections."""
    images = g.input("images", (batch, 3, c.image_size, c.image_size))
    stages = efficientnet.backbone(g, images, c)
    features = [stages[stage] for stage in c.backbone_stages]
    for level in range(len(features), c.levels):
        features.append(_resample(g.at(f"resample.{level}"), features[-1], c.channels, -1))
    for cell in range(c.cells):
        features = _cell(g.at(f"fpn.{cell}"), features, c.channels)
    scores, boxes = (
        [_head(g, name, level, x, outputs, c) for level, x in enumerate(features)]
        for name, outputs in (("class_net", c.classes), ("box_net", 4))
    )
    return _detections(g, scores, boxes, c)


def _resample(g: GraphBuilder, x: str, channels: int, finer: int) -> str:
    """Change the channels where they differ; then halve, keep or double the field (-1, 0, 1)."""
    if g.shape(x)[1] != channels:
        x = g.batch_norm("bn", g.conv("conv", x, channels, 1, bias=True))
    if finer < 0:
        return g.max_pool("pool", x, 3, stride=2, padding=1)
    if not finer:
        return x
    # Zeros between the elements, a kernel with (0, 1, 1) along each axis: XLA repeats the last row
    # and cuts its last zero; padding by one zero more costs the same. It doubles one axis at a time
    # only where they grow by 16 together (kMax2DKernelSize).
    return g.conv_transpose("up", x, channels, 3, stride=2, groups=channels, role="constant")


def _cell(g: GraphBuilder, features: list[str], channels: int) -> list[str]:
    """Add one cell of the pyramid: a way down the levels, then one up."""
    last = len(features) - 1
    down = list(features)
    for level in range(last - 1, -1, -1):
        inputs = ((features[level], 0), (down[level + 1], 1))
        down[level] = _node(g.at(f"down.{level}"), inputs, channels)
    up = list(down)
    for level in range(1, last + 1):
        # The top level has no node on the way down.
        own = (features[level],) if level == last else (features[level], down[level])
        inputs = (*((x, 0) for x in own), (up[level - 1], -1))
        up[level] = _node(g.at(f"up.{level}"), inputs, channels)
    return up


def _node(g: GraphBuilder, inputs: tuple[tuple[str, int], ...], channels: int) -> str:
    """Add a node: inputs weighted by ReLU(w) / (sum + epsilon), Swish, a separable convolution."""
    names = [f"weight.{number}" for number in range(len(inputs))]
    weights = [g.elementwise(f"{name}.relu", "relu", g.parameter(name, (1,))) for name in names]
    total = weights[0]
    for number, weight in enumerate(weights[1:]):
        total = g.elementwise(f"total.{number}", "add", total, weight)
    total = g.elementwise("total.epsilon", "add", total)
    merged = ""
    for number, ((x, finer), weight) in enumerate(zip(inputs, weights, strict=True)):
        x = _resample(g.at(f"resample.{number}"), x, channels, finer)
        x = g.elementwise(f"scale.{number}", "mul", x, weight)
        x = g.elementwise(f"share.{number}", "div", x, total)
        merged = g.elementwise(f"add.{number}", "add", merged, x) if merged else x
    x = g.elementwise("act", "swish", merged)
    return g.batch_norm("bn", _separable(g.at("conv"), x, channels))


def _separable(g: GraphBuilder, x: str, channels: int) -> str:
    """Add a depthwise 3x3 convolution and a 1x1 convolution with bias."""
    before = g.shape(x)[1]
    x = g.conv("dw", x, before, 3, padding=1, groups=before)
    return g.conv("pw", x, channels, 1, bias=True)


def _head(g: GraphBuilder, net: str, level: int, x: str, outputs: int, c: Config) -> str:
    """Add one head on one level; the result is (N, boxes, outputs)."""
    channels = g.shape(x)[1]
    layers = [*(f"{number}.conv" for number in range(c.repeats)), "predict"]
    if level:
        for layer in layers:
            g.share(f"{net}.{level}.{layer}.", f"{net}.0.{layer}.")
    for number in range(c.repeats):
        block = g.at(f"{net}.{level}.{number}")
        x = block.batch_norm("bn", _separable(block.at("conv"), x, channels))
        x = block.elementwise("act", "swish", x)
    x = _separable(g.at(f"{net}.{level}.predict"), x, c.anchors * outputs)
    batch, _, rows, columns = g.shape(x)
    # Channels are innermost in memory, and a box's numbers lie together in them.
    return g.reshape(f"{net}.{level}.rows", x, (batch, c.anchors * rows * columns, outputs))


def _detections(g: GraphBuilder, scores: list[str], boxes: list[str], c: Config) -> tuple[str, ...]:
    """Take the best class of each box, decode the boxes, suppress those that overlap."""
    logits = g.concat("scores", *scores, axis=1)
    classes = g.argmax("classes", logits)
    best = g.reduce("best", "max", g.elementwise("probabilities", "sigmoid", logits), axis=2)
    corners = _corners(g, g.concat("boxes", *boxes, axis=1))
    batch, count, _ = g.shape(logits)
    params = NonMaxSuppression(batch=batch, boxes=count, detections=c.rounds)
    shapes = [(batch, c.rounds, 4), (batch, c.rounds), (batch, c.rounds)]
    found = g.apply_several("nms", params, (best, classes, corners), shapes)
    return tuple(
        g.pad(f"detections.{number}", x, axis=1, size=c.detections)
        for number, x in enumerate(found)
    )


def _corners(g: GraphBuilder, boxes: str) -> str:
    """Turn offsets from anchors into corners: exp(size) x anchor, centre + offset x anchor."""
    size = g.narrow("sizes", boxes, axis=2, size=2)
    size = g.at("sizes").chain(size, exp="exp", anchors="mul")
    centre = g.narrow("centres", boxes, axis=2, size=2)
    centre = g.at("centres").chain(centre, anchors="mul", shift="add")
    half = g.elementwise("sizes.half", "mul", size)
    low = g.elementwise("corners.low", "sub", centre, half)
    high = g.elementwise("corners.high", "add", centre, half)
    return g.concat("corners", low, high, axis=2)
