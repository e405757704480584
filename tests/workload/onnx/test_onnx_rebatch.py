"""Another batch than a file fixes, in the forms that exporters write it in."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_single_op import make_model

from ipusim.errors import WorkloadError
from ipusim.workload.onnx import from_onnx


def _numbers(**shapes):
    return {name: np.array(shape, np.int64) for name, shape in shapes.items()}


def _attention(batch):
    """Attention of torch's dynamo exporter: heads beside the batch, then rows x batch, features."""
    steps = (
        ("Transpose", ["x"], {"perm": [1, 0, 2]}),
        ("Reshape", ["x0", "heads"], {}),
        ("Transpose", ["x1"], {"perm": [1, 0, 2]}),
        ("Reshape", ["x2", "apart"], {}),
        ("Transpose", ["x3"], {"perm": [2, 0, 1, 3]}),
        ("Reshape", ["x4", "rows"], {}),
        ("Gemm", ["x5", "w"], {}),
        ("Reshape", ["x6", "back"], {}),
        ("Transpose", ["x7"], {"perm": [1, 0, 2]}),
        ("Add", ["x8", "x"], {}),
    )
    nodes = [
        helper.make_node(kind, inputs, [f"x{place}"], **given)
        for place, (kind, inputs, given) in enumerate(steps)
    ]
    sizes = _numbers(
        heads=[6, batch * 4, 2], apart=[batch, 4, 6, 2], rows=[6 * batch, 8], back=[6, batch, 8]
    )
    return make_model(nodes, {"x": [batch, 6, 8]}, ["x9"], {"w": [8, 8], **sizes}), (6, 8)


def _resize(batch):
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear")
    sizes = _numbers(sizes=[batch, 4, 16, 16])
    return make_model([node], {"x": [batch, 4, 8, 8]}, ["y"], sizes), (4, 16, 16)


def _strides(batch):
    """A view of torch with strides of its own is a lookup by constant places."""
    places = np.arange(batch * 12).reshape(batch, 4, 3).transpose(0, 2, 1)
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["z"]),
        helper.make_node("Gather", ["z", "places"], ["y"]),
    ]
    weights = {"places": np.ascontiguousarray(places), **_numbers(flat=[-1])}
    return make_model(nodes, {"x": [batch, 12]}, ["y"], weights), (3, 4)


def _mask(batch):
    """A mask of keys that transformers looks up for every query: indices of item and key."""
    places = np.stack(np.broadcast_arrays(*np.ogrid[:batch, :40, :64][::2]), axis=-1)
    places = np.broadcast_to(places, (batch, 40, 64, 2))
    node = helper.make_node("GatherND", ["x", "places"], ["y"])
    return make_model([node], {"x": [batch, 64]}, ["y"], {"places": places.copy()}), (40, 64)


def _field(batch):
    """Places along a field in front of the items, as of an adaptive pool, stay."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("GatherND", ["t", "places"], ["g"]),
        helper.make_node("Transpose", ["g"], ["y"], perm=[1, 0]),
    ]
    places = np.array([[0], [2], [3], [4]])
    return make_model(nodes, {"x": [batch, 5]}, ["y"], {"places": places}), (4,)


def _shifted(batch):
    """BART's tokens of a decoder: all but the last moved by one, and a first one for every item."""
    nodes = [
        helper.make_node("Slice", ["x", "none", "five", "axis"], ["most"]),
        helper.make_node("ScatterND", ["zeros", "later", "most"], ["moved"]),
        helper.make_node("ScatterND", ["moved", "begin", "start"], ["y"]),
    ]
    items, positions = np.indices((batch, 6))
    places = np.stack([items, positions], axis=-1)
    weights = {"zeros": np.zeros((batch, 6), np.float32), "start": np.ones((batch, 1), np.float32)}
    weights |= {"later": places[:, 1:].copy(), "begin": places[:, :1].copy()}
    numbers = _numbers(none=[0], five=[5], axis=[1])
    return make_model(nodes, {"x": [batch, 6]}, ["y"], weights | numbers), (6,)


def _scattered(batch):
    """Rows of every item added to other places of it, where zeros are."""
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["r"]),
        helper.make_node("ScatterND", ["zeros", "places", "r"], ["s"], reduction="add"),
        helper.make_node("Reshape", ["s", "items"], ["y"]),
    ]
    places = (np.array([2, 0, 3, 1]) + 4 * np.arange(batch)[:, None]).reshape(-1, 1)
    weights = {"zeros": np.zeros((batch * 4, 8), np.float32), "places": places}
    sizes = _numbers(rows=[batch * 4, 8], items=[batch, 4, 8])
    return make_model(nodes, {"x": [batch, 4, 8]}, ["y"], weights | sizes), (4, 8)


def _tokens(batch):
    node = helper.make_node("Concat", ["one", "two", "x"], ["y"], axis=1)
    tokens = {"one": [batch, 1, 8], "two": [batch, 1, 8]}
    return make_model([node], {"x": [batch, 5, 8]}, ["y"], tokens), (7, 8)


def _token(batch):
    """A class token that torch's older exporter repeats for every item, and a gain of channels."""
    nodes = [
        helper.make_node("Expand", ["one", "items"], ["ones"]),
        helper.make_node("Concat", ["ones", "x"], ["c"], axis=1),
        helper.make_node("Expand", ["wide", "channels"], ["gain"]),
        helper.make_node("Mul", ["c", "gain"], ["y"]),
    ]
    sizes = _numbers(items=[batch, 1, 8], channels=[6, 8])
    return make_model(nodes, {"x": [batch, 5, 8]}, ["y"], {"one": [8], "wide": [8], **sizes}), (
        6,
        8,
    )


def _states(batch):
    """A layer whose first state was written with the batch, and a sum beside zeros."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["t", "w", "r", "", "", "h", "h"], ["", "y"], hidden_size=4),
        helper.make_node("Squeeze", ["y", "axes"], ["s"]),
        helper.make_node("Add", ["s", "start"], ["z"]),
    ]
    weights = {"w": [1, 16, 8], "r": [1, 16, 4], "h": [1, batch, 4], "start": [batch, 4]}
    return make_model(nodes, {"x": [batch, 5, 8]}, ["z"], weights | _numbers(axes=[0])), (4,)


def _rows(batch):
    """As many rows as channels: a gain of channels is no constant of the rows."""
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["r"]),
        helper.make_node("Mul", ["r", "gain"], ["s"]),
        helper.make_node("Reshape", ["s", "back"], ["y"]),
    ]
    weights = {"gain": [batch * 8], **_numbers(rows=[-1, batch * 8], back=[batch, 8, batch * 8])}
    return make_model(nodes, {"x": [batch, 8, batch * 8]}, ["y"], weights), (8, batch * 8)


def _positions(batch):
    """Learnt keys of positions stand beside the heads of every item."""
    nodes = [
        helper.make_node("Reshape", ["x", "heads"], ["q"]),
        helper.make_node("MatMul", ["q", "keys"], ["scores"]),
        helper.make_node("Reshape", ["scores", "items"], ["y"]),
    ]
    keys = np.arange(batch * 4 * 8 * 5, dtype=np.float32).reshape(batch * 4, 8, 5)
    sizes = _numbers(heads=[batch * 4, 6, 8], items=[batch, 4, 6, 5])
    return make_model(nodes, {"x": [batch, 4, 6, 8]}, ["y"], {"keys": keys, **sizes}), (4, 6, 5)


def _experts(batch):
    """A sum of experts starts from zeros that were written for all rows of the batch."""
    rows = np.zeros((batch * 32, 256), np.float32)
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["r"]),
        helper.make_node("Constant", [], ["zeros"], value=numpy_helper.from_array(rows)),
        helper.make_node("Add", ["zeros", "r"], ["sum"]),
        helper.make_node("Reshape", ["sum", "items"], ["y"]),
    ]
    sizes = _numbers(rows=[-1, 256], items=[batch, 32, 256])
    return make_model(nodes, {"x": [batch, 32, 256]}, ["y"], sizes), (32, 256)


def _learnt_positions(batch):
    """Positions that are looked up for every item alike: too many for their values to be known."""
    nodes = [
        helper.make_node("Add", ["order", "offset"], ["places"]),
        helper.make_node("Gather", ["table", "places"], ["looked"]),
        helper.make_node("Cast", ["looked"], ["rows"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["places", "last"], ["deep"]),
        helper.make_node("GatherND", ["table", "deep"], ["more"]),
        helper.make_node("Mul", ["rows", "more"], ["scaled"]),
        helper.make_node("Add", ["x", "scaled"], ["y"]),
    ]
    order = np.broadcast_to(np.arange(64), (batch, 64)).copy()
    weights = {"table": [80, 128], "order": order, **_numbers(offset=2, last=[-1])}
    return make_model(nodes, {"x": [batch, 64, 128]}, ["y"], weights), (64, 128)


def _chosen_rows(batch):
    """Some rows of every item are chosen among those of all."""
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["r"]),
        helper.make_node("Gather", ["r", "places"], ["g"]),
        helper.make_node("Reshape", ["g", "items"], ["y"]),
    ]
    places = (np.array([3, 1]) + 4 * np.arange(batch)[:, None]).reshape(-1)
    sizes = _numbers(rows=[batch * 4, 8], items=[batch, 2, 8])
    return make_model(nodes, {"x": [batch, 4, 8]}, ["y"], {"places": places, **sizes}), (2, 8)


def _wide_mask(batch):
    """A mask that was written for every item is repeated to as many as there are."""
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Expand", ["mask", "sizes"], ["wide"]),
        helper.make_node("Add", ["x", "wide"], ["z"]),
        helper.make_node("Expand", ["row", "narrow"], ["rows"]),
        helper.make_node("Add", ["z", "rows"], ["y"]),
    ]
    weights = {"mask": [batch, 1, 8], "row": np.arange(8, dtype=np.float32)}
    weights |= _numbers(narrow=[batch, 1, 1])
    return make_model(nodes, {"x": [batch, 5, 8]}, ["y"], weights), (5, 8)


def _queries(batch):
    """Learnt queries are repeated for every item before they are normalised and projected."""
    nodes = [
        helper.make_node("Expand", ["latents", "wide"], ["l"]),
        helper.make_node("LayerNormalization", ["l", "gain"], ["n"]),
        helper.make_node("MatMul", ["n", "w"], ["p"]),
        helper.make_node("Reshape", ["p", "heads"], ["h"]),
        helper.make_node("Transpose", ["h"], ["q"], perm=[0, 2, 1, 3]),
        helper.make_node("Mul", ["x", "q"], ["y"]),
    ]
    weights = {"latents": [1, 3, 8], "gain": [8], "w": np.eye(8, dtype=np.float32)}
    sizes = _numbers(wide=[batch, 3, 8], heads=[batch, 3, 2, 4])
    return make_model(nodes, {"x": [batch, 2, 3, 4]}, ["y"], weights | sizes), (2, 3, 4)


def _flat_mask(batch):
    """SqueezeBERT's mask of keys is looked up in those of all items side by side."""
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"], axis=0),
        helper.make_node("Gather", ["flat", "places"], ["found"], axis=1),
        helper.make_node("Reshape", ["found", "back"], ["y"]),
    ]
    places = np.arange(batch * 16).reshape(batch, 1, 1, 16)
    weights = {"places": places, **_numbers(back=[batch, 1, 1, 16])}
    return make_model(nodes, {"x": [batch, 16]}, ["y"], weights), (1, 1, 16)


def _large_table(batch):
    """Positions that were written for every item alike, too many for their values to be kept."""
    table = np.broadcast_to(np.arange(64 * 128, dtype=np.float32), (batch, 64 * 128))
    nodes = [helper.make_node("Add", ["x", "table"], ["y"])]
    weights = {"table": table.reshape(batch, 64, 128)}
    return make_model(nodes, {"x": [batch, 64, 128]}, ["y"], weights), (64, 128)


def _biased_rows(batch):
    """Of every item the rows, or the heads, stand beside those of one."""
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["r"]),
        helper.make_node("Mul", ["r", "biases"], ["s"]),
        helper.make_node("Reshape", ["s", "items"], ["y"]),
    ]
    biases = np.arange(batch * 4 * 8, dtype=np.float32).reshape(batch * 4, 8)
    sizes = _numbers(rows=[batch * 4, 8], items=[batch, 4, 8])
    return make_model(nodes, {"x": [batch, 4, 8]}, ["y"], {"biases": biases, **sizes}), (4, 8)


NETWORKS = (
    *(_large_table, _biased_rows, _queries),
    *(_learnt_positions, _flat_mask, _wide_mask, _chosen_rows),
    *(_experts, _mask, _attention, _resize, _strides, _field),
    *(_shifted, _scattered, _tokens, _token, _states, _rows, _positions),
)


@pytest.mark.parametrize(("batch", "size"), [(1, 6), (2, 6), (2, 3), (2, 1)])
@pytest.mark.parametrize("network", NETWORKS)
def test_numbers_that_hold_the_batch_follow_it(network, batch, size):
    file, item = network(batch)
    model = from_onnx(file)
    assert model.batch == batch
    graphs = {items: model.graph(items) for items in (batch, size)}
    shapes = {n: graph.tensors[graph.outputs[0]].shape for n, graph in graphs.items()}
    assert shapes == {n: (n, *item) for n in graphs}
    # What is made of weights alone is made once, however many the items.
    assert network is _queries or graphs[size].macs * batch == graphs[batch].macs * size
    looked_up = [
        [op.params.indices for op in graph.ops if op.kind == "gather"]
        for graph in (graphs[size], from_onnx(network(size)[0]).graph())
    ]
    assert looked_up[0] == looked_up[1]


def test_queries_of_one_item_stand_beside_all_in_einsum():
    nodes = [
        helper.make_node("Reshape", ["latents", "wide"], ["q"]),
        helper.make_node("Einsum", ["q", "x"], ["scores"], equation="bid,bjd->bij"),
        helper.make_node("Einsum", ["scores", "q"], ["y"], equation="bij,bid->bijd"),
    ]
    weights = {"latents": [3, 8], **_numbers(wide=[1, 3, 8])}
    graph = from_onnx(make_model(nodes, {"x": [1, 5, 8]}, ["y"], weights)).graph(6)
    assert (graph.macs, graph.tensors["y"].shape) == (6 * 3 * 5 * 8, (6, 3, 5, 8))


def test_a_batch_may_lie_behind_one_step():
    nodes = [
        helper.make_node("Reshape", ["x", "steps"], ["t"]),
        helper.make_node("Transpose", ["t"], ["z"], perm=[1, 0, 2]),
        helper.make_node("Gather", ["z", "first"], ["y"], axis=1),
    ]
    weights = _numbers(steps=[1, 1, 4], first=0)
    graph = from_onnx(make_model(nodes, {"x": [1, 4]}, ["y"], weights)).graph(6)
    assert [graph.tensors[name].shape for name in ("t", "y")] == [(1, 6, 4), (6, 4)]


@pytest.mark.parametrize("width", [4, 4096])
def test_constants_that_differ_between_items_stay(width):
    """Those of which the values are known, and large ones that follow from others."""
    start = np.arange(3 * width, dtype=np.float32).reshape(3, width)
    nodes = [
        helper.make_node("Relu", ["start"], ["begin"]),
        helper.make_node("Add", ["x", "begin"], ["y"]),
    ]
    model = from_onnx(make_model(nodes, {"x": [3, width]}, ["y"], {"start": start}))
    with pytest.raises(WorkloadError, match="fixes its batch of 3"):
        model.graph(6)


@pytest.mark.parametrize("kind", ["Gather", "GatherND"])
def test_what_is_looked_up_for_each_item_on_its_own_stays(kind):
    places = np.array([[0, 1, 2], [0, 2, 1]])
    places = places if kind == "Gather" else places[..., None]
    nodes = [
        helper.make_node(kind, ["table", "places"], ["rows"]),
        helper.make_node("Add", ["x", "rows"], ["y"]),
    ]
    weights = {"table": [400, 4000], "places": places}
    model = from_onnx(make_model(nodes, {"x": [2, 3, 4000]}, ["y"], weights))
    with pytest.raises(WorkloadError, match="fixes its batch of 2"):
        model.graph(6)


def test_places_that_do_not_move_on_with_the_items_stay():
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["z"]),
        helper.make_node("Gather", ["z", "places"], ["y"]),
    ]
    weights = {"places": np.array([[0, 1], [4, 3]]), **_numbers(flat=[-1])}
    model = from_onnx(make_model(nodes, {"x": [2, 3]}, ["y"], weights))
    with pytest.raises(WorkloadError, match="fixes its batch of 2"):
        model.graph(6)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("size", ["batch", "", 3], ids=["named", "nameless", "fixed"])
@pytest.mark.parametrize("first", [True, False], ids=["batch first", "steps first"])
def test_states_that_are_inputs_have_their_batch_behind_the_layers(first, size, layers):
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2])] if first else []
    states = ["h", "c"]
    if layers > 1:
        states = [f"{name}{layers}" for name in states]
        nodes += [
            helper.make_node("Gather", [name, "last"], [out])
            for name, out in zip("hc", states, strict=True)
        ]
    inputs = ["t" if first else "x", "w", "r", "", "", *states]
    nodes.append(helper.make_node("LSTM", inputs, ["y", "last_h", "last_c"], hidden_size=4))
    shapes = {"x": [size, 5, 8] if first else [5, size, 8]}
    shapes["h"] = shapes["c"] = [layers, size, 4]
    weights = {"w": [1, 16, 8], "r": [1, 16, 4], "last": np.array([layers - 1])}
    model = from_onnx(make_model(nodes, shapes, ["y", "last_h"], weights))
    assert model.batch == (size if size == 3 else 1)
    graph = model.graph(6)
    read = [graph.tensors[name].shape for name in graph.inputs]
    assert read == [(6, 5, 8) if first else (5, 6, 8), *[(layers, 6, 4)] * 2]
    assert [graph.tensors[name].shape for name in graph.outputs] == [(5, 1, 6, 4), (1, 6, 4)]
