"""From an operator graph of the zoo to a program.

An operator graph records shapes and work, not every attribute. Operators are translated where the
rest follows from the shapes or from the one convention that the zoo uses (leaky ReLU with slope
0.01, hard sigmoid with slope 1/6, norms with epsilon 1e-5, dropout off); others are refused.
"""

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

_ONE_OPERAND = ("relu", "leaky_relu", "sigmoid", "swish", "hard_swish", "tanh", "exp", "sqrt")
_OPERANDS = dict.fromkeys(_ONE_OPERAND, 1) | dict.fromkeys(("add", "sub", "mul", "div"), 2)
_VIEWS = ("reshape", "flatten", "squeeze", "unsqueeze", "identity")


def program_of(graph: Graph) -> Program:
    """Translate a forward graph; `WorkloadError` names an operator that has no translation."""
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
    name, given = translated
    return Node(name=op.name, op=name, inputs=op.inputs, outputs=op.outputs, attributes=given)


def _translate(
    op: Op, graph: Graph, producers: dict[str, Op]
) -> tuple[str, dict[str, object]] | None:
    attributes = op.params
    output = graph.tensors[op.outputs[0]].shape
    if isinstance(attributes, Conv):
        return _conv(attributes)
    if isinstance(attributes, MatMul):
        return "Product", {
            "groups": attributes.groups,
            "m": attributes.m,
            "k": attributes.k,
            "n": attributes.n,
            "flip_a": attributes.transpose_a,
            "flip_b": attributes.transpose_b,
            "shape": output,
        }
    if isinstance(attributes, Elementwise):
        if attributes.function == "dropout":
            return "Reshape", {"shape": output}
        return _elementwise(op, attributes, producers)
    if isinstance(attributes, Softmax) and not attributes.log and attributes.length == output[-1]:
        return "Softmax", {"axis": -1}
    if isinstance(attributes, Norm) and attributes.kind == "batch" and not attributes.training:
        return "BatchNormalization", {"epsilon": 1e-5}
    if isinstance(attributes, Pool):
        return "MaxPool" if attributes.kind == "max" else "AveragePool", {
            "kernel_shape": attributes.kernel,
            "strides": attributes.stride,
            "pads": (*attributes.padding_lower, *attributes.padding_upper),
            "dilations": attributes.dilation or (1,) * len(attributes.field),
            "count_include_pad": int(attributes.include_padding),
        }
    if isinstance(attributes, Layout) and attributes.function in _VIEWS:
        return "Reshape", {"shape": output}
    if isinstance(attributes, Cast) and attributes.to in FLOAT_DTYPES:
        return ("Cast", {}) if graph.tensors[op.inputs[0]].dtype in FLOAT_DTYPES else None
    return None


def _conv(conv: Conv) -> tuple[str, dict[str, object]]:
    common = {"dilations": conv.dilation, "group": conv.groups}
    if not conv.is_transposed:
        pads = (*conv.padding_lower, *conv.padding_upper)
        return "Conv", {"strides": conv.stride, "pads": pads, **common}
    reach = [step * (taps - 1) for step, taps in zip(conv.dilation, conv.kernel, strict=True)]
    lower, upper = (
        tuple(span - pad for span, pad in zip(reach, padding, strict=True))
        for padding in (conv.padding_lower, conv.padding_upper)
    )
    return "ConvTranspose", {"strides": conv.input_dilation, "pads": (*lower, *upper), **common}


def _elementwise(
    op: Op, attributes: Elementwise, producers: dict[str, Op]
) -> tuple[str, dict[str, object]] | None:
    if attributes.function == "bias_add":
        producer = producers.get(op.inputs[0])
        follows_conv = producer is not None and isinstance(producer.params, Conv)
        return "BiasAdd", {"axis": 1 if follows_conv else -1}
    if attributes.function == "hard_sigmoid":
        return "HardSigmoid", {"alpha": 1 / 6}
    if _OPERANDS.get(attributes.function) != len(op.inputs):
        return None
    return attributes.function.title().replace("_", ""), {}
