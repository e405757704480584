"""From an operator graph of the zoo to a program.

An operator graph records shapes and work, not every attribute. Operators are translated where the
rest follows from the shapes or from the one convention that the zoo uses (leaky ReLU with slope
0.01, hard sigmoid with slope 1/6, norms with epsilon 1e-5, dropout off); others are refused.
"""

from __future__ import annotations

from ipusim.errors import WorkloadError
from ipusim.numerics.program import Node, Program
from ipusim.workload.graph import (
    FLOAT_DTYPES,
    Cast,
    Conv,
    Elementwise,
    Graph,
    Layout,
    MatMul,
    Norm,
    Op,
    Pool,
    Softmax,
)

_FUNCTIONS = {
    "relu": "Relu",
    "leaky_relu": "LeakyRelu",
    "sigmoid": "Sigmoid",
    "swish": "Swish",
    "hard_swish": "HardSwish",
    "tanh": "Tanh",
    "exp": "Exp",
    "sqrt": "Sqrt",
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
}
_OPERANDS = {"Add": 2, "Sub": 2, "Mul": 2, "Div": 2}
_VIEWS = ("reshape", "flatten", "squeeze", "unsqueeze", "identity")


def program_of(graph: Graph) -> Program:
    """Translate a forward graph.

    Raises
    ------
    WorkloadError
        If an operator is not supported or leaves an attribute open; the message names it.
    """
    producers = graph.producers()
    stored = [*graph.with_role("parameter"), *graph.with_role("constant")]
    return Program(
        name=graph.name,
        nodes=tuple(_node(op, graph, producers) for op in graph.ops),
        inputs=graph.inputs,
        outputs=graph.outputs,
        input_shapes={name: graph.tensors[name].shape for name in graph.inputs},
        floating=frozenset(
            name for name in graph.inputs if graph.tensors[name].dtype in FLOAT_DTYPES
        ),
        parameters={tensor.name: tensor.shape for tensor in stored},
        values={},
        may_draw=True,
    )


def _node(op: Op, graph: Graph, producers: dict[str, Op]) -> Node:
    translated = _translate(op, graph, producers)
    if translated is None or op.phase != "forward":
        kind = f"{op.kind} ({op.function})" if op.function else op.kind
        raise WorkloadError(
            f"Operator {op.name!r} of kind {kind} cannot be executed from an operator graph; pass "
            "an ONNX file with this operator, or a model without it."
        )
    name, attributes = translated
    return Node(name=op.name, op=name, inputs=op.inputs, outputs=op.outputs, attributes=attributes)


def _translate(
    op: Op, graph: Graph, producers: dict[str, Op]
) -> tuple[str, dict[str, object]] | None:
    payload = op.params
    output = graph.tensors[op.outputs[0]].shape
    if isinstance(payload, Conv):
        return _conv(payload)
    if isinstance(payload, MatMul):
        return "Product", {
            "groups": payload.groups,
            "m": payload.m,
            "k": payload.k,
            "n": payload.n,
            "flip_a": payload.transpose_a,
            "flip_b": payload.transpose_b,
            "shape": output,
        }
    if isinstance(payload, Elementwise):
        if payload.function == "dropout":
            return "Reshape", {"shape": output}
        return _elementwise(op, payload, producers)
    if isinstance(payload, Softmax) and not payload.log and payload.length == output[-1]:
        return "Softmax", {"axis": -1}
    if isinstance(payload, Norm) and payload.kind == "batch" and not payload.training:
        return "BatchNormalization", {"epsilon": 1e-5}
    if isinstance(payload, Pool):
        return "MaxPool" if payload.kind == "max" else "AveragePool", {
            "kernel_shape": payload.kernel,
            "strides": payload.stride,
            "pads": (*payload.padding_lower, *payload.padding_upper),
            "dilations": payload.dilation or (1,) * len(payload.field),
            "count_include_pad": int(payload.include_padding),
        }
    if isinstance(payload, Layout) and payload.function in _VIEWS:
        return "Reshape", {"shape": output}
    if isinstance(payload, Cast) and payload.to in FLOAT_DTYPES:
        return ("Cast", {}) if graph.tensors[op.inputs[0]].dtype in FLOAT_DTYPES else None
    return None


def _conv(payload: Conv) -> tuple[str, dict[str, object]]:
    common = {"dilations": payload.dilation, "group": payload.groups}
    if not payload.is_transposed:
        pads = (*payload.padding_lower, *payload.padding_upper)
        return "Conv", {"strides": payload.stride, "pads": pads, **common}
    reach = [step * (taps - 1) for step, taps in zip(payload.dilation, payload.kernel, strict=True)]
    lower, upper = (
        tuple(span - pad for span, pad in zip(reach, padding, strict=True))
        for padding in (payload.padding_lower, payload.padding_upper)
    )
    return "ConvTranspose", {"strides": payload.input_dilation, "pads": (*lower, *upper), **common}


def _elementwise(
    op: Op, payload: Elementwise, producers: dict[str, Op]
) -> tuple[str, dict[str, object]] | None:
    if payload.function == "bias_add":
        producer = producers.get(op.inputs[0])
        follows_conv = producer is not None and isinstance(producer.params, Conv)
        return "BiasAdd", {"axis": 1 if follows_conv else -1}
    if payload.function == "hard_sigmoid":
        return "HardSigmoid", {"alpha": 1 / 6}
    name = _FUNCTIONS.get(payload.function)
    if name is None or len(op.inputs) != _OPERANDS.get(name, 1):
        return None
    return name, {}
