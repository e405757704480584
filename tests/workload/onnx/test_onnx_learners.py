"""Operators of ai.onnx.ml, as scikit-learn and gradient boosting are exported."""

import numpy as np
import pytest
from onnx import helper
from onnx_single_op import make_model

from ipusim.workload.onnx import from_onnx
from ipusim.workload.onnx.learners import DEEPEST_TREE, ML

CLASSES = {"classlabels_ints": [0, 1, 2]}


def _model(kind, outputs, *, x=("n", 4), **given):
    node = helper.make_node(kind, ["x"], outputs, domain=ML, **given)
    model = make_model([node], {"x": x}, outputs)
    model.opset_import.append(helper.make_opsetid(ML, 3))
    return from_onnx(model).graph(2)


def _tree(children):
    """Attributes of one tree from a map of nodes to their two children."""
    nodes = sorted({*children, *(c for pair in children.values() for c in pair)})
    return {
        "nodes_treeids": [0] * len(nodes),
        "nodes_nodeids": nodes,
        "nodes_modes": ["BRANCH_LEQ" if n in children else "LEAF" for n in nodes],
        "nodes_featureids": [0] * len(nodes),
        "nodes_values": [0.5] * len(nodes),
        "nodes_truenodeids": [children.get(n, (0, 0))[0] for n in nodes],
        "nodes_falsenodeids": [children.get(n, (0, 0))[1] for n in nodes],
    }


def test_a_linear_classifier_is_a_product_that_chooses_the_best():
    graph = _model(
        "LinearClassifier",
        ["label", "scores"],
        coefficients=[0.1] * 12,
        intercepts=[0.0] * 3,
        post_transform="SOFTMAX",
        **CLASSES,
    )
    assert (graph.macs, graph.parameters) == (2 * 4 * 3, 15)
    assert [op.kind for op in graph.ops] == ["matmul", "elementwise", "softmax", "reduce"]
    shapes = [graph.tensors[name].shape for name in graph.outputs]
    assert shapes == [(2,), (2, 3)]


@pytest.mark.parametrize(
    ("children", "levels"),
    [
        ({0: (1, 2)}, 1),
        ({0: (1, 2), 1: (3, 4), 4: (5, 6)}, 3),
        ({0: (1, 2), 1: (1, 2)}, DEEPEST_TREE),
    ],
)
def test_a_tree_goes_down_one_level_at_a_time(children, levels):
    graph = _model("TreeEnsembleRegressor", ["y"], n_targets=3, **_tree(children))
    assert [op.function for op in graph.ops].count("less") == levels
    assert graph.tensors[graph.outputs[0]].shape == (2, 3)


@pytest.mark.parametrize(("kernel", "function"), [("RBF", "exp"), ("POLY", "pow"), ("LINEAR", "")])
def test_support_vectors_are_one_product_and_a_kernel(kernel, function):
    graph = _model(
        "SVMClassifier",
        ["label", "scores"],
        kernel_type=kernel,
        support_vectors=[0.1] * 4 * 10,
        **CLASSES,
    )
    products = [op.params for op in graph.ops if op.kind == "matmul"]
    assert [(p.k, p.n) for p in products] == [(4, 10), (10, 3), (3, 3)]
    assert not function or function in [op.function for op in graph.ops]


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("Scaler", {"offset": [0.0] * 4, "scale": [1.0] * 4}),
        ("Normalizer", {"norm": "L2"}),
        ("Imputer", {"imputed_value_floats": [0.0]}),
        ("Binarizer", {"threshold": 0.5}),
        ("LabelEncoder", {"keys_floats": [0.0, 1.0], "values_floats": [1.0, 0.0]}),
        ("LinearRegressor", {"coefficients": [1.0] * 16, "targets": 4}),
    ],
)
def test_preparation_of_data_keeps_its_shape(kind, given):
    graph = _model(kind, ["y"], **given)
    assert graph.tensors[graph.outputs[0]].shape == (2, 4)


def test_columns_by_index_and_texts_of_classes():
    nodes = [
        helper.make_node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
        helper.make_node("ArrayFeatureExtractor", ["names", "best"], ["label"], domain=ML),
    ]
    names = np.array(["cat", "dog", "owl", "ox"], object)
    model = make_model(nodes, {"x": ["n", 4]}, ["label"], {"names": names})
    model.opset_import.append(helper.make_opsetid(ML, 3))
    graph = from_onnx(model).graph(2)
    assert graph.tensors[graph.outputs[0]].shape == (1, 2)
    assert "texts" in from_onnx(model).note


@pytest.mark.parametrize("kind", ["SwiGLU", "Shrink", "MeanVarianceNormalization"])
def test_what_onnx_defines_by_simpler_operators_runs_as_those(kind):
    inputs, opset = (["x", "g"], 28) if kind == "SwiGLU" else (["x"], 18)
    node = helper.make_node(kind, inputs, ["y"])
    shapes = {key: ["n", 3, 4, 4] for key in inputs}
    graph = from_onnx(make_model([node], shapes, ["y"], opset=opset)).graph(2)
    assert len(graph.ops) > 1
    assert graph.tensors["y"].shape == (2, 3, 4, 4)
