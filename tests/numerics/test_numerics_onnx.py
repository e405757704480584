"""The operators of ONNX in single precision: onnx's own cases, loops, recurrent layers of ends."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_single_op import make_model, single
from rounding_bound import HALF, assert_within, loose_bound, sum_bound
from test_numerics_operators import noise, onnxruntime_outputs, with_one_moved

from ipusim import numerics
from ipusim.errors import IpuSimError, WorkloadError
from ipusim.numerics.operators import control

COMPUTED = 1480
"""Recorded number of onnx's cases whose values are onnx's: it must not fall."""

RANDOM_OR_ON_AN_EDGE = ("bernoulli", "tree_ensemble_single_tree")
"""Cases that draw numbers, or compare in double precision what is equal in single."""

MOST_TERMS = 128
"""None of onnx's cases adds up more for a result; of a signal as many."""

PRINTED = ("roialign", "averagepool_2d_ceil_last_window", "gridsample_bicubic")
"""Cases whose results are written down with four digits."""


def _bound(name, feed, expected):
    bound = loose_bound(MOST_TERMS, expected, *feed)
    if any(x.dtype == np.float16 for x in (*feed, expected)):
        # sums are of single precision: operands, what is stored between and results are rounded
        bound += loose_bound(4, expected, *feed, unit=HALF)
    return bound + 1e-4 * any(printed in name for printed in PRINTED)


def _exactly(case, feed, expected):
    """Whether all arrays come out; None where numerics refuses."""
    try:
        results = numerics.run(case.model, feed, precision="32.32", stochastic_rounding=False)
    except IpuSimError:
        return None
    for item, array in zip(case.model.graph.output, expected, strict=True):
        if not isinstance(array, (np.ndarray, np.generic)) or array.dtype.kind not in "fiub":
            continue
        try:
            array = np.asarray(array)
            assert_within(results[item.name], array, _bound(case.name, feed.values(), array))
        except AssertionError:
            return False
    return True


def test_values_of_onnxs_own_cases():
    warnings.simplefilter("ignore")
    from onnx.backend.test.case.node import collect_testcases

    found, wrong = 0, []
    for case in collect_testcases(None):
        if case.model is None or not case.data_sets:
            continue
        given, expected = case.data_sets[0]
        plain = all(isinstance(x, (np.ndarray, np.generic)) for x in given)
        if not plain or not all(np.asarray(x).dtype.kind in "fiub" for x in given):
            continue
        names = (item.name for item in case.model.graph.input)
        same = _exactly(case, dict(zip(names, map(np.asarray, given), strict=True)), expected)
        found += same is True
        if same is False and not any(name in case.name for name in RANDOM_OR_ON_AN_EDGE):
            wrong.append(case.name)
    assert not wrong
    assert found >= COMPUTED


def _node(kind, inputs, outputs, **given):
    return helper.make_node(kind, inputs.split(), outputs.split(), **given)


def _info(name, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, None)


def _body(nodes, inputs, outputs, *weights):
    infos = [[_info(name) for name in names.split()] for names in (inputs, outputs)]
    return helper.make_graph(nodes, "body", *infos, list(weights))


def _loop():
    """Bags of rows, as exporters write EmbeddingBag: a loop that reads a table outside of it."""
    rows = _body(
        [
            _node("Gather", "offsets trip", "start", axis=0),
            _node("Add", "trip one", "next"),
            _node("Gather", "offsets next", "end", axis=0),
            _node("Unsqueeze", "start axis", "starts"),
            _node("Unsqueeze", "end axis", "ends"),
            _node("Slice", "places starts ends axis", "own"),
            _node("Gather", "table own", "rows", axis=0),
            _node("ReduceSum", "rows axis", "bag", keepdims=0),
            _node("Mul", "bag half", "scaled"),
            _node("Identity", "goes", "goes_on"),
        ],
        "trip goes",
        "goes_on scaled",
        onnx.numpy_helper.from_array(np.array(0.5, np.float32), "half"),
    )
    for item, kind in zip((*rows.input, rows.output[0]), ("INT64", "BOOL", "BOOL"), strict=True):
        item.type.tensor_type.elem_type = getattr(TensorProto, kind)
        item.type.tensor_type.shape.SetInParent()
    weights = {
        "table": noise(9, 4),
        "places": np.array([1, 8, 3, 3, 0]),
        "one": np.array(1),
        "axis": np.array([0]),
        "bags": np.array(3),
        "true": np.array(True),
    }
    loop = _node("Loop", "bags true", "sums", body=rows)
    join = _node("MatMul", "sums x", "y")
    model = make_model([loop, join], {"offsets": [4], "x": [4, 2]}, ["y"], weights)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    return model, {"offsets": np.array([0, 2, 3, 5]), "x": noise(4, 2)}


def test_a_loop_without_an_end_is_refused(monkeypatch):
    monkeypatch.setattr(control, "MOST_ROUNDS", 5)
    body = _body([_node("Identity", "goes", "goes_on"), _node("Relu", "x", "out")],
                 "trip goes", "goes_on out")  # fmt: skip
    for trips, condition in (("", "true"), ("most", "")):
        inputs = {"true": np.array(True), "most": np.array(2**63 - 1)}
        loop = helper.make_node("Loop", [trips, condition], ["y"], name="it", body=body)
        model = make_model([loop], {"x": [2]}, ["y"], inputs)
        with pytest.raises(IpuSimError, match=r"'it', has not ended after 5 rounds: give it"):
            numerics.run(model, {"x": noise(2)})


def _branch():
    """A branch that data take, on what lies outside of it."""
    sides = (("then_branch", "Relu"), ("else_branch", "Neg"))
    bodies = {name: _body([_node(kind, "x", "out")], "", "out") for name, kind in sides}
    nodes = [
        _node("ReduceMax", "x", "top", keepdims=0),
        _node("Less", "top limit", "small"),
        _node("If", "small", "y", **bodies),
    ]
    model = make_model(nodes, {"x": [3, 4]}, ["y"], {"limit": np.array(0.1, np.float32)})
    return model, {"x": noise(3, 4)}


def _scan():
    """A running sum from the end of the second axis."""
    body = _body(
        [_node("Add", "state new", "sum"), _node("Identity", "sum", "out")],
        "state new",
        "sum out",
    )
    scan = _node(
        "Scan",
        "start x",
        "last y",
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_output_axes=[1],
        scan_input_directions=[1],
    )
    return make_model([scan], {"x": [3, 5]}, ["y"], {"start": noise(3)}), {"x": noise(3, 5)}


def _mapped():
    """A body over the items of a sequence, with the same number for each."""
    body = _body([_node("Mul", "item twice", "out")], "item twice", "out")
    nodes = [
        _node("SplitToSequence", "x", "items", axis=1),
        _node("SequenceMap", "items two", "doubles", body=body),
        _node("ConcatFromSequence", "doubles", "y", axis=0),
    ]
    two = {"two": np.array(2, np.float32)}
    return make_model(nodes, {"x": [3, 4]}, ["y"], two), {"x": noise(3, 4)}


def _rows():
    """Single elements along an axis that is longer than onnx's own evaluator takes."""
    places = np.argsort(noise(100, 3), axis=0)[:70, :2]
    return single("GatherElements", {"x": (100, 3)}, {"i": places}, axis=0), {"x": noise(100, 3)}


@pytest.mark.parametrize("case", [_loop, _branch, _scan, _mapped, _rows])
def test_bodies_are_run_as_onnxruntime_runs_them(case):
    model, feed = case()
    expected = onnxruntime_outputs(model, feed)["y"]
    single_precision = numerics.run(model, feed, precision="32.32")["y"]
    # sums of up to five, products with two sums of four
    assert_within(single_precision, expected, loose_bound(16, expected, *feed.values()))
    half = numerics.run(model, feed, stochastic_rounding=False)["y"]
    assert half.dtype == np.float16
    assert_within(half, expected, loose_bound(5, expected, *feed.values(), unit=HALF))


OLDER_FORMS = {
    "log softmax of flat rows": ("LogSoftmax", 11, {}, {"axis": 1}),
    "hardmax of flat rows": ("Hardmax", 9, {}, {}),
    "first upsample": ("Upsample", 7, {}, {"scales": [1.0, 1.0, 2.0, 3.0]}),
    "linear upsample": (
        "Upsample",
        9,
        {"scales": np.array([1, 1, 2, 3], np.float32)},
        {"mode": "linear"},
    ),
    "first resize": ("Resize", 10, {"scales": np.array([1, 1, 2, 1.5], np.float32)}, {}),
    "samples of images": ("GridSample", 16, {"grid": noise(2, 3, 3, 2)}, {"mode": "bicubic"}),
    "first regions": (
        "RoiAlign",
        10,
        {
            "rois": np.array([[0, 0, 3, 3], [0.5, 0.7, 3.2, 2.9]], np.float32),
            "of": np.array([0, 1]),
        },
        {"output_height": 2, "output_width": 3, "sampling_ratio": 2},
    ),
    "first scatter": (
        "Scatter",
        9,
        {"places": np.array([[[[3]], [[0]], [[2]]]]), "updates": noise(1, 3, 1, 1)},
        {"axis": 2},
    ),
    "paddings that take away": (
        "Pad",
        13,
        {"pads": np.array([0, 0, 1, -1, 0, 0, -2, 2]), "fill": np.array(0.5, np.float32)},
        {},
    ),
}


@pytest.mark.parametrize("name", OLDER_FORMS)
def test_older_forms_are_computed_as_onnxruntime_computes_them(name):
    kind, opset, others, given = OLDER_FORMS[name]
    node = _node(kind, " ".join(["x", *others]), "y", **given)
    model = make_model([node], {"x": [2, 3, 4, 5]}, ["y"], others, opset=opset)
    feed = {"x": noise(2, 3, 4, 5)}
    expected = onnxruntime_outputs(model, feed)["y"]
    found = numerics.run(model, feed, precision="32.32")["y"]
    # sixteen neighbours, each with a weight that takes some roundings
    assert_within(found, expected, loose_bound(32, expected, *feed.values()))


OTHERWISE = {
    # More channels than items.
    "response of channels": ("LRN", {}, {"size": 3, "alpha": 0.5, "bias": 2.0}),
    "norm of absolute values": ("LpNormalization", {}, {"axis": 1, "p": 1}),
    "norm of a field": ("GlobalLpPool", {}, {"p": 3}),
    "mean of what is repeated": ("Mean", {"row": noise(5), "more": noise(3, 1, 5)}, {}),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_onnxs_evaluator_has_otherwise_is_as_onnxruntime_has_it(name):
    kind, others, given = OTHERWISE[name]
    node = _node(kind, " ".join(["x", *others]), "y", **given)
    model = make_model([node], {"x": [2, 3, 4, 5]}, ["y"], others, opset=18)
    feed = {"x": noise(2, 3, 4, 5)}
    expected = onnxruntime_outputs(model, feed)["y"]
    found = numerics.run(model, feed, precision="32.32")["y"]
    assert_within(found, expected, loose_bound(4 * 5 + 4, expected, *feed.values()))  # a field


def test_a_real_signal_needs_no_axis_for_that():
    frames = {"step": np.array(4), "window": np.hanning(8).astype(np.float32)}
    model = make_model([_node("STFT", "x step window", "y")], {"x": [2, 32]}, ["y"], frames)
    feed = {"x": noise(2, 32)}
    found = numerics.run(model, feed, precision="32.32")["y"]
    expected = onnxruntime_outputs(model, feed)["y"]
    assert_within(found, expected, sum_bound(8 + 4, 8 * np.abs(feed["x"]).max()))


def test_scores_of_classes_need_no_names():
    nodes = [
        _node("Softmax", "x", "scores"),
        _node("ZipMap", "scores", "y", domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"]),
    ]
    model = make_model(nodes, {"x": [2, 3]}, ["y"])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    x = noise(2, 3)
    expected = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    found = numerics.run(model, x, precision="32.32")["y"]
    assert_within(found, expected, loose_bound(16, expected, x))


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_of_three_classes_are_refused_where_onnx_has_them_wrong(classes):
    """Of sklearn's SVC onnx's evaluator gives 0.40 where sklearn and onnxruntime give 0.36."""
    pairs = classes * (classes - 1) // 2
    given = {
        "classlabels_ints": list(range(classes)),
        "vectors_per_class": [1] * classes,
        "support_vectors": noise(classes, 4).ravel(),
        "coefficients": noise(classes - 1, classes).ravel(),
        "rho": noise(pairs),
        "prob_a": noise(pairs),
        "prob_b": noise(pairs),
        "kernel_type": "RBF",
        "kernel_params": [0.2, 0.0, 3.0],
    }
    node = helper.make_node("SVMClassifier", ["x"], ["label", "y"], domain="ai.onnx.ml", **given)
    model = make_model([node], {"x": [5, 4]}, ["y"])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    x = noise(5, 4)
    if classes > 2:
        with pytest.raises(WorkloadError, match="three classes or more: export it without"):
            numerics.run(model, x)
        return
    found = numerics.run(model, x, precision="32.32")["y"]
    expected = onnxruntime_outputs(model, {"x": x})["y"]
    assert_within(found, expected, loose_bound(2 * (4 + 8), expected, x))  # two kernels of four


def _suppression():
    """Bounds that are numbers, where onnx writes vectors of one."""
    bounds = {"most": np.array(2), "overlap": np.array(0.3, np.float32)}
    boxes = {"boxes": np.sort(noise(1, 6, 2, 2), axis=2).reshape(1, 6, 4)}
    node = _node("NonMaxSuppression", "boxes x most overlap", "found")
    join = _node("Cast", "found", "y", to=TensorProto.FLOAT)
    return make_model([node, join], {"x": [1, 2, 6]}, ["y"], boxes | bounds), (1, 2, 6)


def _classes():
    """A number of classes that is a vector of one, where onnx writes a number."""
    numbers = {"depth": np.array([4]), "values": np.array([0.1, 0.9], np.float32)}
    nodes = [_node("ArgMax", "x", "best", axis=1), _node("OneHot", "best depth values", "y")]
    return make_model(nodes, {"x": [3, 4]}, ["y"], numbers), (3, 4)


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("most", [0, 3, 40])
def test_suppression_keeps_the_boxes_that_onnxruntime_keeps(most, centred):
    """Of two images, three classes, and scores of which some are equal."""
    bounds = {"most": np.array([most]), "overlap": np.array([0.2], np.float32)}
    bounds |= {"least": np.array([0.3], np.float32), "boxes": np.abs(noise(2, 30, 4))}
    node = _node("NonMaxSuppression", "boxes x most overlap least", "z", center_point_box=centred)
    join = _node("Cast", "z", "y", to=TensorProto.FLOAT)
    model = make_model([node, join], {"x": [2, 3, 30]}, ["y"], bounds)
    feed = {"x": np.round(np.abs(noise(2, 3, 30)), 1)}
    found = numerics.run(model, feed, precision="32.32")["y"]
    np.testing.assert_array_equal(found, onnxruntime_outputs(model, feed)["y"])


@pytest.mark.parametrize("case", [_suppression, _classes])
def test_single_numbers_may_be_vectors_of_one(case):
    model, shape = case()
    feed = {"x": noise(*shape)}
    found = numerics.run(model, feed, precision="32.32")["y"]
    np.testing.assert_array_equal(found, onnxruntime_outputs(model, feed)["y"])


def test_operands_that_do_not_fit_are_refused_in_one_sentence():
    """Exporters write such files: of PatchTST, whose positions stand beside the wrong axis."""
    model = make_model(
        [_node("Add", "x positions", "y")], {"x": [2, 3, 4]}, ["y"], {"positions": [3, 4, 4]}
    )
    with pytest.raises(WorkloadError, match=r"'Add 0', cannot .* shapes \(2, 3, 4\), \(3, 4, 4\)"):
        numerics.run(model, {"x": noise(2, 3, 4)})


STEPS, BATCH, FEATURES, HIDDEN = 5, 3, 4, 6
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def _layer(kind, form, direction):
    sides, rows = 1 + (direction == "bidirectional"), GATES[kind] * HIDDEN
    weights = {"w": noise(sides, rows, FEATURES), "r": noise(sides, rows, HIDDEN)}
    given = {"hidden_size": HIDDEN, "direction": direction}
    optional = [""] * (5 if kind == "LSTM" else 3)
    if form != "plain":
        optional = ["b", "ends", "h", "c", "p"][: len(optional)]
        weights |= {
            "b": noise(sides, 2 * rows),
            "ends": np.array([5, 2, 4], np.int32),
            "h": noise(sides, BATCH, HIDDEN),
        }
        given |= {"clip": 0.7} | ({"linear_before_reset": 1} if kind == "GRU" else {})
    if form != "plain" and kind == "LSTM":
        weights |= {"c": noise(sides, BATCH, HIDDEN), "p": noise(sides, 3 * HIDDEN)}
        given |= {"input_forget": 1}
    if form == "functions":
        names = ["HardSigmoid", "Relu", "LeakyRelu"]
        count = {"LSTM": 3, "GRU": 2, "RNN": 1}[kind]
        given |= {"activations": names[:count] * sides, "activation_alpha": [0.3] * 2 * sides}
        given |= {"activation_beta": [0.4] * sides}
    if form == "functions" and kind != "LSTM":
        given["activation_alpha"] = [0.3] * sides
    outputs = ["y", "last", "cell"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(kind, ["x", "w", "r", *optional], outputs, **given)
    model = make_model([node], {"x": [STEPS, BATCH, FEATURES]}, outputs, weights)
    return model, {"x": noise(STEPS, BATCH, FEATURES)}


def _assert_alike(found, expected, feed):
    # each step adds up as many products, on what the step before it gave
    terms = STEPS * (FEATURES + HIDDEN + 4)
    for name, wanted in expected.items():
        assert_within(found[name], wanted, loose_bound(terms, wanted, *feed.values()))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("form", ["plain", "all", "functions"])
@pytest.mark.parametrize("kind", GATES)
def test_recurrent_layers_are_onnxruntimes(kind, form, direction):
    model, feed = _layer(kind, form, direction)
    found = numerics.run(model, feed, precision="32.32")
    _assert_alike(found, onnxruntime_outputs(model, feed), feed)


@pytest.mark.parametrize("kind", GATES)
def test_a_recurrent_weight_that_is_off_by_a_thousandth_is_noticed(kind):
    model, feed = _layer(kind, "plain", "forward")
    found = numerics.run(with_one_moved(model), feed, precision="32.32")
    with pytest.raises(AssertionError, match="apart, more than"):
        _assert_alike(found, onnxruntime_outputs(model, feed), feed)
