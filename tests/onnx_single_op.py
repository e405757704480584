"""Small generated ONNX files for the import tests."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 9  # onnx writes newer files by default than onnxruntime reads


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    weights: Mapping[str, Sequence[int] | np.ndarray] | None = None,
    *,
    opset: int = OPSET,
    input_type: int = TensorProto.FLOAT,
    name: str = "generated",
) -> onnx.ModelProto:
    """Return a model; weights are arrays, or shapes to be filled with 0.01."""
    initializers = []
    for key, value in (weights or {}).items():
        array = value
        if not isinstance(value, np.ndarray):
            array = np.full(tuple(value), 0.01, dtype=np.float32)
        initializers.append(numpy_helper.from_array(array, key))
    graph = helper.make_graph(
        list(nodes),
        name,
        [
            helper.make_tensor_value_info(key, input_type, list(shape))
            for key, shape in inputs.items()
        ],
        [helper.make_tensor_value_info(key, TensorProto.FLOAT, None) for key in outputs],
        initializers,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION
    )


def single(
    op_type: str,
    inputs: Mapping[str, Sequence[int | str]],
    weights: Mapping[str, Sequence[int] | np.ndarray] | None = None,
    order: Sequence[str] | None = None,
    **attributes: object,
) -> onnx.ModelProto:
    """Return a model of one node named "node" with output "y"."""
    names = list(order or (*inputs, *(weights or {})))
    node = helper.make_node(op_type, names, ["y"], name="node", **attributes)
    return make_model([node], inputs, ["y"], weights)


def runtime_shapes(model: onnx.ModelProto) -> list[tuple[int, ...]]:
    """Return the shapes that onnxruntime really produces."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {item.name: np.ones(item.shape, np.float32) for item in session.get_inputs()}
    return [np.asarray(result).shape for result in session.run(None, feed)]
