"""Vision transformers and their relatives, counted by parts and against how they were run."""

import pytest
from zoo_facts import fact

from ipusim.errors import UnknownNameError
from ipusim.workload import zoo
from ipusim.workload.graph import Gather, Graph, MatMul, Softmax
from ipusim.workload.training import tensors_with_gradient, training_graphs
from ipusim.workload.zoo.layers import transformer
from ipusim.workload.zoo.layers.transformer import Shape

LEFT_OUT = {
    "clip_vit_base_32": ("visual.proj", "text_projection", "logits"),
    "dino_vit_base_16": ("student.head.", "teacher.head.", "student_local.pos_embed.resample"),
    "frozen_in_time_1_frame": ("txt_proj", "vid_proj", "similarity"),
    "mae_vit_base_16": ("mask", "restore"),
    "mini_dalle_l16": (),
}
"""Operators that the facts do not count; the notes of the facts say so."""


def _macs(graph: Graph, *left_out: str) -> int:
    return sum(op.macs for op in graph.ops if not op.name.startswith(left_out))


def _stored(graph: Graph, *prefixes: str) -> int:
    return sum(t.elements for t in graph.with_role("constant") if t.name.startswith(prefixes))


def _names(graph: Graph) -> set[str]:
    return {op.name for op in graph.ops}


@pytest.mark.parametrize("name", ["clip_vit_base_32", "dino_vit_base_16", "mae_vit_base_16"])
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_macs_by_parts_equal_the_facts(name, micro_batch):
    graph = zoo.load(name).graph(micro_batch)
    assert _macs(graph, *LEFT_OUT[name]) == micro_batch * int(fact(name)["macs_forward"])


def test_parameters_by_parts_equal_the_facts():
    clip = zoo.clip_vit_base_32().graph()
    assert clip.parameters == int(fact("clip_vit_base_32")["params"])
    mae = zoo.mae_vit_base_16().graph()
    fixed = _stored(mae, "pos_embed", "cls_token.pos_embed", "decoder_pos_embed")
    assert mae.parameters + fixed == int(fact("mae_vit_base_16")["params"])
    dino = zoo.dino_vit_base_16().graph()
    head = sum(
        t.elements for t in dino.with_role("parameter") if t.name.startswith("student.head.")
    )
    assert dino.parameters - head == int(fact("dino_vit_base_16")["params"])
    # The teacher has the same weights, and nothing trains them.
    assert _stored(dino, "teacher.") == dino.parameters


def test_frozen_in_time_without_time_attention_equals_the_facts():
    graph = zoo.frozen_in_time_1_frame().graph()
    time = sum(op.macs for op in graph.ops if ".time." in op.name)
    left_out = LEFT_OUT["frozen_in_time_1_frame"]
    assert _macs(graph, *left_out) - time == int(fact("frozen_in_time_1_frame")["macs_forward"])
    # 12 layers of 4 x 768 x 768 on 50 tokens, and products of 1 x 2 for each place and head.
    assert time == 12 * (4 * 768 * 768 * 50 + 2 * 768 * (49 * 2 + 50))


def test_frozen_in_time_groups_by_place_then_by_frame():
    by_name = {op.name: op.params for op in zoo.frozen_in_time_1_frame(frames=4).graph(2).ops}
    time = by_name["video.blocks.0.time.groups.scores"]
    assert (time.groups, time.m, time.n) == (2 * 12 * 49, 4, 5)
    space = by_name["video.blocks.0.space.groups.scores"]
    assert (space.groups, space.m, space.n) == (2 * 12 * 4, 49, 50)
    first = by_name["video.blocks.0.space.first.scores"]
    assert (first.groups, first.m, first.n) == (2 * 12, 1, 4 * 49 + 1)


def test_mini_dalle_with_full_attention_equals_the_facts():
    counted = fact("mini_dalle_l16")
    dense = zoo.mini_dalle_l16(full=tuple(range(16))).graph(1)
    layers = [op for op in dense.ops if op.name.startswith("layers.")]
    assert sum(op.macs for op in layers) == int(counted["macs_forward"])
    weights = [
        t.elements
        for t in dense.with_role("parameter")
        if t.name.startswith("layers.") and len(t.shape) == 2
    ]
    assert sum(weights) == int(counted["params"])


def test_mini_dalle_looks_along_rows_and_columns():
    graph = zoo.mini_dalle_l16().graph(2)
    full = [op.name for op in graph.ops if op.name.endswith("attention.scores")]
    assert [name for name in full if name.startswith("layers.")] == [
        "layers.11.attention.scores",
        "layers.15.attention.scores",
    ]
    turned = [op.name for op in graph.ops if op.name.endswith("lines.rows_first")]
    assert [int(name.split(".")[1]) for name in turned] == [2, 6, 10, 14]
    lines = next(op.params for op in graph.ops if op.name == "layers.0.attention.lines.scores")
    assert lines == MatMul(
        groups=2 * 16 * 16, m=16, k=64, n=16, weights_operand=False, transpose_b=True
    )
    assert graph.tensors[graph.outputs[0]].shape == (2, 336, 8272 + 1024)


def test_vqgan_halves_the_side_four_times_and_is_not_trained():
    graph = zoo.mini_dalle_l16().graph(1)
    encoder = [op for op in graph.ops if op.name.startswith("vae.")]
    assert encoder[-1].outputs[0] not in tensors_with_gradient(graph)
    fields = [op.params.out_field[0] for op in encoder if op.name.endswith("downsample")]
    assert fields == [128, 64, 32, 16]
    convolutions = [
        op for op in encoder if op.kind == "conv" and op.name.endswith((".conv1", ".conv2"))
    ]
    assert len(convolutions) == 2 * (5 * 2 + 2)
    # 2 x 2 convolutions of 128 channels on 256 x 256, and as many on 128 x 128.
    largest = [op.macs for op in convolutions if op.params.out_channels == 128]
    assert largest == [9 * 128 * 128 * 256**2] * 4 + [9 * 128 * 128 * 128**2] * 4
    micro = training_graphs(graph, loss="cross_entropy", accumulate="scaled_add").micro_batch
    assert not any(op.source.startswith("vae.") for op in micro.ops if op.phase == "backward")


@pytest.mark.parametrize("size", ["tiny", "base", "large"])
def test_padded_windows_change_the_work_and_nothing_that_is_learnt(size):
    plain = zoo.load(f"swin_{size}").graph(2)
    padded = zoo.load(f"swin_{size}_padded").graph(2)
    assert padded.parameters == plain.parameters
    spreads = [op for op in padded.ops if op.function == "copy"]
    layers = {"tiny": 12, "base": 24, "large": 24}[size]
    # Before a layer, of query, key and value, scores, product, windows put back, second half.
    assert len(spreads) == 6 * layers
    assert not any(op.function == "copy" for op in plain.ops)
    scores = {(p.m, p.n) for op in padded.ops if (p := op.params) and op.name.endswith(".scores")}
    assert scores == {(56, 56)}


def test_swin_shifts_every_second_layer_but_not_a_single_window():
    graph = zoo.swin_tiny().graph(1)
    shifted = [op.name for op in graph.ops if op.name.endswith(".shift")]
    assert [int(name.split(".")[1]) for name in shifted] == [1, 3, 5, 7, 9]
    scores = next(op.params for op in graph.ops if op.name == "blocks.0.attention.scores")
    assert scores.groups == 64 * 3
    tables = [t.shape for t in graph.with_role("parameter") if t.name.endswith("bias.table")]
    assert tables == [(169, heads) for heads in (3, 3, 6, 6, *[12] * 6, 24, 24)]
    merged = [graph.tensors[n].shape for n in graph.tensors if n.endswith("reduction.out")]
    assert merged == [(1, 28 * 28, 192), (1, 14 * 14, 384), (1, 7 * 7, 768)]
    with pytest.raises(ValueError, match="zip"):
        zoo.swin_tiny(heads=(3, 6)).graph(1)


def test_dino_lists_all_passes_layer_by_layer():
    graph = zoo.dino_vit_base_16().graph(2)
    order = [op.name for op in graph.ops if op.name.endswith("attention.scores")]
    expected = [
        f"{part}.blocks.{layer}.attention.scores"
        for layer in range(12)
        for part in ("student", "student_local", "teacher")
    ]
    assert order == expected
    rows = {op.name.split(".")[0]: op.params.groups for op in graph.ops if op.name in order[:3]}
    assert rows == {"student": 2 * 2 * 12, "student_local": 2 * 8 * 12, "teacher": 2 * 2 * 12}
    logs = [op.params for op in graph.ops if isinstance(op.params, Softmax) and op.params.log]
    assert logs == [Softmax(outer=2, length=65536, log=True)] * 18
    loss, center = graph.outputs
    assert graph.tensors[center].shape == (65536,)
    micro = training_graphs(graph, loss="identity", accumulate="scaled_add").micro_batch
    assert micro.outputs == (f"{loss}.loss", center)
    assert not any(name.endswith(".target") for name in micro.inputs)
    assert not any(op.source.startswith("teacher.") for op in micro.ops if op.phase == "backward")


def test_crops_of_either_size_add_up_in_the_gradient_of_shared_weights():
    graph = zoo.dino_vit_base_16().graph(1)
    weight = "student.blocks.3.mlp.intermediate.weight"
    assert len(graph.consumers()[weight]) == 2
    assert "student_local.blocks.3.mlp.intermediate.weight" not in graph.tensors
    micro = training_graphs(graph, loss="identity", accumulate="scaled_add").micro_batch
    assert "student.blocks.3.mlp.intermediate.weight.gradient_sum1" in _names(micro)


def test_mae_hides_three_quarters_and_predicts_all_pixels():
    model = zoo.mae_vit_base_16()
    graph = model.graph(3)
    # The target of the loss is the image once more.
    repeated = [graph.tensors[name].shape for name in model.repeated_inputs]
    assert repeated == [graph.tensors["images"].shape]
    by_name = {op.name: op.params for op in graph.ops}
    assert by_name["mask"] == MatMul(groups=3, m=768, k=196, n=49, weights_operand=False)
    assert by_name["restore"] == MatMul(groups=3, m=512, k=196, n=196, weights_operand=False)
    assert by_name["blocks.0.attention.scores"].m == 50
    assert by_name["decoder_blocks.0.attention.scores"].m == 197
    assert graph.tensors["decoder_pred.patches.out"].shape == (3, 196, 768)
    assert graph.tensors["loss.patches.out"].shape == (3, 196, 768)


def test_clip_compares_with_kept_vectors_and_reads_the_end_of_the_text():
    graph = zoo.clip_vit_base_32().graph(4)
    assert [graph.tensors[name].shape for name in graph.outputs] == [(28, 28)] * 2
    ends = [op.params for op in graph.ops if op.name == "text.end"]
    assert ends == [Gather(rows=4 * 77, width=512, indices=4)]
    assert "text.blocks.0.attention.mask" in _names(graph)
    assert "visual.blocks.0.attention.mask" not in _names(graph)
    # The chosen tokens hand their gradients back to the rows of all tokens.
    micro = training_graphs(graph, loss="cross_entropy", accumulate="scaled_add").micro_batch
    back = next(op for op in micro.ops if op.source == "text.end" and op.phase == "backward")
    assert back.params == Gather(rows=4 * 77, width=512, indices=4, function="add")
    assert micro.tensors[back.outputs[0]].shape == graph.tensors["ln_final.out"].shape
    assert back.outputs[0] in next(op for op in micro.ops if op.name == "ln_final.gradient").inputs


def test_vit_as_it_was_trained():
    pretraining = zoo.vit_base_16_pretraining().graph(2)
    plain = zoo.vit_base_16().graph(2)
    assert pretraining.parameters == plain.parameters + 768 * 769
    assert zoo.vit_base_16_finetuning().graph(2).parameters == plain.parameters
    # Before the layers; attention weights, output, inside and after the dense layers of each.
    dropped = [op for op in pretraining.ops if op.function == "dropout"]
    assert len(dropped) == 1 + 12 * 4
    dropped = [op for op in zoo.vit_base_16_finetuning().graph().ops if op.function == "dropout"]
    assert len(dropped) == 1 + 12 * 2
    assert {op.params.n for op in pretraining.ops if op.name.endswith("attention.query")} == {768}
    micro_batch = training_graphs(pretraining, loss="cross_entropy").micro_batch
    divided = [op for op in micro_batch.ops if op.function == "div"]
    assert [op.phase for op in divided] == ["forward"] * 12 + ["backward"] * 12
    mixing = [op for op in pretraining.ops if op.name.startswith("mixup.")]
    assert [op.function for op in mixing] == ["reshape", "mul", "roll", "sub", "mul", "add"]


@pytest.mark.parametrize(
    ("activation", "functions"),
    [
        ("gelu", ["gelu"]),
        ("quick_gelu", ["scale", "sigmoid", "mul"]),
        ("erf_gelu", ["scale", "erf", "add", "scale", "mul"]),
    ],
)
def test_activations_are_what_frameworks_write(activation, functions):
    g = transformer.GraphBuilder("activation")
    x = g.linear("fc", g.input("x", (4, 8)), 8)
    graph = g.finish(transformer.activate(g, "act", x, activation))
    assert [op.function for op in graph.ops if op.name.startswith("act")] == functions
    gradients = training_graphs(graph, loss="mean_squared").micro_batch
    assert "fc.weight_gradient" in _names(gradients)
    with pytest.raises(UnknownNameError, match="valid names: gelu, erf_gelu, quick_gelu"):
        Shape(hidden=8, heads=1, feed_forward=8, activation="relu")


def test_whole_items_are_dropped():
    g = transformer.GraphBuilder("depth")
    shape = Shape(hidden=8, heads=2, feed_forward=16, stochastic_depth=True)
    x = transformer.drop_path(g.at("path"), g.linear("fc", g.input("x", (3, 4, 8)), 8), shape)
    graph = g.finish(x)
    draw = next(op for op in graph.ops if op.function == "dropout")
    assert graph.tensors[draw.outputs[0]].elements == 3
    assert graph.tensors[x].shape == (3, 4, 8)
    backward = training_graphs(graph, loss="mean_squared").micro_batch
    products = [op for op in backward.ops if op.phase == "backward" and op.function == "mul"]
    assert [op.inputs[1] for op in products] == ["path.draw.out"]
