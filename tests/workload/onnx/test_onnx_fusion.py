"""One network, one answer: operators in pieces, operands in any order, several exporters."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_single_op import make_model

from ipusim.api import simulate
from ipusim.workload.onnx import from_onnx
from ipusim.workload.onnx.builder import OnnxBuild

BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
NUMBERS = {
    "half": np.float32(0.5),
    "one": np.float32(1.0),
    "root2": np.float32(2**0.5),
    "inverse": np.float32(2**-0.5),
    "two": np.float32(2.0),
    "three": np.float32(3.0),
    "six": np.float32(6.0),
    "zero": np.float32(0.0),
    "cube": np.float32(0.044715),
    "tanh": np.float32(0.7978846),
    "eps": np.float32(1e-5),
    "last": np.array([-1], np.int64),
}


def _model(steps, shape=("n", 4, 8), **weights):
    """Build from lines such as "y = Mul x half" (attributes as key:value)."""
    nodes = []
    for step in steps:
        output, _, call = step.partition(" = ")
        kind, *operands = call.split()
        given = {}
        for item in [x for x in operands if ":" in x]:
            key, _, value = item.partition(":")
            several = key in ("axes", "perm")
            given[key] = [int(n) for n in value.split(",")] if several else int(value)
        inputs = [x for x in operands if ":" not in x]
        nodes.append(helper.make_node(kind, inputs, [output], **given))
    used = {x for node in nodes for x in node.input}
    constants = {k: np.asarray(v) for k, v in NUMBERS.items() if k in used}
    return make_model(nodes, {"x": shape}, ["y"], {**constants, **weights})


def _fused(model):
    build = from_onnx(model).build
    assert isinstance(build, OnnxBuild)
    graph, context = build.imported(build.batch)
    return graph, dict(context.fused)


@pytest.mark.parametrize(
    "steps",
    [
        ["a = Div x root2", "b = Erf a", "c = Add b one", "d = Mul x c", "y = Mul d half"],
        ["a = Mul x inverse", "b = Erf a", "c = Add one b", "d = Mul c x", "y = Mul half d"],
        ["h = Mul x half", "a = Div x root2", "b = Erf a", "c = Add b one", "y = Mul h c"],
        ["a = Div x root2", "b = Erf a", "c = Add b one", "d = Mul c half", "y = Mul d x"],
        ["a = Div x root2", "b = Erf a", "c = Add b one", "d = Mul x c", "y = Div d two"],
        [
            *("p = Pow x three", "q = Mul p cube", "r = Add x q", "s = Mul r tanh", "t = Tanh s"),
            *("u = Add t one", "h = Mul x half", "y = Mul h u"),
        ],
        [
            *("p = Mul x x", "q = Mul p x", "r = Mul cube q", "s = Add r x", "t = Mul tanh s"),
            *("u = Tanh t", "v = Add one u", "w = Mul x v", "y = Mul w half"),
        ],
    ],
)
def test_gelu_in_any_association(steps):
    graph, fused = _fused(_model(["e = Relu x", *[s.replace(" x", " e") for s in steps]]))
    assert [op.function for op in graph.ops] == ["relu", "gelu"]
    assert sum(fused.values()) == 1


def _gelu_turned(back="0,2,1", reads="v"):
    """As tf2onnx leaves it behind a convolution whose channels are last."""
    return [
        *("e = Relu x", "t = Transpose e perm:0,2,1", "p = Pow t three", "q = Mul p cube"),
        *(f"b = Transpose q perm:{back}", "r = Add e b", "s = Mul r tanh", "u = Tanh s"),
        *("v = Add u one", "h = Mul e half", "g = Mul h v", f"y = Add g {reads}"),
    ]


def test_transposes_around_functions_of_elements_cancel():
    graph, fused = _fused(_model(_gelu_turned(reads="one")))
    assert [op.function for op in graph.ops] == ["relu", "gelu", "add"]
    assert fused == {"transposes that cancel": 1, "gelu (tanh)": 1}


@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        (("n", 4, 8), [*_gelu_turned(reads="z"), "k = Neg q", "z = Transpose k perm:0,2,1"]),
        (("n", 4, 4), _gelu_turned(back="0,1,2", reads="one")),
        (
            ("n", 4, 8),
            ["t = Transpose x perm:0,2,1", "p = Add t row", "y = Transpose p perm:0,2,1"],
        ),
    ],
)
def test_transposes_that_others_need_or_that_turn_on_stay(shape, steps):
    model = _model(steps, shape, row=np.ones(4, np.float32))
    graph, fused = _fused(model)
    assert "transposes that cancel" not in fused
    assert "transpose" in [op.function for op in graph.ops]


@pytest.mark.parametrize(
    "steps",
    [
        ["a = Div x root2", "b = Erf a", "c = Add b one", "y = Mul x c"],
        ["a = Div x two", "b = Erf a", "c = Add b one", "d = Mul x c", "y = Mul d half"],
        ["a = Add x three", "b = Clip a zero three", "c = Mul x b", "y = Div c six"],
        ["a = Mul x two", "b = Sigmoid a", "y = Mul x b"],
    ],
)
def test_what_computes_something_else_is_left_alone(steps):
    graph, fused = _fused(_model(steps))
    assert not fused
    assert "gelu" not in [op.function for op in graph.ops]


@pytest.mark.parametrize("kind", ["bfloat16", "quantised"])
def test_a_gelu_of_other_numbers(kind):
    steps = ["a = Div x root2", "b = Erf a", "c = Add b one", "d = Mul x c", "y = Mul d half"]
    weights = {name: np.asarray(NUMBERS[name]) for name in ("root2", "one", "half")}
    if kind == "bfloat16":
        weights = {name: array.astype(BFLOAT16) for name, array in weights.items()}
    else:
        weights |= {"s": np.float32(0.1), "z": np.uint8(0)}
        steps[2:3] = ["e = QuantizeLinear b s z", "f = DequantizeLinear e s z", "c = Add f one"]
    weights = {name: np.asarray(array) for name, array in weights.items()}
    assert _fused(_model(steps, **weights))[1] == {"gelu": 1}


def test_a_gelu_whose_inside_is_read_elsewhere_is_left_alone():
    steps = ["a = Div x root2", "b = Erf a", "c = Add b one", "d = Mul x c", "g = Mul d half"]
    _, fused = _fused(_model([*steps, "y = Add g b"]))
    assert not fused


@pytest.mark.parametrize(("filled", "guards"), [("zero", 1), ("one", 0)])
def test_a_softmax_guarded_against_rows_without_a_score(filled, guards):
    steps = ["s = Softmax x axis:-1", "n = IsNaN s", f"g = Where n {filled} s", "y = Relu g"]
    graph, fused = _fused(_model(steps))
    assert fused.get("guards of a softmax", 0) == guards
    assert len(graph.ops) == (2 if guards else 4)


@pytest.mark.parametrize(
    ("steps", "function"),
    [
        (["s = Sigmoid x", "y = Mul x s"], "swish"),
        (["s = Sigmoid x", "y = Mul s x"], "swish"),
        (["s = HardSigmoid x", "y = Mul s x"], "hard_swish"),
        (["a = Add x three", "b = Clip a zero six", "c = Mul x b", "y = Div c six"], "hard_swish"),
        (["a = Add x three", "b = Clip a zero six", "c = Div b six", "y = Mul x c"], "hard_swish"),
        (["a = Softplus x", "b = Tanh a", "y = Mul x b"], "mish"),
    ],
)
def test_gated_activations(steps, function):
    graph, _ = _fused(_model(steps))
    assert [op.function for op in graph.ops] == [function]


CENTRE = ["m = ReduceMean x axes:-1", "d = Sub x m"]
SPREAD = ["v = ReduceMean q axes:-1", "w = Add v eps", "s = Sqrt w"]


@pytest.mark.parametrize("square", ["q = Pow d two", "q = Mul d d"])
@pytest.mark.parametrize("divide", [["n = Div d s"], ["r = Reciprocal s", "n = Mul d r"]])
@pytest.mark.parametrize("scale", [["g = Mul n gamma", "y = Add g beta"], ["y = Identity n"]])
def test_layer_norm_in_pieces(square, divide, scale):
    model = _model(
        [*CENTRE, square, *SPREAD, *divide, *scale],
        gamma=np.ones(8, np.float32),
        beta=np.ones(8, np.float32),
    )
    graph, fused = _fused(model)
    assert fused == {"layer norm": 1}
    assert graph.ops[0].kind == "norm"
    assert graph.parameters == 16 if "gamma" in scale[0] else 8


def test_a_layer_norm_over_several_axes_has_a_gain_of_their_shape():
    steps = [*CENTRE, "q = Mul d d", *SPREAD, "n = Div d s", "g = Mul n gamma", "y = Add g beta"]
    several = [step.replace("axes:-1", "axes:-2,-1") for step in steps]
    vectors = {"gamma": np.ones((4, 8), np.float32), "beta": np.ones((1, 4, 8), np.float32)}
    graph, fused = _fused(_model(several, **vectors))
    assert fused == {"layer norm": 1}
    (norm,) = graph.ops
    assert norm.inputs == ("x", "gamma", "beta") and norm.params.channels == 4 * 8


@pytest.mark.parametrize("shift", [True, False])
def test_a_group_norm_in_pieces_is_one_with_gain_and_shift(shift):
    """As torch exports it before ONNX had the operator."""
    steps = ["r = Reshape x grouped", "i = InstanceNormalization r ones zeros", "b = Reshape i own"]
    steps += ["g = Mul b gamma", "s = Add g beta" if shift else "s = Relu g", "y = Relu s"]
    model = _model(
        steps,
        (2, 8, 3, 4),
        grouped=np.array([0, 4, -1]),
        own=np.array([2, 8, 3, 4]),
        ones=np.ones(4, np.float32),
        zeros=np.zeros(4, np.float32),
        gamma=np.ones((8, 1, 1), np.float32),
        beta=np.ones((8, 1, 1), np.float32),
    )
    graph, fused = _fused(model)
    assert fused == ({"group norm": 1} if shift else {})
    norm = next(op for op in graph.ops if op.kind == "norm")
    assert (norm.params.kind, norm.params.groups) == (("group", 4) if shift else ("instance", 4))


def test_a_group_norm_of_single_channels_keeps_its_shape():
    """As torch's newer exporter leaves it: a Reshape that changes nothing is gone."""
    steps = ["r = Reshape x grouped", "i = InstanceNormalization r ones zeros"]
    steps += ["g = Mul i gamma", "y = Add g beta"]
    vectors = {
        name: np.full((8, 1), place, np.float32) for place, name in enumerate(["beta", "gamma"])
    }
    plain = {"ones": np.ones(8, np.float32), "zeros": np.zeros(8, np.float32)}
    graph, fused = _fused(
        _model(steps, (2, 8, 12), grouped=np.array([0, 8, -1]), **plain, **vectors)
    )
    assert fused == {"group norm": 1}
    assert [(op.params.kind, op.params.groups) for op in graph.ops] == [("group", 8)]


GAIN_INSIDE = {
    "tensorflow": [
        *CENTRE,
        "q = Mul d d",
        *SPREAD,
        "r = Reciprocal s",
        "i = Mul r gamma",
        "a = Mul x i",
        "b = Mul m i",
        "c = Sub beta b",
        "y = Add a c",
    ],
    "flax": [
        "m = ReduceMean x axes:-1",
        "q = Mul x x",
        "o = ReduceMean q axes:-1",
        "k = Mul m m",
        "u = Sub o k",
        "v = Max u zero",
        "w = Add v eps",
        "s = Sqrt w",
        "r = Reciprocal s",
        "i = Mul r gamma",
        "d = Sub x m",
        "a = Mul d i",
        "y = Add a beta",
    ],
}


@pytest.mark.parametrize("framework", GAIN_INSIDE)
def test_a_layer_norm_may_hold_its_gain(framework):
    """As tf.nn.batch_normalization and flax write it; the shift is no gain, whatever its place."""
    vectors = {"gamma": np.ones(8, np.float32), "beta": np.zeros(8, np.float32)}
    graph, fused = _fused(_model(GAIN_INSIDE[framework], **vectors))
    assert fused == {"layer norm": 1}
    assert [(op.kind, op.inputs) for op in graph.ops] == [("norm", ("x", "gamma", "beta"))]


@pytest.mark.parametrize(
    "last", ["y = Sub a c", "y = Mul a c", "y = Add a b"], ids=["less", "times", "another shift"]
)
def test_what_is_no_layer_norm_for_its_gain_is_left_alone(last):
    vectors = {"gamma": np.ones(8, np.float32), "beta": np.ones(8, np.float32)}
    _, fused = _fused(_model([*GAIN_INSIDE["tensorflow"][:-1], last], **vectors))
    assert not fused


def test_rms_norm_costs_the_same_in_pieces_and_as_one_operator():
    gamma = np.ones(8, np.float32)
    pieces = _model(["q = Pow x two", *SPREAD, "n = Div x s", "y = Mul n gamma"], gamma=gamma)
    node = helper.make_node("RMSNormalization", ["x", "gamma"], ["y"])
    one = make_model([node], {"x": ("n", 4, 8)}, ["y"], {"gamma": gamma}, opset=23)
    functions = [[op.function for op in _fused(model)[0].ops] for model in (pieces, one)]
    assert functions[0] == functions[1] == ["square", "mean", "rsqrt", "mul", "mul"]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("back", [(-1, 4, 6), (-1, 4, 2, 3)])
def test_a_gemm_of_flat_rows_is_a_product_and_its_bias(back, turned):
    weights = {"w": np.full((6, 8) if turned else (8, 6), 0.01, np.float32)}
    weights |= {
        "flat": np.array([-1, 8]),
        "back": np.array(back),
        "b": np.full(6, 0.01, np.float32),
    }
    gemm = "g = Gemm f w b" + " transB:1" * turned
    graph, fused = _fused(_model(["f = Reshape x flat", gemm, "y = Reshape g back"], **weights))
    assert fused == {"products of flat rows": 1}
    assert [op.kind for op in graph.ops][:2] == ["matmul", "elementwise"]
    assert graph.ops[1].function == "bias_add"
    assert graph.tensors[graph.ops[1].outputs[0]].shape == (1, 4, 6)
    assert (graph.macs, graph.parameters) == (4 * 8 * 6, 8 * 6 + 6)


def test_queries_keys_and_values_of_flat_rows_are_one_product():
    """onnxslim writes every linear layer as a Gemm of flat rows, weights as torch has them."""
    weights = {"flat": np.array([-1, 8]), "back": np.array([-1, 4, 8])}
    steps = ["f = Reshape x flat"]
    for name in "qkv":
        weights[f"w{name}"], weights[f"b{name}"] = (
            np.eye(8, dtype=np.float32),
            np.ones(8, np.float32),
        )
        steps += [f"g{name} = Gemm f w{name} b{name} transB:1", f"{name} = Reshape g{name} back"]
    graph, fused = _fused(_model([*steps, "s = Add q k", "y = Add s v"], **weights))
    assert fused == {"products of flat rows": 3, "q, k, v in one product": 1}
    assert sum(op.kind == "matmul" for op in graph.ops) == 1


def test_flat_rows_of_a_transpose_are_read_as_they_lie():
    weights = {"w": np.full((4, 4), 0.01, np.float32), "b": np.full(4, 0.01, np.float32)}
    weights |= {"flat": np.array([-1, 4]), "back": np.array([-1, 8, 4])}
    steps = ["t = Transpose x perm:0,2,1", "f = Reshape t flat", "g = Gemm f w b"]
    graph, fused = _fused(_model([*steps, "y = Reshape g back"], **weights))
    assert fused == {"products of flat rows": 1, "transposed operands": 1}
    assert [op.kind for op in graph.ops][:2] == ["matmul", "elementwise"]


def test_three_projections_become_one_product():
    weights = {f"w{i}": np.ones((64, 64), np.float32) * i for i in range(3)}
    weights |= {f"b{i}": np.ones(64, np.float32) for i in range(3)}
    big = {k: np.ones((64, 128), np.float32) for k in ("w0", "w1", "w2")} | weights
    steps = [f"p{i} = MatMul x w{i}" for i in range(3)]
    steps += [f"q{i} = Add p{i} b{i}" for i in range(3)]
    model = _model([*steps, "s = Add q0 q1", "y = Mul s q2"], ("n", 16, 64), **(big | weights))
    graph, fused = _fused(model)
    (product,) = [op.params for op in graph.ops if op.kind == "matmul"]
    assert (product.k, product.n, fused) == (64, 192, {"q, k, v in one product": 1})
    assert graph.parameters == 3 * (64 * 64 + 64)
    assert graph.macs == 16 * 64 * 192


def test_what_is_computed_twice_of_the_same_is_computed_once():
    """torch writes the mean and the differences again for a variance."""
    twice = [f"{name} = ReduceMean x axes:1" for name in ("m", "n")]
    twice += ["c = Sub x m", "d = Sub x n", "q = Mul d d", "v = ReduceMean q axes:1"]
    graph, _ = _fused(_model([*twice, "e = Add v eps", "s = Sqrt e", "y = Div c s"]))
    functions = [op.function for op in graph.ops]
    assert functions == ["mean", "sub", "mul", "mean", "add", "sqrt", "div"]


def test_weights_that_start_alike_are_not_the_same():
    gains = {name: np.ones(8, np.float32) for name in ("g", "h")}
    graph, _ = _fused(_model(["a = Mul x g", "b = Mul x h", "y = Max a b"], **gains))
    assert ([op.function for op in graph.ops], graph.parameters) == (["mul", "mul", "max"], 16)


def test_layers_that_share_their_projections_share_the_joined_one():
    weights = {f"w{i}": np.full((8, 8), i + 1, np.float32) for i in range(3)}
    weights |= {f"b{i}": np.full(8, i + 1, np.float32) for i in range(3)}
    steps = []
    for x, y in (("x", "e"), ("e", "y")):
        steps += [f"{y}p{i} = MatMul {x} w{i}" for i in range(3)]
        steps += [f"{y}q{i} = Add {y}p{i} b{i}" for i in range(3)]
        steps += [f"{y}s = Add {y}q0 {y}q1", f"{y} = Mul {y}s {y}q2"]
    graph, fused = _fused(_model(steps, **weights))
    assert fused == {"q, k, v in one product": 2}
    assert (graph.parameters, graph.macs) == (3 * (8 * 8 + 8), 2 * 4 * 8 * 24)


def test_a_batch_norm_of_one_item_by_its_own_statistics_can_be_trained():
    steps = ["m = ReduceMean e axes:2 keepdims:1", "c = Sub e m", "q = Mul c c"]
    steps += ["v = ReduceMean q axes:0,2 keepdims:0", "n = ReduceMean e axes:0,2 keepdims:0"]
    last = "y = BatchNormalization e gain shift"
    vectors = {"gain": np.ones(4, np.float32), "shift": np.zeros(4, np.float32)}
    for mean, kind in (("n", "instance"), ("w", "batch")):
        given = vectors | ({"w": vectors["shift"]} if mean == "w" else {})
        model = _model(["e = Relu x", *steps, f"{last} {mean} v"], (1, 4, 8), **given)
        (op,) = [op for op in _fused(model)[0].ops if op.kind == "norm"]
        assert op.params.kind == kind
        if kind == "instance":
            simulate(from_onnx(model), mode="training", loss="mean_squared", replicas=1)


@pytest.mark.parametrize(("kind", "spread"), [("Mul", 1.0), ("Add", 1.0), ("Sub", 1.5)])
def test_operand_order_does_not_matter(kind, spread):
    cycles = []
    for order in (["data", "gate"], ["gate", "data"]):
        nodes = [
            helper.make_node("Relu", ["x"], ["data"]),
            helper.make_node("GlobalAveragePool", ["data"], ["pooled"]),
            helper.make_node("Sigmoid", ["pooled"], ["gate"]),
            helper.make_node(kind, order, ["y"]),
        ]
        model = from_onnx(make_model(nodes, {"x": ["n", 64, 56, 56]}, ["y"]))
        cycles.append(simulate(model, replicas=1).cycles_per_step)
    assert max(cycles) <= spread * min(cycles)


@pytest.mark.parametrize("field", [(5, 5), (5, 5, 5)])
def test_the_global_mean_is_a_global_pool(field):
    node = helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3, 4][: len(field)])
    graph, _ = _fused(make_model([node], {"x": ["n", 8, *field]}, ["y"]))
    assert graph.ops[0].kind == "pool"


def test_a_report_says_what_the_import_fused():
    model = from_onnx(_model(["e = Relu x", "s = Sigmoid e", "y = Mul e s"]))
    assert model.note == "fused: silu (1 x)"
    assert model.note in repr(simulate(model, tier="specification"))


HEADS = {
    "heads": np.array([0, 0, 4, 16], np.int64),
    "root": np.array(0.5, np.float32),
    **{f"w{i}": np.ones((64, 64), np.float32) * i for i in range(3)},
}


@pytest.mark.parametrize(
    "scores",
    [
        ["s = MatMul tq tk", "u = Mul s root"],
        ["sq = Mul tq root", "sk = Mul tk root", "u = MatMul sq sk"],
    ],
)
def test_attention_moves_its_heads_twice_and_scales_once(scores):
    """As the zoo's: heads of q, k and v by one transpose, put together again by one."""
    steps = ["x1 = Relu x", *(f"p{c} = MatMul x1 w{i}" for i, c in enumerate("qkv"))]
    steps += [f"r{c} = Reshape p{c} heads" for c in "qkv"]
    orders = {"q": "0,2,1,3", "k": "0,2,3,1", "v": "0,2,1,3"}
    steps += [f"t{c} = Transpose r{c} perm:{order}" for c, order in orders.items()]
    steps += [*scores, "m = Softmax u axis:-1", "y = MatMul m tv"]
    model = _model(steps, ("n", 8, 64), **HEADS)
    imported, fused = _fused(model)
    functions = [op.function for op in imported.ops]
    assert functions.count("transpose") == 1
    assert functions.count("mul") == 1
    assert fused["transposed operands"] == 1
    products = [op.params for op in imported.ops if op.kind == "matmul"]
    assert [(p.groups, p.m, p.k, p.n) for p in products] == [
        (1, 8, 64, 192),
        (4, 8, 16, 8),
        (4, 8, 8, 16),
    ]


@pytest.mark.parametrize(
    ("cuts", "kinds"),
    [
        ([(0, 4), (4, 9)], ["split"]),
        ([(4, 2**40), (-9, 4)], ["split"]),
        ([(0, 4), (5, 9)], ["slice", "slice"]),
        ([(0, 9), (0, 9)], ["slice"]),
    ],
    ids=["parts", "parts from the end", "a gap", "twice the same"],
)
def test_slices_that_cut_a_tensor_into_parts_are_a_split(cuts, kinds):
    nodes = [
        helper.make_node("Slice", ["x", f"from{place}", f"to{place}", "axis"], [f"part{place}"])
        for place in (0, 1)
    ]
    nodes += [helper.make_node("Tanh", [f"part{place}"], [f"y{place}"]) for place in (0, 1)]
    bounds = {"axis": np.array([1])}
    for place, (start, end) in enumerate(cuts):
        bounds |= {f"from{place}": np.array([start]), f"to{place}": np.array([end])}
    graph = from_onnx(make_model(nodes, {"x": (2, 9)}, ["y0", "y1"], bounds)).graph()
    assert [op.params.function for op in graph.ops if op.kind == "layout"] == kinds
    sizes = [min(end, 9) - max(start, 0) for start, end in cuts]
    assert [graph.tensors[name].shape for name in graph.outputs] == [(2, size) for size in sizes]


@pytest.mark.parametrize("repeat", ["Expand", "Tile"])
@pytest.mark.parametrize(
    ("places", "sizes", "axis", "read"),
    [
        ((7, 1), (7, 5), 0, (9, 5, 7)),
        ((3, 1), (3, 9), 1, None),
        ((9, 1), (9, 5), 1, None),
        ((7, 1), (7, 4), 0, None),
    ],
    ids=["rows", "columns of a row", "a place of each row", "parts of rows"],
)
def test_places_that_are_repeated_along_a_row_choose_whole_rows(repeat, places, sizes, axis, read):
    """How torch writes scatter_add and index_add of the rows that nodes of a graph have."""
    factors = tuple(size // own for size, own in zip(sizes, places, strict=True))
    nodes = [
        helper.make_node("Cast", ["chosen"], ["own"], to=TensorProto.INT64),
        helper.make_node(repeat, ["own", "repeats"], ["wide"]),
        helper.make_node("GatherElements", ["x", "wide"], ["found"], axis=axis),
        helper.make_node("Tanh", ["found"], ["news"]),
        helper.make_node("Relu", ["x"], ["base"]),
        helper.make_node("ScatterElements", ["base", "wide", "news"], ["y"], axis=axis,
                         reduction="add"),
    ]  # fmt: skip
    repeats = {"repeats": np.array(sizes if repeat == "Expand" else factors)}
    shapes = {"x": (9, 5), "chosen": places}
    graph, fused = _fused(make_model(nodes, shapes, ["y"], repeats))
    found = {op.params.function: op.params for op in graph.ops if op.kind == "gather"}
    sizes_of = [(p.rows, p.width, p.indices) for p in (found["lookup"], found["write"])]
    assert fused.get("places of whole rows", 0) == (2 if read else 0)
    if read:
        assert sizes_of == [read, read]
    else:
        assert [width for _, width, _ in sizes_of] == [1, 1]


def _bags(sizes, axis=0, *, table=False):
    """Means of parts of a tensor, or of rows that parts choose, one after the other."""
    names = [f"part{place}" for place in range(len(sizes))]
    nodes = [helper.make_node("Split", ["x", "sizes"], names, axis=axis)]
    for name in names:
        if table:
            nodes.append(helper.make_node("Gather", ["rows", name], [f"{name}.rows"]))
        source = f"{name}.rows" if table else name
        nodes.append(
            helper.make_node("ReduceMean", [source], [f"{name}.sum"], axes=[0], keepdims=0)
        )
        nodes.append(helper.make_node("Unsqueeze", [f"{name}.sum", "front"], [f"{name}.wide"]))
    nodes.append(helper.make_node("Concat", [f"{name}.wide" for name in names], ["y"], axis=0))
    weights = {"sizes": np.array(sizes), "front": np.array([0]), "rows": (9, 4)}
    shape = (12,) if table else (12, 12)
    kinds = {"input_type": TensorProto.INT64} if table else {}
    return make_model(nodes, {"x": shape}, ["y"], weights, opset=13, **kinds)


@pytest.mark.parametrize("table", [False, True])
def test_bags_of_one_length_are_one_sum(table):
    graph, fused = _fused(_bags([4, 4, 4], table=table))
    assert fused == {"bags in one sum": 1}
    kinds = ["gather"] * table + ["layout", "reduce"]
    assert [op.kind for op in graph.ops] == kinds
    total = graph.ops[-1].params
    width = 4 if table else 12
    assert (total.function, total.outer, total.reduced, total.inner) == ("mean", 3, 4, width)
    assert graph.tensors["y"].shape == (3, width)


@pytest.mark.parametrize(("sizes", "axis"), [([4, 3, 5], 0), ([4, 4, 4], 1)])
def test_bags_of_other_lengths_are_sums_of_their_own(sizes, axis):
    graph, fused = _fused(_bags(sizes, axis))
    assert not fused
    assert sum(op.kind == "reduce" for op in graph.ops) == 3
