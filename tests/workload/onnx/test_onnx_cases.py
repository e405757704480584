"""onnx's own test cases of single operators: how many import, and with the right shapes."""

import warnings
from collections import Counter

import numpy as np
import pytest
from onnx import TensorProto

from ipusim.errors import IpuSimError
from ipusim.workload.onnx import from_onnx

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
FLOAT_SHARE = 0.90
"""Recorded share of the cases with floating-point inputs that import: it must not fall."""

SMALL = 64

BOUNDED = ("compress", "nonmaxsuppression", "nonzero", "unique")
"""Cases whose result has as many elements as data say: here the largest number."""


@pytest.fixture(scope="module")
def cases():
    warnings.simplefilter("ignore")
    from onnx.backend.test.case.node import collect_testcases

    return [case for case in collect_testcases(None) if case.model is not None]


def _given(case):
    """Ways to give small inputs as values: none, integers and truths, all but the first."""
    feeds = case.data_sets[0][0] if case.data_sets else []
    arrays = [
        (item.name, array, item.type.tensor_type.elem_type)
        for item, array in zip(case.model.graph.input, feeds, strict=False)
        if isinstance(array, (np.ndarray, np.generic)) and array.size <= SMALL
    ]
    yield {}
    yield {name: array for name, array, kind in arrays if kind not in FLOATS}
    yield {name: array for name, array, _ in arrays[1:]}


def _graph(case):
    for values in _given(case):
        try:
            return from_onnx(case.model, values=values).graph()
        except IpuSimError:
            continue
    return None


def test_share_of_cases_that_import_with_their_shapes(cases):
    counts: Counter[str] = Counter()
    wrong = []
    for case in cases:
        kinds = [
            item.type.tensor_type.elem_type
            for item in case.model.graph.input
            if item.type.HasField("tensor_type")
        ]
        if not any(kind in FLOATS for kind in kinds):
            continue
        graph = _graph(case)
        counts["cases"] += 1
        counts["imported"] += graph is not None
        if graph is None or any(part in case.name for part in BOUNDED):
            continue
        expected = case.data_sets[0][1] if case.data_sets else []
        for name, array in zip(graph.outputs, expected, strict=False):
            if isinstance(array, np.ndarray) and graph.tensors[name].shape != array.shape:
                wrong.append((case.name, graph.tensors[name].shape, array.shape))
    assert counts["cases"] > 1200
    assert counts["imported"] >= FLOAT_SHARE * counts["cases"], counts
    assert not wrong
