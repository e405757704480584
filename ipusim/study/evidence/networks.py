"""Networks whose compiled memory is known, as graphs: what `ipusim.study.evidence.memory` compares.

Three were profiled whole (graphcore/popliner at 12424d6), small ones are asserted by the tests of
graphcore/tensorflow (size_speed_tests). The files are in `data/evidence`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from ipusim.workload import zoo
from ipusim.workload.folding import drop_dropout
from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.training import Graphs, training_graphs
from ipusim.workload.zoo.layers.cnn import round_channels

EDGE_WIDTH, EDGE_DEPTH = 1.2, 1.4
EDGE_STEM, EDGE_HEAD, EDGE_CLASSES = 32, 1280, 1001
EDGE_PIXELS = 224
EDGE_STAGES = (
    # Kernel, stride of the first block, channels read and made, blocks, expansion, whether one full
    # convolution both expands and filters, whether inputs are added to results.
    (3, 1, 24, 24, 1, 4, True, False),
    (3, 2, 24, 32, 2, 8, True, True),
    (3, 2, 32, 48, 4, 8, True, True),
    (3, 2, 48, 96, 5, 8, False, True),
    (5, 1, 96, 144, 4, 8, False, True),
    (5, 2, 144, 192, 2, 8, False, True),
)
"""EfficientNet-EdgeTPU-L (tensorflow/tpu, models/official/efficientnet/edgetpu), before scaling."""


def efficientnet_edgetpu_l(batch: int) -> Graph:
    """Build EfficientNet-EdgeTPU-L with batch norm folded into biases, 27 blocks.

    Early blocks expand by a full 3x3 convolution and stride in the 1x1 convolution that follows.
    """

    def scaled(channels: int) -> int:
        return round_channels(channels * EDGE_WIDTH)

    g = GraphBuilder("efficientnet_edgetpu_l")
    x = g.input("images", (batch, 3, EDGE_PIXELS, EDGE_PIXELS))
    x = g.conv("stem", x, scaled(EDGE_STEM), 3, stride=2, padding=1, bias=True)
    x = g.elementwise("stem.relu", "relu", x)
    number = 0
    for kernel, first_stride, read, made, blocks, expansion, fused, adds in EDGE_STAGES:
        for block in range(ceil(blocks * EDGE_DEPTH)):
            name = f"blocks.{number}"
            stride = first_stride if block == 0 else 1
            inner = scaled(made if block else read) * expansion
            y = g.conv(f"{name}.expand", x, inner, 3 if fused else 1, padding=int(fused), bias=True)
            y = g.elementwise(f"{name}.relu", "relu", y)
            if not fused:
                by_channel = {"padding": kernel // 2, "groups": inner, "bias": True}
                y = g.conv(f"{name}.filter", y, inner, kernel, stride=stride, **by_channel)
                y = g.elementwise(f"{name}.filter.relu", "relu", y)
            y = g.conv(
                f"{name}.project", y, scaled(made), 1, stride=stride if fused else 1, bias=True
            )
            if adds and g.shape(x) == g.shape(y):
                y = g.elementwise(f"{name}.add", "add", y, x)
            x, number = y, number + 1
    x = g.conv("head", x, scaled(EDGE_HEAD), 1, bias=True)
    x = g.elementwise("head.relu", "relu", x)
    x = g.flatten("flatten", g.global_average_pool("pool", x))
    return g.finish(g.linear("classifier", x, EDGE_CLASSES))


def truncated_resnet18(batch: int) -> Graph:
    """Build the stem and the first two blocks of a ResNet-18 without norms, on 224 pixels."""
    g = GraphBuilder("truncated_resnet18")
    x = g.input("images", (batch, 4, 224, 224))
    x = g.elementwise("stem.relu", "relu", g.conv("stem", x, 64, 7, stride=2, padding=3, bias=True))
    x = g.max_pool("pool", x, 3, stride=2, padding=1)
    for block in range(2):
        y = g.conv(f"block{block}.conv1", x, 64, 3, padding=1, bias=True)
        y = g.elementwise(f"block{block}.relu1", "relu", y)
        y = g.conv(f"block{block}.conv2", y, 64, 3, padding=1, bias=True)
        y = g.elementwise(f"block{block}.add", "add", y, x)
        x = g.elementwise(f"block{block}.relu2", "relu", y)
    x = g.flatten("flatten", g.max_pool("global_pool", x, 56, stride=1))
    return g.finish(g.linear("fc", x, 1000))


def mlp(batch: int) -> Graph:
    """Build three dense layers of 32, 64 and 64 features, each with a ReLU, on 50,176 values."""
    g = GraphBuilder("mlp")
    x = g.input("data", (batch, 112 * 112 * 4))
    for number, width in enumerate((32, 64, 64)):
        x = g.elementwise(f"layer{number}.relu", "relu", g.linear(f"layer{number}", x, width))
    return g.finish(x)


def serialised_product(parts: int) -> Graph:
    """Build x + yz, the product in equal parts of the rows of y."""
    rows, width, inner = 30522, 768, 128
    g = GraphBuilder("serialised_product")
    x, y, z = g.input("x", (rows, width)), g.input("y", (rows, inner)), g.input("z", (inner, width))
    products = [
        g.matmul(f"product{part}", g.narrow(f"rows{part}", y, axis=0, size=rows // parts), z)
        for part in range(parts)
    ]
    return g.finish(g.elementwise("add", "add", x, g.concat("parts", *products, axis=0)))


def _tiny_bert() -> Graphs:
    """Three layers of 64 features, recomputed one by one (``demo_tiny_128`` of run_squad.py)."""
    tiny = zoo.bert_base_squad(layers=3, hidden=64, heads=8, tokens=128)
    return training_graphs(
        drop_dropout(tiny.graph()),
        loss="cross_entropy",
        optimizer="adam",
        accumulate="scaled_add",
        recompute=("encoder.layer.0.mlp.norm", "encoder.layer.1.mlp.norm"),
    )


def _nano_gpt() -> Graphs:
    """Six layers of 384 features in float32, two sequences of 1,024 characters, no dropout.

    As graphcore-research/flash-attention-ipu has it (demo/train.py, on train_shakespeare_char of
    nanoGPT): AdamW, gradients of several micro-batches accumulated.
    """
    small = zoo.gpt2_small(layers=6, hidden=384, heads=6, vocabulary=65)
    return training_graphs(
        drop_dropout(small.graph(2)).with_precision("32.32"),
        loss="cross_entropy",
        optimizer="adamw",
        accumulate="scaled_add",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """A network of ipu_network_memory.csv or ipu_network_programs.csv."""

    build: Callable[[], Graphs]
    last_layer: int  # what follows the layers belongs to it by its tensors
    # Whether layers share code: the profiles from PopART were made with an option that keeps its
    # outliner from it (POPART_POPLINER_OUTLINER_REGEX).
    repeats_share: bool
    partials: str
    memory_proportion: float | None = None

    def layer(self, op: str) -> int | None:
        """Return the layer to which PopLiner counts an operation, by its name; None outside."""
        if found := re.search(r"(?:layer|blocks)\.(\d+)\.", f"{op}."):
            return int(found[1])
        if op.startswith("embeddings"):
            return 0
        return self.last_layer if op.startswith("qa_outputs") else None


PROFILED = {
    # squad_large_128_inf.json of graphcore/examples v3.0.0: micro-batch 1, half partials.
    "bert_large_squad_128_inference_popart": Profiled(
        build=lambda: Graphs(micro_batch=drop_dropout(zoo.load("bert_large_squad_sl128").graph())),
        last_layer=23,
        repeats_share=False,
        partials="half",
    ),
    # configs/efficientnet-l.yml of v2.6.0: float32, 224 pixels. Two images, because the results of
    # the first ReLU take 112 x 112 x 128 x 8 bytes in the profile.
    "efficientnet_edgetpu_L_tensorflow": Profiled(
        build=lambda: Graphs(micro_batch=efficientnet_edgetpu_l(2).with_precision("32.32")),
        last_layer=26,
        repeats_share=True,
        partials="float",
    ),
    "bert_demo_tiny_128_squad_training_poptorch": Profiled(
        build=_tiny_bert, last_layer=2, repeats_share=False, partials="half"
    ),
    "nanogpt_training_poptorch": Profiled(
        build=_nano_gpt, last_layer=5, repeats_share=True, partials="float", memory_proportion=0.08
    ),
}
"""By the name in the files."""

SMALL: dict[str, Callable[[int], Graph]] = {
    "truncated ResNet-18 (no batch norm)": truncated_resnet18,
    "MLP": mlp,
    "serialised matmul": lambda _: serialised_product(6),
}
"""Small networks by their name in ipumodel_small_networks.csv; its recurrent ones are not built."""


def small_graphs(network: str, passes: str, batch: int) -> Graphs:
    """Build a network of `SMALL` as its row says in words: micro-batch and weight update."""
    graph = SMALL[network](batch).with_precision("16.16")
    if passes == "inference":
        return Graphs(micro_batch=graph)
    return training_graphs(
        graph,
        loss="cross_entropy",
        optimizer="sgd_momentum" if "momentum" in passes else "sgd",
        accumulate="scaled_add" if "gradient accumulation" in passes else "",
    )
