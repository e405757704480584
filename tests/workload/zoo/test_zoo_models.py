"""What makes each newer network of the zoo what it is, counted independently."""

import re

import numpy as np
import pytest

import ipusim
from ipusim.errors import UnknownNameError, WorkloadError
from ipusim.runtime.compile import graph_job, graphs
from ipusim.runtime.options.config import make_config
from ipusim.workload import zoo
from ipusim.workload.graph import Conv, Gather, Graph, MatMul, Norm, Softmax
from ipusim.workload.zoo.layers.cnn import round_channels
from ipusim.workload.zoo.layers.transformer import Shape


def _payloads(graph: Graph, kind: type) -> list:
    return [op.params for op in graph.ops if isinstance(op.params, kind)]


@pytest.mark.parametrize(
    ("channels", "rounded"), [(32 * 1.4, 48), (16 * 1.4, 24), (320 * 1.4, 448), (18, 24), (3, 8)]
)
def test_channels_round_to_eight_without_losing_a_tenth(channels, rounded):
    assert round_channels(channels) == rounded


@pytest.mark.parametrize(
    ("name", "blocks", "head"), [("efficientnet_b0", 16, 1280), ("efficientnet_b4", 32, 1792)]
)
def test_efficientnet_is_depthwise(name, blocks, head):
    graph = zoo.load(name).graph()
    depthwise = [p for p in _payloads(graph, Conv) if p.groups > 1]
    assert len(depthwise) == blocks
    assert all(p.groups == p.in_channels == p.out_channels for p in depthwise)
    assert graph.tensors["classifier.weight"].shape == (1000, head)
    gates = [op for op in graph.ops if op.name.endswith("se.scale")]
    assert len(gates) == blocks
    assert all(op.function == "mul" and op.params.broadcast for op in gates)


@pytest.mark.parametrize("name", ["efficientnet_b0_g16_gn", "efficientnet_b4_g16_gn"])
def test_g16_filters_groups_of_sixteen(name):
    graph = zoo.load(name).graph()
    filters = [op for op in graph.ops if op.name.endswith("conv_dw")]
    sizes = [op.params.in_channels // op.params.groups for op in filters]
    # B4's second block filters 24 channels, which 16 does not divide.
    assert sizes == [16] * len(sizes) if "b0" in name else sizes[1] == 8
    assert sum(size != 16 for size in sizes) == ("b4" in name)
    assert {(p.kind, p.groups) for p in _payloads(graph, Norm)} == {("group", 4)}
    expand = [op.params for op in graph.ops if op.name.endswith("conv_pw")]
    assert {p.out_channels / p.in_channels for p in expand} == {4}


@pytest.mark.parametrize(
    ("name", "blocks", "gated", "hard"),
    [("mobilenet_v3_small", 11, 9, 2 * 8 + 3), ("mobilenet_v3_large", 15, 8, 2 * 9 + 3)],
)
def test_mobilenet_gates(name, blocks, gated, hard):
    graph = zoo.load(name).graph()
    assert sum(op.name.endswith("conv_dw") for op in graph.ops) == blocks
    assert sum(op.function == "hard_sigmoid" for op in graph.ops) == gated
    assert sum(op.function == "hard_swish" for op in graph.ops) == hard


def test_bert_for_squad():
    graph = zoo.bert_base_squad().graph(2)
    assert graph.tensors[graph.outputs[0]].shape == (2, 2, 384)
    assert [graph.tensors[name].shape for name in graph.inputs] == [(2, 384)] * 3
    assert {graph.tensors[name].dtype for name in graph.inputs} == {"int32"}
    assert _payloads(graph, Softmax) == [Softmax(outer=2 * 12 * 384, length=384)] * 12
    assert {(p.kind, p.batch, p.channels) for p in _payloads(graph, Norm)} == {
        ("layer", 2 * 384, 768)
    }
    assert [(p.rows, p.indices) for p in _payloads(graph, Gather)] == [
        (30522, 768),
        (2, 768),
        (512, 384),
    ]


def test_vision_transformer_reads_patches_and_one_class_token():
    graph = zoo.vit_base_16().graph(2)
    patches = next(op.params for op in graph.ops if op.kind == "conv")
    assert patches.out_field == (14, 14)
    assert graph.tensors["cls_token.concat.out"].shape == (2, 197, 768)
    assert not any(op.function == "dropout" for op in graph.ops)
    assert {(p.groups, p.m, p.k, p.n) for p in _payloads(graph, MatMul)} == {
        (1, 394, 768, 3 * 768),
        (24, 197, 64, 197),
        (24, 197, 197, 64),
        (1, 394, 768, 768),
        (1, 394, 768, 3072),
        (1, 394, 3072, 768),
        (1, 2, 768, 1000),
    }


def test_gpt2_shares_its_first_and_last_weights():
    graph = zoo.gpt2_small(sequence_length=128).graph(2)
    assert [op.kind for op in graph.consumers()["wte.weight"]] == ["gather", "matmul"]
    assert graph.tensors[graph.outputs[0]].shape == (2, 128, 50257)
    masks = [op for op in graph.ops if op.name.endswith("attention.mask")]
    assert len(masks) == 12
    # Every layer makes the mask that it adds from the one stored triangle: cast, invert, scale.
    producers = graph.producers()
    for mask in masks:
        source, made = mask.inputs[1], []
        while source != "causal_mask":
            made.append(producers[source].name.rsplit(".", 1)[1])
            (source,) = producers[source].inputs
        assert made == ["scale", "invert", "cast"]
    assert graph.tensors["causal_mask"].shape == (1, 1, 128, 128)
    with pytest.raises(WorkloadError, match="at most 1024"):
        zoo.gpt2_small(sequence_length=1025).graph(1)


def test_attention_products_have_the_shapes_of_their_heads():
    graph = zoo.bert_base_squad().graph(2)
    by_name = {op.name: op for op in graph.ops}
    prefix = "encoder.layer.0.attention"
    scores, context = by_name[f"{prefix}.scores"], by_name[f"{prefix}.context"]
    shape = {"groups": 2 * 12, "weights_operand": False}
    assert scores.params == MatMul(m=384, k=64, n=384, transpose_b=True, **shape)
    assert context.params == MatMul(m=384, k=384, n=64, **shape)
    heads = [graph.tensors[name].shape for name in (*scores.inputs, *context.inputs)]
    assert heads == [(2, 12, 384, 64), (2, 12, 384, 64), (2, 12, 384, 384), (2, 12, 384, 64)]
    assert by_name[f"{prefix}.mask"].params.broadcast
    moved = [op.name for op in graph.ops if op.kind == "layout" and op.params.moves_data]
    assert len(moved) == 2 * 12 + 1  # heads apart and together; start and end scores apart


def test_bert_for_pretraining_shares_the_word_embedding():
    graph = zoo.load("bert_large_pretraining_sl128").graph(2)
    # Hugging Face's BertForPreTraining of bert-large-uncased.
    assert graph.parameters == 336_226_108
    outputs = [graph.tensors[name].shape for name in graph.outputs]
    assert outputs == [(2 * 20, 30522), (2, 2)]
    readers = graph.consumers()["embeddings.word_embeddings.weight"]
    assert [op.kind for op in readers] == ["gather", "matmul"]


def test_keras_replaces_the_layers_of_transformers():
    def products(name):
        graph = zoo.load(name).graph(1)
        return {op.name for op in graph.ops if op.name.startswith("encoder.layer.7.")}

    ours, theirs = (
        products(f"bert_base_squad_sl512_{made_by}") for made_by in ("keras", "hugging_face")
    )
    assert {f"encoder.layer.7.attention.{part}" for part in ("query", "key", "value")} <= theirs
    assert "encoder.layer.7.attention.qkv" in ours - theirs
    assert "encoder.layer.7.mlp.gelu.erf" in theirs - ours
    assert not any("attention" in name and name.endswith("bias_add") for name in ours)
    assert "encoder.layer.7.attention.output.bias_add" in theirs


BODY = {  # parameters, and multiply-accumulates of the encoder at 128, 384 and 512 tokens
    "base": (109_482_240, {128: 11_173_625_856, 384: 35_332_816_896, 512: 48_318_382_080}),
    "large": (335_141_888, {128: 39_460_012_032, 384: 123_211_874_304, 512: 167_503_724_544}),
}


@pytest.mark.parametrize("name", [n for n in zoo.names() if n.startswith("bert_")])
def test_heads_add_their_own_products_to_the_body(name):
    graph = zoo.load(name).graph(3)
    size, tokens = name.split("_")[1], int((re.findall(r"sl(\d+)", name) or [384])[0])
    hidden = {"base": 768, "large": 1024}[size]
    parameters, body = BODY[size]
    if "squad" in name:
        # Hugging Face's BertForQuestionAnswering has no pooler. In Keras 122 words fewer, and none
        # of the four biases of attention in 12 layers.
        left_out = (122 + 12 * 4) * hidden if name.endswith("keras") else 0
        assert graph.parameters == parameters - hidden * (hidden + 1) + 2 * (hidden + 1) - left_out
        assert graph.macs == 3 * (body[tokens] + tokens * hidden * 2)
        return
    masked, packed = {128: 20, 384: 56, 512: 76}[tokens], 3 if "packed" in name else 1
    # Dense layer, norm and bias of the vocabulary; the next sentence.
    extra = hidden * (hidden + 1) + 2 * hidden + 30522 + 2 * (hidden + 1)
    assert graph.parameters == parameters + extra
    head = masked * hidden * (hidden + 30522) + packed * hidden * (hidden + 2)
    assert graph.macs == 3 * (body[tokens] + head)
    dropped = sum(op.name.endswith("attention.dropout") for op in graph.ops)
    layers = {"base": 12, "large": 24}[size]
    assert dropped == layers * name.endswith("attention_dropout")


def test_a_pack_masks_tokens_of_other_sequences():
    graph = zoo.load("bert_large_packed_pretraining_sl128").graph(2)
    assert graph.tensors["attention_mask.reshape.out"].shape == (2, 1, 128, 128)
    assert graph.tensors[graph.outputs[1]].shape == (2 * 3, 2)
    plain = zoo.load("bert_large_pretraining_sl128").graph(2)
    assert plain.tensors["attention_mask.reshape.out"].shape == (2, 1, 1, 128)


@pytest.mark.parametrize("name", [n for n in zoo.names() if n.startswith("group_bert")])
def test_group_bert_counts(name):
    graph = zoo.load(name).graph(2)
    tokens, h = int(name.rsplit("sl", 1)[1]), 768
    # Gate, values, filter of 16 channels and 7 taps with its norm, output.
    module = 3 * h * (h + 1) + 7 * 16 * h + 2 * h
    # Wide layer, product back in 4 groups, mixer.
    feed_forward = 4 * h * (h + 1) + h * h + h + h * (h + 1)
    attention = 4 * h * (h + 1)
    layer = module + 2 * feed_forward + attention + 4 * 2 * h
    embeddings = (30522 + 512 + 2) * h + 2 * h
    head = h * (h + 1) + 2 * h + 30522 + h * (h + 1) + 2 * (h + 1)
    assert graph.parameters == 12 * layer + 2 * h + embeddings + head
    macs = tokens * (3 * h * h + 7 * 16 * h + 2 * (4 + 1 + 1) * h * h + 4 * h * h)
    macs += 2 * tokens * tokens * h
    masked = {128: 20, 384: 56}[tokens]
    assert graph.macs == 2 * (12 * macs + masked * h * (h + 30522) + h * (h + 2))
    grouped = {(p.groups, p.kernel) for p in _payloads(graph, Conv)}
    assert grouped == {(48, (7,)), (4, (1,))}
    assert not any(op.function == "dropout" for op in graph.ops)


@pytest.mark.parametrize(("name", "dtype"), [("sl1024", "float32"), ("sl128", "float16")])
def test_the_causal_mask_of_gpt2_is_wide_where_operands_are_promoted(name, dtype):
    graph = zoo.load(f"gpt2_medium_padded_{name}").graph(1)
    kept = {
        tensor: graph.tensors[tensor].dtype for tensor in ("h.0.attention.mask.out", "ln_f.out")
    }
    assert kept == {"h.0.attention.mask.out": dtype, "ln_f.out": "float16"}
    softmax = next(op for op in graph.ops if op.name == "h.0.attention.softmax")
    assert graph.tensors[softmax.inputs[0]].dtype == "float16"


@pytest.mark.parametrize("name", [n for n in zoo.names() if n.startswith("gpt2") and "padded" in n])
def test_gpt2_as_run_has_a_padded_vocabulary(name):
    size, tokens = name.split("_")[1], int(re.search(r"sl(\d+)", name)[1])
    graph, plain = zoo.load(name).graph(2), zoo.load(f"gpt2_{size}").graph(2)
    assert graph.tensors["input_ids"].shape == (2, tokens)
    hidden = {"small": 768, "medium": 1024, "large": 1280}[size]
    assert graph.parameters - plain.parameters == (50272 - 50257) * hidden
    result = graph.tensors[graph.outputs[0]]
    chosen = name.endswith("argmax")
    assert result.shape == ((2, tokens) if chosen else (2, tokens, 50272))
    assert result.dtype == ("int32" if chosen else "float16")


def test_a_bert_that_cannot_be_is_refused():
    with pytest.raises(
        WorkloadError, match="Masked tokens per item 129 .* at most 128, the sequence length"
    ):
        zoo.bert_base_pretraining_sl128(masked_tokens=129).graph()
    with pytest.raises(WorkloadError, match="at most 512"):
        zoo.bert_base_squad(tokens=513, head="none").graph()
    with pytest.raises(
        UnknownNameError, match="valid names: none, question_answering, pretraining"
    ):
        zoo.bert_base_squad(tokens=128, head="translation").graph()
    with pytest.raises(WorkloadError, match="multiple of its 5 heads"):
        Shape(hidden=64, heads=5, feed_forward=128)


def test_ten_images_of_the_autoencoder_fill_the_memory():
    options = {
        "system": "IPU-POD16",
        "mode": "training",
        "replicas": 1,
        "precision": "32.32",
        "partials": "float",
        "host_dtype": "float32",
        "optimizer": "adam",
        "framework": "tensorflow",
        "stack": "sdk-2.4",
    }
    ten, eleven, twelve = (
        ipusim.simulate("tamu_autoencoder", micro_batch=images, **options)
        for images in (10, 11, 12)
    )
    # The paper: 10 is the most. The tile is full then, within two percent of its memory, and 11
    # leave a thousandth of it: they were too many until bytes of code were fitted again, when
    # layer norms had their regrouping.
    used = [
        (r.memory["highest_address_bytes"] / r.memory["tile_bytes"]).max() for r in (ten, eleven)
    ]
    assert used == pytest.approx([0.985, 1.0], abs=0.005)
    assert not twelve.fits
    assert "ssumed" in zoo.tamu_autoencoder().note


def test_the_autoencoder_has_one_bottleneck_and_mirrors():
    graph = zoo.tamu_autoencoder().graph(10)
    assert graph.tensors[graph.inputs[0]].shape == (10, 1, 28, 28)
    assert graph.tensors[graph.outputs[0]].shape == (10, 1, 28, 28)
    sizes = {op.name: graph.tensors[op.outputs[0]].elements for op in graph.ops}
    assert min(sizes, key=sizes.get).startswith("code")
    assert sizes["code"] == 10 * 648
    enlarge = [op.params for op in graph.ops if op.kind == "conv" and op.params.is_transposed]
    assert [(p.field, p.out_field, p.out_channels) for p in enlarge] == [
        ((7, 7), (14, 14), 256),
        ((14, 14), (28, 28), 128),
    ]
    blocks = [op.name.rsplit(".", 1)[0] for op in graph.ops if op.name.endswith("conv2")]
    encoder = [name.removeprefix("encoder.") for name in blocks if name.startswith("encoder")]
    decoder = [name.removeprefix("decoder.") for name in blocks if name.startswith("decoder")]
    assert sorted(encoder) == sorted(decoder)


def test_widths_of_the_autoencoder_are_one_argument_away():
    narrow = {"channels": (64, 128), "blocks": (2, 1), "code_features": 8}
    graph = zoo.tamu_autoencoder(**narrow).graph()
    assert graph.tensors["code.out"].shape == (1, 8)
    assert sum(op.name.endswith("conv2") for op in graph.ops) == 6


def test_unet_crops_its_skips_to_the_decoder():
    graph = zoo.unet_medical().graph(2)
    crops = [graph.tensors[op.outputs[0]].shape for op in graph.ops if op.name.endswith("crop")]
    # graphcore/examples applications/tensorflow2/unet/model.py, crop_sizes.
    assert [shape[2] for shape in crops] == [392, 200, 104, 56]
    convolutions = [p for p in _payloads(graph, Conv) if p.kernel == (3, 3)]
    assert all(p.padding_lower == p.padding_upper == (0, 0) for p in convolutions)
    assert graph.tensors[graph.outputs[0]].shape == (2 * 388 * 388, 2)
    joined = [op for op in graph.ops if op.function == "concat"]
    assert all(op.params.viewed_on_ipu and len(op.inputs) == 2 for op in joined)


def test_yolo_p5_is_the_published_network():
    graph = zoo.load("yolo_v4_p5_896").graph()
    # arXiv 2011.08036, table of YOLOv4-P5 at 896: 70.8 M parameters, 166 G operations.
    assert round(graph.parameters / 1e6, 1) == 70.8
    assert graph.macs / 1e9 == pytest.approx(166, rel=0.02)
    heads = [op.params for op in graph.ops if op.name.endswith("detect")]
    assert [(p.out_channels, p.field[0]) for p in heads] == [(340, 112), (340, 56), (340, 28)]
    boxes = graph.tensors["heads.cat.out"].shape
    assert boxes == (1, 4 * (112**2 + 56**2 + 28**2), 85)
    # Mish follows every batch norm, of the two halves of each backbone block together.
    functions = [op.function for op in graph.ops if op.kind == "elementwise"]
    assert functions.count("mish") == 160 - 5 and "relu" not in functions


def test_yolo_costs_scale_with_the_field():
    small, large = (zoo.load(f"yolo_v4_p5_{size}").graph() for size in (416, 896))
    assert small.parameters == large.parameters
    assert large.macs * 13**2 == small.macs * 28**2


def test_efficientdet_shares_its_heads_but_not_their_norms():
    graph = zoo.load("efficientdet_d0").graph(2)
    users = graph.consumers()
    assert len(users["class_net.0.predict.pw.weight"]) == 5
    assert len(users["box_net.0.0.conv.dw.weight"]) == 5
    assert len(users["class_net.0.1.bn.weight"]) == 1
    # 9 anchors at strides of 8 to 128 pixels; one round, as no score exceeds the threshold.
    boxes = 9 * sum((512 // stride) ** 2 for stride in (8, 16, 32, 64, 128))
    suppression = next(op.params for op in graph.ops if op.kind == "nms")
    assert (suppression.boxes, suppression.detections) == (boxes, 1)
    assert graph.tensors[graph.outputs[0]].shape == (2, 100, 4)
    assert graph.tensors["probabilities.out"].shape == (2, boxes, 90)
    # Eight nodes a cell: two inputs on the way down and at the top, three at the others.
    nodes = [op for op in graph.ops if op.name.startswith("fpn.") and op.name.endswith("conv.dw")]
    assert len(nodes) == 3 * 8
    shares = [op for op in graph.ops if ".share." in op.name]
    assert len(shares) == 3 * (4 * 2 + 3 * 3 + 2)


def test_efficientdet_enlarges_by_one_convolution():
    graph = zoo.load("efficientdet_d0").graph(2)
    doubled = [op.params for op in graph.ops if op.name.endswith(".up") and op.kind == "conv"]
    # Four levels a cell get a coarser one.
    assert len(doubled) == 3 * 4
    for conv in doubled:
        assert conv.kernel == (3, 3)
        assert conv.out_field == tuple(2 * size for size in conv.field)
        assert conv.groups == conv.in_channels == conv.out_channels


def test_enlarging_repeats_every_element():
    # One row of the definition: zeros between the elements, two before, one behind, taps 0, 1, 1.
    x = np.array([3.0, 5.0, 7.0])
    spread = np.zeros(2 * len(x) - 1)
    spread[::2] = x
    padded = np.concatenate([np.zeros(2), spread, np.zeros(1)])
    conv = next(
        op.params
        for op in zoo.load("efficientdet_d0").graph().ops
        if op.name.endswith(".up") and op.kind == "conv"
    )
    assert (conv.padding_lower[0], conv.padding_upper[0], conv.input_dilation[0]) == (2, 1, 2)
    windows = np.lib.stride_tricks.sliding_window_view(padded, conv.kernel[0])
    np.testing.assert_array_equal((windows @ [0.0, 1.0, 1.0])[: 2 * len(x)], np.repeat(x, 2))


def test_norms_of_variables_are_not_folded():
    model = zoo.load("efficientdet_d0")
    config = make_config(system="Bow-2000", micro_batch=1)
    kept = [op for op in graphs(graph_job(model, config)).micro_batch.ops if op.kind == "norm"]
    assert len(kept) == sum(op.kind == "norm" for op in model.graph(1).ops)
    folded = graphs(graph_job(zoo.load("resnet50"), config)).micro_batch
    assert not [op for op in folded.ops if op.kind == "norm"]
