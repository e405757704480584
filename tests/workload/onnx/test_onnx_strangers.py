"""Forms found in files of strangers: onnxruntime's fused operators, caches, odd inputs."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_single_op import make_model

from ipusim.errors import WorkloadError
from ipusim.workload.onnx import check_onnx, from_onnx
from ipusim.workload.operators.base import name_in_body

MS = "com.microsoft"
NCHWC = "com.microsoft.nchwc"
IMAGE, WORDS = ["n", 8, 6, 4], ["n", 12, 16]
ONE_WAY = {"unidirectional": 1}
SCALE = {"s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)}


def _node(kind, inputs, outputs=("y",), domain=MS, **given):
    return helper.make_node(kind, list(inputs), list(outputs), name="it", domain=domain, **given)


CASES = {
    "channels last": (
        _node("NhwcConv", ["x", "w", "b"], kernel_shape=[3, 3], pads=[1] * 4),
        {"w": [5, 3, 3, 4], "b": [5]},
        IMAGE,
        (8 * 6 * 5 * 4 * 9, (2, 8, 6, 5)),
    ),
    "group norm": (
        _node("GroupNorm", ["x", "w", "b"], groups=2, activation=1),
        {"w": [4], "b": [4]},
        IMAGE,
        (0, (2, 8, 6, 4)),
    ),
    "group norm of a sum": (
        _node("SkipGroupNorm", ["x", "w", "b", "x", "b"], groups=2, activation=0),
        {"w": [4], "b": [4]},
        IMAGE,
        (0, (2, 8, 6, 4)),
    ),
    "blocks of channels": (
        _node("Conv", ["x", "w", "b"], domain=NCHWC, activation="Relu", pads=[1] * 4),
        {"w": [16, 8, 3, 3], "b": [16]},
        IMAGE,
        (6 * 4 * 8 * 16 * 9, (2, 16, 6, 4)),
    ),
    "channels that fill up a block": (
        _node("Conv", ["x", "w", "b"], domain=NCHWC, activation="Relu"),
        {"w": [16, 16, 1, 1], "b": [16]},
        IMAGE,
        (6 * 4 * 8 * 16, (2, 16, 6, 4)),
    ),
    "a group for each channel that fills up": (
        _node("Conv", ["x", "w", "b"], domain=NCHWC, activation="Relu", group=16, pads=[1] * 4),
        {"w": [16, 1, 3, 3], "b": [16]},
        IMAGE,
        (6 * 4 * 8 * 9, (2, 8, 6, 4)),
    ),
    "channels that were last in blocks": (
        _node("ReorderInput", ["x"], domain=NCHWC, channels_last=1),
        {},
        IMAGE,
        (0, (2, 4, 8, 6)),
    ),
    "blocks to channels that are last": (
        _node("ReorderOutput", ["x"], domain=NCHWC, channels=3, channels_last=1),
        {},
        IMAGE,
        (0, (2, 6, 4, 3)),
    ),
    "quantised channels last": (
        _node("QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z", "b"], channels_last=1),
        {"w": [5, 4, 1, 1], "b": [5], "s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)},
        IMAGE,
        (8 * 6 * 5 * 4, (2, 8, 6, 5)),
    ),
    "quantised mean of a field, channels last": (
        _node("QLinearGlobalAveragePool", ["x", "s", "z", "s", "z"], channels_last=1),
        {"s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)},
        IMAGE,
        (0, (2, 1, 1, 4)),
    ),
    "quantised means, channels last": (
        _node(
            "QLinearAveragePool",
            ["x", "s", "z", "s", "z"],
            channels_last=1,
            kernel_shape=[2, 3],
            strides=[2, 3],
        ),
        {"s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)},
        IMAGE,
        (0, (2, 4, 2, 4)),
    ),
    "halves": (
        _node("BiasSplitGelu", ["x", "b"]),
        {"b": [16]},
        WORDS,
        (0, (2, 12, 8)),
    ),
    "product and gelu": (
        _node("GemmFastGelu", ["x", "w", "b"]),
        {"w": [16, 24], "b": [24]},
        WORDS,
        (12 * 16 * 24, (2, 12, 24)),
    ),
    "product whose rows are the first axis": (
        _node("FusedMatMul", ["x", "w"], transBatchA=1, transA=0),
        {"w": [16, 24]},
        WORDS,
        (12 * 16 * 24, (12, 2, 24)),
    ),
    "product with weights of four bits": (
        _node("MatMulNBits", ["x", "w", "s", "", "", "b"], K=16, N=24, bits=4, block_size=16),
        {"w": np.zeros((24, 1, 8), np.uint8), "s": [24], "b": [24]},
        WORDS,
        (12 * 16 * 24, (2, 12, 24)),
    ),
    "product with weights of four bits, packed in one row": (
        _node("MatMulBnb4", ["x", "w", "s"], K=16, N=24, block_size=16, quant_type=1),
        {"w": np.zeros(24 * 16 // 2, np.uint8), "s": [24]},
        WORDS,
        (12 * 16 * 24, (2, 12, 24)),
    ),
    "bias in softmax": (_node("BiasSoftmax", ["x", "b"], axis=2), {"b": [16]}, WORDS, (0, None)),
    "bias and rest": (_node("BiasAdd", ["x", "b", "x"]), {"b": [16]}, WORDS, (0, None)),
    "joined integers": (
        _node("QLinearConcat", ["s", "z", "x", "s", "z", "x", "s", "z"], axis=2),
        {"s": np.array(0.1, np.float32), "z": np.array(0, np.uint8)},
        WORDS,
        (0, (2, 12, 32)),
    ),
    "packed attention": (
        _node("QAttention", ["x", "w", "b", "s", "s"], num_heads=2),
        {"w": [16, 48], "b": [48], "s": np.array(0.1, np.float32)},
        WORDS,
        (12 * 16 * 48 + 2 * 12 * 12 * 16, (2, 12, 16)),
    ),
    "one step of attention": (
        _node("DecoderMaskedMultiHeadAttention", ["x", "x", "x"], num_heads=2),
        {},
        WORDS,
        (2 * 12 * 12 * 16, (2, 12, 16)),
    ),
    "packed attention behind a past": (
        _node("Attention", ["x", "w", "b", "m", "past"], ["y", "now"], num_heads=2, **ONE_WAY),
        {"w": [16, 48], "b": [48]},
        {"x": WORDS, "m": ["n", 15], "past": [2, "n", 2, 3, 8]},
        (12 * 16 * 48 + 2 * 12 * 15 * 16, (2, 12, 16)),
    ),
    "attention with a mask of keys, a bias and a past": (
        _node("MultiHeadAttention", ["x", "x", "x", "b", "m", "", "k", "k"], num_heads=2),
        {"b": [48]},
        {"x": WORDS, "m": ["n", 15], "k": ["n", 2, 3, 8]},
        (2 * 12 * 15 * 16, (2, 12, 16)),
    ),
    "attention whose keys and values lie together": (
        _node("MultiHeadAttention", ["x", "kv"], num_heads=2),
        {},
        {"x": WORDS, "kv": ["n", 20, 2, 2, 8]},
        (2 * 12 * 20 * 16, (2, 12, 16)),
    ),
    "attention whose queries share keys": (
        _node(
            "GroupQueryAttention",
            ["x", "k", "k", "past", "past", "n", "all", "cos", "cos"],
            ["y", "keys", "values"],
            num_heads=2,
            kv_num_heads=1,
            do_rotary=1,
        ),
        {"cos": [32, 4], "all": np.array(15, np.int32)},
        {"x": WORDS, "k": ["n", 12, 8], "past": ["n", 1, 3, 8], "n": ["n"]},
        (2 * 12 * 15 * 16, (2, 12, 16)),
    ),
    "attention whose queries and shared keys lie together": (
        _node(
            "GroupQueryAttention",
            ["x", "", "", "", "", "n", "all"],
            num_heads=2,
            kv_num_heads=1,
        ),
        {"all": np.array(12, np.int32)},
        {"x": WORDS, "n": ["n"]},
        (2 * 12 * 12 * 8, (2, 12, 8)),
    ),
    "positions as turns": (
        _node("RotaryEmbedding", ["x", "p", "cos", "cos"]),
        {"cos": [32, 4]},
        {"x": WORDS, "p": ["n", 12]},
        (0, (2, 12, 16)),
    ),
    "norm of a sum, and the sum": (
        _node("SkipLayerNormalization", ["x", "x", "w", "b", "b"], ["y", "", "", "sum"]),
        {"w": [16], "b": [16]},
        WORDS,
        (0, (2, 12, 16)),
    ),
    "simple norm of a sum": (
        _node("SkipSimplifiedLayerNormalization", ["x", "x", "w", "b"]),
        {"w": [16], "b": [16]},
        WORDS,
        (0, (2, 12, 16)),
    ),
    "quick gelu": (_node("QuickGelu", ["x"], alpha=1.5), {}, WORDS, (0, (2, 12, 16))),
    "product with an operand transposed": (
        _node("FusedMatMul", ["x", "w"], transB=1, alpha=0.5),
        {"w": [24, 16]},
        WORDS,
        (12 * 16 * 24, (2, 12, 24)),
    ),
    "lookup in rows of four bits": (
        _node("GatherBlockQuantized", ["t", "i", "s"], bits=4, block_size=16),
        {"t": np.zeros((40, 8), np.uint8), "s": [40, 1]},
        {"i": ["n", 12]},
        (0, (2, 12, 16)),
    ),
    "outer product": (
        _node("Einsum", ["x", "w"], domain="", equation="bti,k->btik"),
        {"w": [5]},
        WORDS,
        (0, (2, 12, 16, 5)),
    ),
    "recurrent layer of integers": (
        _node("DynamicQuantizeLSTM", ["x", "w", "r", *[""] * 5, *"szsz"], hidden_size=8),
        {"w": np.zeros((1, 16, 32), np.uint8), "r": np.zeros((1, 8, 32), np.uint8)} | SCALE,
        ["n", 2, 16],
        (2 * 4 * 8 * (16 + 8), (2, 1, 2, 8)),
    ),
    "determinant": (_node("Det", ["x"], domain=""), {}, ["n", 4, 4], (0, (2,))),
    "spectrum": (_node("Rfft", ["x"]), {}, WORDS, (12 * 16 * 18, (2, 12, 9, 2))),
    "spectrum of rows and columns": (
        _node("Rfft", ["x"], signal_ndim=2),
        {},
        WORDS,
        (12 * 16 * 18 + 9 * 24 * 24, (2, 12, 9, 2)),
    ),
    "from a spectrum": (
        _node("Irfft", ["x"], signal_ndim=2),
        {},
        ["n", 12, 9, 2],
        (9 * 24 * 24 + 12 * 18 * 16, (2, 12, 16)),
    ),
    "words, places and segments": (
        _node(
            "EmbedLayerNormalization",
            ["i", "s", "words", "places", "kinds", "g", "b"],
            ["y", "mask", "sum"],
        ),
        {"words": [50, 16], "places": [32, 16], "kinds": [2, 16], "g": [16], "b": [16]},
        {"i": ["n", 12], "s": ["n", 12]},
        (0, (2, 12, 16)),
    ),
    "product of the rows of a batch, without a result": (
        _node("Einsum", ["x", "w"], domain="", equation="...ti,ki"),
        {"w": [5, 16]},
        WORDS,
        (12 * 16 * 5, (2, 5, 12)),
    ),
    "sum over a diagonal": (
        _node("Einsum", ["x"], domain="", equation="bii->b"),
        {},
        ["n", 4, 4],
        (0, (2,)),
    ),
    "long running sum": (
        _node("CumSum", ["x", "axis"], domain=""),
        {"axis": np.array(1)},
        ["n", 5000],
        (0, (2, 5000)),
    ),
    "tokens": (_node("Tokenizer", ["x"]), {}, ["n"], (0, (2, 32))),
    "complement": (_node("Erfc", ["x"], domain=""), {}, WORDS, (0, (2, 12, 16))),
}


@pytest.mark.parametrize("name", CASES)
def test_fused_operators_of_onnxruntime(name):
    node, weights, shape, (macs, result) = CASES[name]
    inputs = shape if isinstance(shape, dict) else {"x": shape}
    graph = from_onnx(make_model([node], inputs, ["y"], weights)).graph(2)
    assert macs is None or graph.macs == 2 * macs
    assert graph.tensors[graph.outputs[0]].shape == (result or (2, *inputs["x"][1:]))


CHAINS = {
    "Atanh": ["add", "sub", "div", "log", "mul"],
    "Asinh": ["mul", "add", "sqrt", "add", "log"],
    "Cosh": ["exp", "neg", "exp", "add", "mul"],
    "Acos": ["tan"],
}


@pytest.mark.parametrize("name", CHAINS)
def test_functions_are_chains_of_those_that_poplar_has(name):
    graph = from_onnx(make_model([_node(name, ["x"], domain="")], {"x": WORDS}, ["y"])).graph()
    assert [op.function for op in graph.ops] == CHAINS[name]


@pytest.mark.parametrize(("kind", "domain", "steps"), [("Det", "", 3), ("Inverse", MS, 4)])
def test_determinants_and_inverses_are_eliminations(kind, domain, steps):
    model = from_onnx(make_model([_node(kind, ["x"], domain=domain)], {"x": ["n", 4, 4]}, ["y"]))
    assert [op.function for op in model.graph(2).ops].count("sub") == steps
    assert "determinants and inverses are eliminations" in model.note


def test_a_fused_convolution_with_channels_last_has_its_activation():
    node = _node("NhwcFusedConv", ["x", "w", "b"], kernel_shape=[1, 1], activation="Relu")
    graph = from_onnx(
        make_model([node], {"x": IMAGE}, ["y"], {"w": [5, 1, 1, 4], "b": [5]})
    ).graph()
    kinds = [op.function or op.kind for op in graph.ops]
    assert kinds == ["transpose", "conv", "bias_add", "relu", "transpose"]


def test_what_an_operator_with_channels_last_lacks_is_told_with_its_own_shapes():
    file = make_model([_node("GroupNorm", ["x", "w"])], {"x": [2, 6, 4, 8]}, ["y"], {"w": [8]})
    with pytest.raises(WorkloadError, match=r"cannot take inputs of shapes \[\(2, 6, 4, 8\)"):
        from_onnx(file)


def test_experts_share_the_rows():
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["r"]),
        helper.make_node("MatMul", ["r", "g"], ["s"]),
        _node("MoE", ["x", "s", "w", "", "v"], k=2, activation_type="silu"),
    ]
    weights = {"g": [16, 4], "w": [4, 16, 32], "v": [4, 32, 16], "rows": np.array([-1, 16])}
    graph = from_onnx(make_model(nodes, {"x": WORDS}, ["y"], weights)).graph(2)
    # Two experts of each row, whatever the number of experts.
    assert graph.macs == 2 * 12 * 16 * 4 + 2 * (2 * 12) * 2 * 16 * 32
    assert graph.tensors["y"].shape == (2, 12, 16)


def test_all_experts_are_held_and_compute_however_few_the_rows():
    nodes = [
        helper.make_node("MatMul", ["x", "g"], ["s"]),
        _node("MoE", ["x", "s", "w", "b", "v"], k=2),
    ]
    weights = {"g": [16, 8], "w": [8, 16, 32], "b": [8, 32], "v": [8, 32, 16]}
    model = from_onnx(make_model(nodes, {"x": ["n", 16]}, ["y"], weights))
    for rows, of_each in ((1, 1), (3, 1), (4, 1), (5, 2), (40, 10)):
        graph = model.graph(rows)
        assert graph.parameters == 16 * 8 + 8 * 32 * (16 + 1 + 16)
        assert graph.macs == rows * 16 * 8 + 8 * of_each * 2 * 16 * 32
        assert graph.tensors["y"].shape == (rows, 16)


def test_transposes_between_operators_with_channels_last_cancel():
    nodes = [
        _node("NhwcConv", ["x", "w"], ["a"], kernel_shape=[1, 1]),
        helper.make_node("NhwcConv", ["a", "v"], ["y"], domain=MS, kernel_shape=[1, 1]),
    ]
    model = make_model(nodes, {"x": IMAGE}, ["y"], {"w": [8, 1, 1, 4], "v": [8, 1, 1, 8]})
    graph = from_onnx(model).graph()
    turned = [op for op in graph.ops if op.kind == "layout" and op.function == "transpose"]
    assert len(turned) == 2


def test_erfc_is_a_gelu_too():
    half, root = np.array(0.5, np.float32), np.array(-(0.5**0.5), np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "r"], ["a"]),
        helper.make_node("Erfc", ["a"], ["b"]),
        helper.make_node("Mul", ["x", "b"], ["c"]),
        helper.make_node("Mul", ["c", "h"], ["y"]),
    ]
    graph = from_onnx(make_model(nodes, {"x": WORDS}, ["y"], {"r": root, "h": half})).graph()
    assert [op.function for op in graph.ops] == ["gelu"]


@pytest.mark.parametrize("name", ["n_samples", "n_frames", "b_width"])
def test_only_a_batch_is_called_batch(name):
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["batch", name]}, ["y"])
    with pytest.raises(WorkloadError, match=f"--dim {name}="):
        from_onnx(model)


def test_a_suggested_line_is_taken_as_it_is():
    shape = ["DynamicDimension.0", 3, "", "DynamicDimension.1"]
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": shape}, ["y"])
    with pytest.raises(WorkloadError) as caught:
        from_onnx(model)
    line = "--dim DynamicDimension.1=224 --shape x=1,3,224,224"
    assert line in str(caught.value)
    assert from_onnx(model, dims={"DynamicDimension.1": 224}, shapes={"x": (1, 3, 224, 224)})


def test_a_state_has_the_batch_behind_its_layers():
    node = helper.make_node("Relu", ["state"], ["y"])
    with pytest.raises(WorkloadError, match="--shape state=2,1,128"):
        from_onnx(make_model([node], {"state": [2, "", 128]}, ["y"]))


def test_check_looks_at_the_rest_with_the_suggested_sizes():
    model = make_model(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        {"x": ["n", 3, "h", "w_"]},
        ["y"],
        {"w": [8, 3, 1, 1]},
    )
    found = check_onnx(model)
    assert not found.usable
    lines = dict(found.lines)
    assert lines["MACs"].startswith(f"{224 * 224 * 24:,}") and "--dim h=224" in lines["stops at"]


def test_a_number_of_graphs_is_given_by_the_value_of_an_input():
    """The readout of graph networks has as many rows as the largest entry of `batch` says."""
    nodes = [
        helper.make_node("ReduceMax", ["batch"], ["last"], keepdims=0),
        helper.make_node("Add", ["last", "one"], ["count"]),
        helper.make_node("Unsqueeze", ["count", "zero"], ["rows"]),
        helper.make_node("Concat", ["rows", "width"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["empty"]),
        helper.make_node("Unsqueeze", ["batch", "last_axis"], ["where"]),
        helper.make_node("ScatterND", ["empty", "where", "x"], ["y"], reduction="add"),
    ]
    weights = {
        "one": np.array(1, np.int64),
        "zero": np.array([0]),
        "width": np.array([16]),
        "last_axis": np.array([1]),
    }
    inputs = {"x": ["nodes", 16], "batch": ["nodes"]}
    model = make_model(nodes, inputs, ["y"], weights, opset=17)
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(WorkloadError, match="--value batch="):
        from_onnx(model)
    graph = from_onnx(model, values={"batch": 3}).graph(10)
    assert graph.tensors[graph.outputs[0]].shape == (4, 16)


def _loop(trips):
    body = helper.make_graph(
        [
            helper.make_node("Tanh", ["state"], ["next"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    model = make_model(
        [helper.make_node("Loop", [trips, "", "x"], ["y"], body=body)],
        {"x": ["n", 4], "steps": []},
        ["y"],
    )
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    return model


def test_a_trip_count_is_given_by_its_value():
    with pytest.raises(WorkloadError, match="--value steps=8"):
        from_onnx(_loop("steps"))
    graph = from_onnx(_loop("steps"), values={"steps": 5}).graph()
    assert len(graph.ops) == 5 * 2 + 1
    # All rounds have the operators of one body, and carry what it gives.
    assert len({name_in_body(op.name) for op in graph.ops}) == 2 + 1


def test_the_rounds_of_a_loop_share_their_weights():
    inner = [
        helper.make_node("Slice", ["w", "zero", "four", "one"], ["part"]),
        helper.make_node("MatMul", ["state", "part"], ["next"]),
        helper.make_node("Add", ["next", "bias"], ["sum"]),
        helper.make_node("Identity", ["goes"], ["on"]),
    ]
    scalar = [("i", TensorProto.INT64), ("goes", TensorProto.BOOL)]
    body = helper.make_graph(
        inner,
        "body",
        [
            *(helper.make_tensor_value_info(name, kind, []) for name, kind in scalar),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, None),
        ],
        [helper.make_tensor("bias", TensorProto.FLOAT, [4], [0.1, 0.2, 0.3, 0.4])],
    )
    numbers = {"zero": [0], "four": [4], "one": [1]}
    weights = {name: np.array(value, np.int64) for name, value in numbers.items()}
    weights |= {"w": [4, 8], "trips": np.array(5, np.int64)}
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)
    graph = from_onnx(make_model([loop], {"x": ["n", 4]}, ["y"], weights)).graph(1)
    assert (graph.macs, graph.parameters) == (5 * 16, 16 + 4)


def test_a_quantised_bias_of_constants_is_float():
    weights = {
        "w": [4, 3, 1, 1],
        "b": np.arange(4, dtype=np.int32),
        "s": np.full(4, 0.1, np.float32),
        "z": np.zeros(4, np.int32),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["b", "s", "z"], ["bias"], axis=0),
        helper.make_node("Conv", ["x", "w", "bias"], ["y"]),
    ]
    graph = from_onnx(make_model(nodes, {"x": ["n", 3, 4, 4]}, ["y"], weights)).graph(1)
    assert graph.parameters == 12 + 4


def test_the_triangle_of_a_running_sum_is_not_trained():
    nodes = [
        helper.make_node("CumSum", ["x", "axis"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    weights = {"axis": np.array(1), "w": [16, 3]}
    assert from_onnx(make_model(nodes, {"x": WORDS}, ["y"], weights)).graph().parameters == 48


def test_a_slice_that_is_assigned_to_is_one_move():
    """Exporters write x[:, 1:] = y as ScatterND with constant indices, one for each element."""
    places = np.stack(np.meshgrid(range(2), range(1, 12), indexing="ij"), -1)
    node = helper.make_node("ScatterND", ["x", "i", "u"], ["y"])
    weights = {"i": places, "u": [2, 11, 16]}
    graph = from_onnx(make_model([node], {"x": [2, 12, 16]}, ["y"], weights)).graph()
    assert [(op.kind, op.function) for op in graph.ops] == [("layout", "concat")]


def test_a_scan_gives_several_results_round_by_round():
    nodes = [
        helper.make_node("Add", ["state", "x"], ["next"]),
        helper.make_node("Relu", ["next"], ["first"]),
        helper.make_node("Tanh", ["next"], ["second"]),
    ]
    given, results = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in names]
        for names in (("state", "x"), ("next", "first", "second"))
    )
    body = helper.make_graph(nodes, "body", given, results)
    scan = helper.make_node("Scan", ["s", "xs"], ["", "a", "b"], body=body, num_scan_inputs=1)
    model = make_model([scan], {"xs": [5, 4]}, ["a", "b"], {"s": [4]})
    graph = from_onnx(model).graph()
    assert [graph.tensors[name].shape for name in ("a", "b")] == [(5, 4), (5, 4)]
