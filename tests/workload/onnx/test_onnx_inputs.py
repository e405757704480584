"""Free sizes and values of inputs: given by the user, found to be the batch, or asked for."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_single_op import make_model, single

from ipusim.api import simulate
from ipusim.cli import main
from ipusim.errors import ConfigError, UnknownNameError, WorkloadError
from ipusim.sweeps import sweep
from ipusim.workload.loading import load_model
from ipusim.workload.onnx import from_onnx


def _shape(model, micro_batch=None):
    graph = model.graph(micro_batch)
    return graph.tensors[graph.inputs[0]].shape


@pytest.mark.parametrize(
    ("shape", "given", "expected"),
    [
        (["n", 3, "height", "width"], {"shapes": {"x": (1, 3, 32, 48)}}, (4, 3, 32, 48)),
        (["n", 3, "height", "width"], {"dims": {"height": 8, "width": 9}}, (4, 3, 8, 9)),
        (["batch_size", "sequence"], {"dims": {"sequence": 7}}, (4, 7)),
        (["unk__123", 5], {}, (4, 5)),
        (["", 5], {}, (4, 5)),
        (["", ""], {"shapes": {"x": (1, 6)}}, (4, 6)),
        (["time", "batch", 8], {"dims": {"time": 3}}, (3, 4, 8)),
        (["batch", "past + new"], {"dims": {"past": 2, "new": 3}}, (4, 5)),
    ],
)
def test_free_sizes_are_given_by_name_of_input_or_dimension(shape, given, expected):
    file = single("Relu", {"x": shape})
    assert _shape(from_onnx(file, **given), 4) == expected


def test_sums_of_named_sizes_are_computed():
    inputs = {"x": ["batch", "past"], "y": ["batch", "past + 3"]}
    node = helper.make_node("Concat", ["x", "y"], ["z"], axis=1)
    graph = from_onnx(make_model([node], inputs, ["z"]), dims={"past": 2}).graph(2)
    assert [graph.tensors[name].shape for name in ("x", "y", "z")] == [(2, 2), (2, 5), (2, 7)]


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        (["batch", 3, "height", "width"], "--dim height=224 --dim width=224"),
        (["batch", "sequence"], "--dim sequence=128"),
        (["batch", "num_samples"], "--dim num_samples=16000"),
        (["batch", 3, "", ""], "--shape x=1,3,224,224"),
        (["batch", "past_length"], "--dim past_length=0"),
        # A letter names a batch only where no word does.
        (["batch_size", "N"], "--dim N=128"),
    ],
)
def test_a_missing_size_is_answered_with_the_line_to_type(shape, line):
    with pytest.raises(WorkloadError, match=f"add such as '{line}'"):
        from_onnx(single("Relu", {"x": shape}))


def test_sound_is_known_by_the_name_of_its_input():
    with pytest.raises(WorkloadError, match="--dim N=16000"):
        from_onnx(single("Relu", {"waveforms": ["batch_size", "N"]}))
    with pytest.raises(WorkloadError, match="--dim frames=128"):
        from_onnx(single("Relu", {"audio_features": ["batch_size", "frames", 80]}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shapes": {"y": (1,)}}, "has no input 'y'.*did you mean 'x'"),
        ({"dims": {"sequenze": 3}}, "has no dimension 'sequenze'.*did you mean 'sequence'"),
        ({"shapes": {"x": (1, 2)}}, "has 3 dimensions"),
        ({"shapes": {"x": (1, 2, 9)}}, "the file fixes 8"),
        ({"dims": {"sequence": -1}}, "must be a whole number"),
        ({"dims": {"sequence": 2**40}}, "must be a whole number"),
        ({"shapes": {"x": (1, 2, 8)}, "dims": {"sequence": 3}}, "given two sizes, 3 and 2"),
        ({"values": {"x": "much"}}, "cannot have the value 'much'"),
    ],
)
def test_what_does_not_fit_the_file_is_refused(given, message):
    with pytest.raises(WorkloadError, match=message):
        from_onnx(single("Relu", {"x": ["batch", "sequence", 8]}), **given)


def test_the_value_of_an_input_is_a_constant():
    nodes = [
        helper.make_node("Cast", ["rate"], ["factor"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    model = make_model(nodes, {"x": ["batch", 4], "rate": []}, ["y"])
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    graph = from_onnx(model, values={"rate": 16000}).graph(3)
    assert graph.inputs == ("x",)
    assert graph.tensors["factor"].role == "constant"


def test_a_fixed_batch_is_counted(tmp_path):
    import onnx

    path = tmp_path / "two.onnx"
    onnx.save(single("Gemm", {"x": [2, 64]}, {"w": [64, 64]}), path)
    options = {"system": "IPU-M2000", "replicas": 1}
    two, one = simulate(str(path), **options), simulate(str(path), micro_batch=1, **options)
    cycles = two.cycles_per_step / one.cycles_per_step
    assert two.throughput.value == pytest.approx(
        2 * one.throughput.value * one.latency.value / two.latency.value
    )
    assert cycles >= 1


def test_sweep_over_sizes_and_command_line(tmp_path, capsys):
    import onnx

    path = tmp_path / "open.onnx"
    onnx.save(single("Gemm", {"x": ["rows", 64]}, {"w": [64, 64]}), path)
    model = single("MatMul", {"x": ["batch", "sequence", 64]}, {"w": [64, 64]})
    onnx.save(model, path)
    frame = sweep(str(path), dims={"sequence": [16, 512]}, shapes={}, progress=False)
    assert list(frame["sequence"]) == [16, 512]
    assert frame["cycles_per_step"].is_monotonic_increasing
    assert main(["simulate", str(path), "--dim", "sequence=16", "--json"]) == 0
    assert main(["simulate", str(path), "--shape", "x=2,16,64"]) == 0
    assert main(["simulate", str(path)]) == 2
    assert "--dim sequence=128" in capsys.readouterr().err
    assert main(["simulate", str(path), "--dim", "sequence"]) == 2
    assert "must be such as 'sequence=128'" in capsys.readouterr().err


def test_sizes_of_a_file_are_refused_for_a_zoo_model():
    with pytest.raises(ConfigError, match=r"dims is for a path that ends in \.onnx"):
        simulate("resnet50", dims={"sequence": 3})


def test_values_reach_vectors_and_scalars():
    model = make_model(
        [helper.make_node("Add", ["x", "v"], ["y"])], {"x": ["n", 4], "v": [4]}, ["y"]
    )
    graph = from_onnx(model, values={"v": np.arange(4)}).graph(2)
    assert graph.tensors["v"].shape == (4,)


def _recurrent(shape, **given):
    """A recurrent layer of 16 features, 8 states, whose first axis is the steps."""
    node = helper.make_node("LSTM", ["x", "w", "r", "", "", *given], ["y"], hidden_size=8)
    return make_model([node], {"x": shape, **given}, ["y"], {"w": [1, 32, 16], "r": [1, 32, 8]})


def _scan(shape):
    """A recurrent layer as a Scan, whose first axis is the steps."""
    nodes = [
        helper.make_node("MatMul", ["step", "w"], ["ahead"]),
        helper.make_node("MatMul", ["h", "w"], ["before"]),
        helper.make_node("Add", ["ahead", "before"], ["next"]),
        helper.make_node("Identity", ["next"], ["each"]),
    ]
    given, found = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        for names in (["h", "step"], ["next", "each"])
    )
    body = helper.make_graph(nodes, "body", given, found)
    node = helper.make_node("Scan", ["h0", "x"], ["last", "y"], body=body, num_scan_inputs=1)
    weights = {"h0": np.zeros(shape[1:], np.float32), "w": [16, 16]}
    return make_model([node], {"x": shape}, ["last", "y"], weights)


def _attention(batch, length, heads, size, *, steps_first=False):
    """Self-attention with every size a constant, as frameworks without symbols export it."""
    width = heads * size
    if steps_first:
        shape, split, order, back = [length, batch, width], [length, -1, size], [1, 0, 2], [1, 0, 2]
    else:
        shape, split = [batch, length, width], [batch, length, heads, size]
        order = back = [0, 2, 1, 3]
    merged = [batch * heads, length, size]
    again = merged if steps_first else [batch, heads, length, size]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "split"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=order),
        helper.make_node("Reshape", ["c", "merged"], ["q"]),
        helper.make_node("Transpose", ["q"], ["k"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "q"], ["mixed"]),
        helper.make_node("Reshape", ["mixed", "again"], ["d"]),
        helper.make_node("Transpose", ["d"], ["e"], perm=back),
        helper.make_node("Reshape", ["e", "joined"], ["y"]),
    ]
    targets = {"split": split, "merged": merged, "again": again, "joined": shape}
    weights = {"w": [width, width], **{name: np.array(to) for name, to in targets.items()}}
    return make_model(nodes, {"x": shape}, ["y"], weights)


@pytest.mark.parametrize(
    ("file", "batch"),
    [
        (_recurrent([20, 4, 16]), 4),
        (_recurrent([20, 4, 16], h=[1, 4, 8]), 4),
        (_scan([20, 4, 16]), 4),
        (_scan([20, 1, 16]), 1),
        (_attention(2, 16, 4, 8), 2),
        (_attention(4, 16, 4, 8, steps_first=True), 4),
        (single("Relu", {"x": [3, 8]}), 3),
    ],
)
def test_a_fixed_batch_is_found_where_it_is_and_changed(file, batch):
    model = from_onnx(file)
    assert model.batch == batch
    for size in (1, batch, 7):
        assert batch * model.graph(size).macs == size * model.graph().macs


@pytest.mark.parametrize("normalised", [False, True])
def test_an_image_alone_is_one_item(normalised):
    nodes = [
        helper.make_node("Sub", ["x", "mean"], ["s"]),
        helper.make_node("Unsqueeze", ["s" if normalised else "x", "front"], ["a"]),
        helper.make_node("Conv", ["a", "w"], ["y"]),
    ]
    weights = {"front": np.array([0]), "mean": [3, 1, 1], "w": [4, 3, 3, 3]}
    file = make_model(nodes[not normalised :], {"x": [3, 8, 8]}, ["y"], weights)
    model = from_onnx(file)
    assert model.batch == 1
    with pytest.raises(WorkloadError, match="none of whose sizes is a batch"):
        model.graph(3)


@pytest.mark.parametrize(
    ("shape", "line"), [(["", "", 16], "--shape x=128,1,16"), (["steps", 1, 16], "--dim steps=128")]
)
def test_steps_of_a_recurrent_layer_are_no_batch(shape, line):
    with pytest.raises(WorkloadError, match=f"add such as '{line}'"):
        from_onnx(_recurrent(shape))


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ({"x": ["s7", 8], "edges": [2, "s9"]}, "--dim s7=128 --dim s9=128"),
        ({"x": ["atoms", 8], "edges": ["bonds"]}, "--dim atoms=128 --dim bonds=128"),
    ],
)
def test_nodes_and_edges_of_a_graph_are_no_batch(sizes, line):
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["edges"], ["z"])]
    file = make_model(nodes, sizes, ["y", "z"])
    with pytest.raises(WorkloadError, match=f"add such as '{line}'"):
        from_onnx(file)
    with pytest.raises(WorkloadError, match="none of whose sizes is a batch"):
        from_onnx(file, dims=dict.fromkeys(line.replace("=128", "").split()[1::2], 5)).graph(3)


def test_a_norm_whose_channels_are_rows_keeps_items_apart():
    """How Keras' layer norm is exported: rows are channels, with ones as many as they are."""
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["rows"]),
        helper.make_node("Shape", ["rows"], ["count"], start=1, end=2),
        helper.make_node("ConstantOfShape", ["count"], ["ones"]),
        helper.make_node("InstanceNormalization", ["rows", "ones", "ones"], ["normed"]),
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Reshape", ["normed", "sizes"], ["y"]),
    ]
    model = from_onnx(
        make_model(nodes, {"x": ["unk__1", 4, 8]}, ["y"], {"flat": np.array([1, -1, 8])})
    )
    assert [_shape(model, n) for n in (1, 3)] == [(1, 4, 8), (3, 4, 8)]


def test_numbers_of_items_are_constants_for_any_batch():
    """How transformers looks a mask up: with Range and Expand, which repeat no weights."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "zero"], ["n"]),
        helper.make_node("Range", ["zero", "n", "one"], ["items"]),
        helper.make_node("Unsqueeze", ["items", "one"], ["column"]),
        helper.make_node("Expand", ["column", "sizes"], ["indices"]),
        helper.make_node("GatherElements", ["x", "indices"], ["y"], axis=0),
    ]
    weights = {"zero": np.array(0), "one": np.array(1)}
    model = from_onnx(make_model(nodes, {"x": ["s7", 8]}, ["y"], weights))
    assert [[op.kind for op in model.graph(n).ops] for n in (1, 3)] == [["layout"]] * 2


@pytest.mark.parametrize("shape", [[1, 4, 8], ["batch", 4, 8]])
def test_a_class_token_stands_once_for_all_items(shape):
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Slice", ["sizes", "zero", "one"], ["n"]),
        helper.make_node("Concat", ["n", "minus"], ["to"], axis=0),
        helper.make_node("Expand", ["token", "to"], ["tokens"]),
        helper.make_node("Concat", ["tokens", "x"], ["y"], axis=1),
    ]
    weights = {"token": [1, 1, 8], "zero": np.array([0]), "one": np.array([1])}
    weights["minus"] = np.array([1, 8])
    fixed = [helper.make_node("Concat", ["token", "x"], ["y"], axis=1)]
    file = make_model(nodes if shape[0] == "batch" else fixed, {"x": shape}, ["y"], weights)
    graph = from_onnx(file).graph(6)
    assert graph.tensors["y"].shape == (6, 5, 8)
    assert graph.parameters == 8


def test_a_shape_that_an_image_decides_is_not_asked_for():
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["n"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["n", "zero"], ["shape"]),
        helper.make_node("Expand", ["x", "shape"], ["y"]),
    ]
    file = make_model(nodes, {"x": ["n", 3]}, ["y"], {"zero": np.array([0])})
    with pytest.raises(WorkloadError, match="computed from 'x': export the model up to"):
        from_onnx(file)


def _counted(*nodes):
    """How many scores are positive, before nodes that make use of it."""
    count = [
        helper.make_node("Greater", ["x", "zero"], ["some"]),
        helper.make_node("Cast", ["some"], ["ones"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["ones"], ["all"], keepdims=0),
        helper.make_node("Reshape", ["all", "one"], ["count"]),
    ]
    weights = {"zero": np.array(0, np.float32), "one": np.array([1])}
    weights |= {"from": np.array([0]), "axis": np.array([1]), "true": np.array(True)}
    return make_model([*count, *nodes], {"x": [2, 9]}, ["y"], weights)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Slice", ["x", "from", "count", "axis"], ["y"]),
        helper.make_node("TopK", ["x", "count"], ["y", ""]),
    ],
    ids=["slice", "best"],
)
def test_a_number_that_an_image_decides_is_at_most_all_of_it(node):
    model = from_onnx(_counted(node))
    graph = model.graph()
    assert graph.tensors[graph.outputs[0]].shape == (2, 9)
    assert "results whose number depends on data have their largest size" in model.note


def test_a_loop_that_data_end_asks_for_no_image():
    body = helper.make_graph(
        [helper.make_node("Relu", ["own"], ["next"]), helper.make_node("Identity", ["c"], ["go"])],
        "body",
        [helper.make_tensor_value_info(name, 1, None) for name in ("i", "c", "own")],
        [helper.make_tensor_value_info(name, 1, None) for name in ("go", "next")],
    )
    loop = helper.make_node("Loop", ["all", "true", "x"], ["y"], name="it", body=body)
    with pytest.raises(WorkloadError, match="'it' runs as often as data say.*largest trip count"):
        from_onnx(_counted(loop))


def test_a_file_of_another_kind_is_no_name_of_the_zoo(tmp_path):
    path = tmp_path / "net.pt"
    path.write_bytes(b"PK")
    with pytest.raises(WorkloadError, match=r"'.*net\.pt' does not end in \.onnx.*export the net"):
        load_model(path)
    with pytest.raises(UnknownNameError):
        load_model("net." + "p" * 5000)


@pytest.mark.parametrize("open_size", [False, True])
def test_a_size_may_be_a_sum_or_product_of_the_batch(open_size):
    rows = ["batch", "length" if open_size else 8]
    twice = ["2*batch + 1", "length" if open_size else 8]
    node = helper.make_node("Concat", ["a", "b"], ["y"], axis=0)
    model = make_model([node], {"a": rows, "b": twice}, ["y"])
    if open_size:
        with pytest.raises(WorkloadError, match=r"--dim length=128'"):
            from_onnx(model)
    read = from_onnx(model, dims={"length": 8} if open_size else {})
    for batch in (1, 3):
        graph = read.graph(batch)
        sizes = [graph.tensors[name].shape[0] for name in (*graph.inputs, *graph.outputs)]
        assert sizes == [batch, 2 * batch + 1, 3 * batch + 1]
    assert (
        from_onnx(model, dims={"batch": 2, "length": 8} if open_size else {"batch": 2}).batch == 2
    )


def test_a_sum_of_the_batch_alone_is_the_batch():
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = from_onnx(make_model([node], {"x": ["2*batch", 8]}, ["y"])).graph(4)
    assert graph.tensors["x"].shape == (4, 8)


@pytest.mark.parametrize("size", ["seq ** 2", "seq +", "8 // (seq - 1)", "seq + other"])
def test_a_size_that_no_known_sum_tells_stays_open(size):
    model = make_model(
        [helper.make_node("Relu", ["x"], ["y"])], {"x": ["batch", "seq", size]}, ["y"]
    )
    with pytest.raises(WorkloadError, match="leaves sizes open"):
        from_onnx(model, dims={"seq": 1})


def test_a_size_is_named_in_one_line():
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 8, "a\nb"]}, ["y"])
    with pytest.raises(WorkloadError, match=r"'x' is \[batch, 8, a b\]"):
        from_onnx(model)


def test_inputs_have_one_batch():
    node = helper.make_node("Add", ["a", "b"], ["y"])
    model = make_model([node], {"a": ["batch", 4], "b": ["batch", 4]}, ["y"])
    with pytest.raises(WorkloadError, match=r"are given batches of \[2, 3\], which must be one"):
        from_onnx(model, shapes={"a": (2, 4), "b": (3, 4)})


def test_a_part_of_a_sum_is_given_as_the_message_says():
    node = helper.make_node("Relu", ["x"], ["y"])
    model = make_model([node], {"x": ["batch", "seq + other"]}, ["y"])
    with pytest.raises(WorkloadError, match="--dim other=128 --dim seq=128"):
        from_onnx(model)
    assert _shape(from_onnx(model, dims={"seq": 128, "other": 128})) == (1, 256)
