"""DINO: a vision transformer learns to agree with its own moving average on crops of an image.

Caron et al. (arXiv 2104.14294), as Graphcore ran it (graphcore/examples, vision/dino/pytorch, tag
v3.3.0, core/dino.py and core/vision_transformer.py): the student sees two global and eight local
crops, the teacher the global ones. A chip of the pipeline has the same layers of all three passes,
so they are listed layer by layer. The average itself is taken once per weight update (PopART moves
it out of the loop over micro-batches) and left out here.
"""

from dataclasses import replace

from ipusim.workload.zoo.layers.pairs import normalise_rows
from ipusim.workload.zoo.layers.transformer import Shape, activate, first_tokens, pre_norm_layer
from ipusim.workload.zoo.registry import Config, GraphBuilder, networks
from ipusim.workload.zoo.vision.vit import embed_tokens


@networks
def dino_vit_base_16(g: GraphBuilder, batch: int, c: Config) -> tuple[str, str]:
    """DINO with ViT-B/16, from ten crops of each image to the loss and the teacher's new centre."""
    g.share("student_local.", "student.")
    g.freeze("teacher.")
    teacher = Shape.of(c)
    student = replace(teacher, stochastic_depth=True)
    passes = {"student": student, "student_local": student, "teacher": teacher}
    images = g.input("global_crops", (batch * c.global_crops, 3, c.image_size, c.image_size))
    parts = g.input("local_crops", (batch * c.local_crops, 3, c.local_size, c.local_size))
    states = {
        name: embed_tokens(g.at(name), parts if "local" in name else images, c.hidden, c.image_size)
        for name in passes
    }
    for layer in range(c.layers):
        for name, shape in passes.items():
            states[name] = pre_norm_layer(g.at(f"{name}.blocks.{layer}"), states[name], shape)
    features = [
        first_tokens(g, f"{name}.head.token", g.layer_norm(f"{name}.norm", state))
        for name, state in states.items()
    ]
    student = g.concat("student.views", *features[:2], axis=0)
    student = _bottleneck(g.at("student.head"), student, c)
    teacher = _bottleneck(g.at("teacher.head"), features[2], c)
    student = _scores(g.at("student.head"), student, c)
    teacher = _scores(g.at("teacher.head"), teacher, c)
    return _loss(g, student, teacher, c), g.reduce("center", "mean", teacher, axis=0)


def _bottleneck(g: GraphBuilder, x: str, c: Config) -> str:
    """Add the three dense layers of the head and the scaling of each row to length 1."""
    for number in range(2):
        x = g.linear(f"mlp.{number}", x, c.head_hidden)
        x = activate(g, f"mlp.{number}.gelu", x, c.activation)
    x = g.linear("mlp.2", x, c.bottleneck)
    return normalise_rows(g.at("normalise"), x)


def _scores(g: GraphBuilder, x: str, c: Config) -> str:
    """Add the last layer in two halves, each with weights of length 1 times a learnt scale."""
    halves = []
    for half in (1, 2):
        name = f"last_layer{half}"
        weight = g.parameter(f"{name}.weight_v", (c.classes // 2, c.bottleneck))
        scale = g.parameter(f"{name}.weight_g", (c.classes // 2, 1))
        weight = normalise_rows(g.at(f"{name}.weight_norm"), weight)
        weight = g.elementwise(f"{name}.weight_norm.scale", "mul", weight, scale)
        halves.append(g.matmul(name, x, weight, transpose_b=True))
    return g.concat("scores", *halves, axis=1)


def _loss(g: GraphBuilder, student: str, teacher: str, c: Config) -> str:
    """Add the mean cross entropy of every student view with every other teacher view."""
    classes = g.shape(student)[1]
    center = g.input("center", (1, classes))
    target = g.elementwise("loss.center", "sub", teacher, center)
    target = g.elementwise("loss.sharpen", "scale", target)
    target = g.softmax("loss.teacher", target)
    views = g.elementwise("loss.temperature", "scale", student)
    targets = _chunks(g, "loss.teacher.views", target, c.global_crops)
    total = ""
    for own, wanted in enumerate(targets):
        negative = g.elementwise(f"loss.{own}.negative", "neg", wanted)
        crops = _chunks(g, f"loss.{own}.views", views, c.global_crops + c.local_crops)
        for other, view in enumerate(crops):
            if own == other:
                continue
            pair = g.at(f"loss.{own}.{other}")
            term = pair.softmax("log_softmax", view, log=True)
            term = pair.elementwise("product", "mul", term, negative)
            term = pair.reduce("mean", "mean", pair.reduce("sum", "sum", term, axis=1), axis=0)
            total = pair.elementwise("add", "add", total, term) if total else term
    return g.elementwise("loss.mean", "scale", total)


def _chunks(g: GraphBuilder, name: str, x: str, parts: int) -> tuple[str, ...]:
    rows, classes = g.shape(x)
    return g.unstack(f"{name}.split", g.reshape(name, x, (parts, rows // parts, classes)))
