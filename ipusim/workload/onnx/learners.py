"""Operators of ai.onnx.ml, which scikit-learn and gradient boosting are exported with.

Linear models are products; a tree goes down one level in three lookups, a comparison and a
selection, for all rows and trees at once; support vectors are one product and the kernel function.
Names of classes, and maps from names to scores, are made on the host.
"""

from typing import Any

import numpy as np

from ipusim.workload.onnx.composites import same_as
from ipusim.workload.onnx.recipes import Parts, by_domain

ML = "ai.onnx.ml"
"""Domain of the operators of classical machine learning."""

DEEPEST_TREE = 64
"""Levels of a tree that are followed."""

_LABELS = "labels are positions of classes, whose names stay on the host"
_TRANSFORMS = {"SOFTMAX": "Softmax", "SOFTMAX_ZERO": "Softmax", "LOGISTIC": "Sigmoid"}


def _listed(p: Parts, *names: str) -> list[Any]:
    """Return the first attribute that holds anything, a tensor or a list."""
    for name in names:
        given = p.get(name)
        if given is not None and hasattr(given, "dims"):
            return [0] * int(np.prod(given.dims))
        if given is not None and len(given):
            return list(given)
    return []


def _rows(p: Parts) -> str:
    x = p.input(0)
    if not p.is_float(x):
        x = p("Cast", x, to=1)
    return x if len(p.shape(x)) == 2 else p.reshape(x, -1, (p.shape(x) or (1,))[-1])


def _columns(p: Parts) -> int:
    """Return how many classes or targets a row has a score for."""
    if not p.node.op_type.endswith("Classifier"):
        return int(p.get("targets", p.get("n_targets", 1)))
    names = ("classlabels_ints", "classlabels_strings", "classlabels_int64s")
    return max(2, len(_listed(p, *names)))


def _product(p: Parts, x: str, columns: int) -> str:
    return p("MatMul", x, p.stored(p.shape(x)[-1], columns))


def _scored(p: Parts, scores: str) -> None:
    """Transform scores and, in a classifier, choose the best."""
    place = int(p.node.op_type.endswith("Classifier"))
    kind = _TRANSFORMS.get(str(p.get("post_transform", "NONE")), "Identity")
    along = {"axis": -1} if kind == "Softmax" else {}
    scores = p(kind, scores, out=p.out(place), **along)
    if place and p.out():
        p.note(_LABELS)
        p("ArgMax", scores, axis=1, keepdims=0, out=p.out())


def _linear(p: Parts) -> None:
    y = _product(p, _rows(p), _columns(p))
    if _listed(p, "intercepts"):
        y = p("Add", y, p.stored(_columns(p)))
    _scored(p, y)


def _scaler(p: Parts) -> str:
    x = _rows(p)
    y = p("Sub", x, np.array(p.get("offset"), np.float32)) if _listed(p, "offset") else x
    scale = np.array(p.get("scale"), np.float32) if _listed(p, "scale") else 1.0
    return p("Mul", y, scale)


def _normalizer(p: Parts) -> str:
    x = _rows(p)
    kind = {"L1": "ReduceL1", "L2": "ReduceL2"}.get(str(p.get("norm", "MAX")), "ReduceMax")
    return p("Div", x, p(kind, x, [1]))


def _features(p: Parts) -> str:
    indices = p.reshape(p.input(1), -1)
    rank = len(p.shape(p.input(0)))
    data = p.input(0) if rank > 1 else p.reshape(p.input(0), 1, -1)
    return p("Gather", data, indices, axis=-1)


def _encoded(p: Parts) -> str:
    """LabelEncoder, CategoryMapper and OneHotEncoder: a comparison with every key."""
    x = p.input(0)
    of_keys = ("keys_", "cats_", "classes_")
    keys = _listed(p, *(name for name in p.node.attributes if name.startswith(of_keys)))
    rank = len(p.shape(x))
    wide = p("Unsqueeze", x, [rank])
    if not p.is_float(wide):
        wide = p("Cast", wide, to=1)
    hits = p("Cast", p("Equal", wide, np.arange(max(1, len(keys)), dtype=np.float32)), to=1)
    if p.node.op_type == "OneHotEncoder":
        return hits
    values = [name for name in p.node.attributes if name.startswith("values_")]
    numeric = any("float" in name for name in values)
    table = np.arange(max(1, len(keys))).astype(np.float32 if numeric else np.int64)
    return p("Gather", table, p("ArgMax", hits, axis=-1, keepdims=0), axis=0)


def _depth(p: Parts) -> tuple[int, int, int]:
    """Return the trees, the levels of the deepest, and all nodes of an ensemble."""
    pairs = zip(*(_listed(p, f"nodes_{side}nodeids") for side in ("true", "false")), strict=True)
    if p.get("tree_roots") is not None:
        roots = set(p.get("tree_roots"))
        leaves = zip(*(_listed(p, f"nodes_{side}leafs") for side in ("true", "false")), strict=True)
        children = {
            place: [child for child, leaf in zip(*both, strict=True) if not leaf]
            for place, both in enumerate(zip(pairs, leaves, strict=True))
        }
        trees, deeper = len(roots), 1
    else:
        ids = list(zip(p.get("nodes_treeids"), p.get("nodes_nodeids"), strict=True))
        children = {
            (tree, own): [] if mode == "LEAF" else [(tree, child) for child in pair]
            for (tree, own), mode, pair in zip(ids, p.get("nodes_modes"), pairs, strict=True)
        }
        roots = set(children) - {child for pair in children.values() for child in pair}
        trees, deeper = len({tree for tree, _ in ids}), 0
    levels = 0
    while levels < DEEPEST_TREE and (
        below := {child for key in roots for child in children.get(key, ())}
    ):
        roots, levels = below, levels + 1
    return trees, max(1, levels + deeper), max(1, len(children))


def _trees(p: Parts) -> None:
    x, (trees, levels, nodes) = _rows(p), _depth(p)
    table, limits = np.zeros((nodes, 3), np.int64), np.zeros(nodes, np.float32)
    at: str | np.ndarray = np.zeros((p.shape(x)[0], trees), np.int64)
    for _ in range(levels):
        entry = p("Gather", table, at, axis=0)
        feature, left, right = (
            p("Squeeze", p.slice(entry, 2, place, place + 1), [2]) for place in range(3)
        )
        value = p("GatherElements", x, feature, axis=1)
        goes = p("Less", value, p("Gather", limits, at, axis=0))
        at = p("Where", goes, left, right)
    leaves = p("Gather", p.stored(nodes, _columns(p)), at, axis=0)
    _scored(p, p("ReduceSum", leaves, [1], keepdims=0))


def _vectors(p: Parts) -> None:
    y = x = _rows(p)
    classes = _columns(p)
    pairs = max(1, classes * (classes - 1) // 2)
    count = len(_listed(p, "support_vectors")) // p.shape(x)[-1]
    if count:
        y = _product(p, x, count)
        kernel = str(p.get("kernel_type", "LINEAR"))
        if kernel == "RBF":
            squares = p("ReduceSumSquare", x, [1])
            y = p("Exp", p("Neg", p("Sub", squares, y)))
        elif kernel == "POLY":
            y = p("Pow", y, 3.0)
        elif kernel == "SIGMOID":
            y = p("Tanh", y)
    y = p("Add", _product(p, y, pairs), p.stored(pairs))
    if p.node.op_type.endswith("Classifier"):
        y = _product(p, p("Sigmoid" if _listed(p, "prob_a") else "Sign", y), classes)
    _scored(p, y)


LEARNERS = by_domain(
    {
        ML: {
            "LinearClassifier LinearRegressor": _linear,
            "Scaler": _scaler,
            "Normalizer": _normalizer,
            "Imputer": lambda p: p("Where", p("IsNaN", p.input(0)), 0.0, p.input(0)),
            "Binarizer": lambda p: p(
                "Cast", p("Greater", p.input(0), float(p.get("threshold", 0.0))), to=p.kind()
            ),
            "ArrayFeatureExtractor": _features,
            "LabelEncoder CategoryMapper OneHotEncoder": _encoded,
            "FeatureVectorizer": lambda p: p("Concat", *p.node.input, axis=1),
            "TreeEnsembleClassifier TreeEnsembleRegressor TreeEnsemble": _trees,
            "SVMClassifier SVMRegressor": _vectors,
            "ZipMap": same_as("Identity"),
        }
    }
)
"""Rules of the operators of classical machine learning."""
