"""From an operator graph of the zoo to a program.

An operator graph records shapes and work, not every attribute. Operators are translated where the
rest follows from the shapes or from the one convention that the zoo uses (leaky ReLU with slope
0.01, hard sigmoid with slope 1/6, norms with epsilon 1e-5, dropout off); others are refused.
"""

from ipusim.errors import WorkloadError
from ipusim.numerics.operators.elementwise import ELEMENTWISE
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
    name = _operator(op, graph)
    if name is None or op.phase != "forward":
        kind = f"{op.kind} ({op.function})" if op.function else op.kind
        raise WorkloadError(
            f"Operator {op.name!r} of kind {kind} cannot be executed from an operator graph; pass "
            "an ONNX file with this operator, or a model without it."
        )
    given: dict[str, object] = {"shape": graph.tensors[op.outputs[0]].shape}
    if name == "BiasAdd":
        producer = producers.get(op.inputs[0])
        follows_conv = producer is not None and isinstance(producer.params, Conv)
        given["axis"] = 1 if follows_conv else -1
    if name == "HardSigmoid":
        given["alpha"] = 1 / 6
    ends = {"inputs": op.inputs, "outputs": op.outputs}
    return Node(name=op.name, op=name, params=op.params, attributes=given, **ends)


def _operator(op: Op, graph: Graph) -> str | None:
    """Return what numerics calls an operator of a graph, None if it has no such."""
    read, made = (graph.tensors[name] for name in (op.inputs[0], op.outputs[0]))
    match op.params:
        case Conv():
            return "Conv"
        case MatMul():
            return "Product"
        case Pool(kind=kind):
            return "MaxPool" if kind == "max" else "AveragePool"
        case Softmax(log=False, length=length) if length == made.shape[-1]:
            return "Softmax"
        case Norm(kind="batch", training=False):
            return "BatchNormalization"
        case Cast() if {made.dtype, read.dtype} <= {*FLOAT_DTYPES}:
            return "Copy"
        case Layout(function=function) if function in _VIEWS:
            return "View"
        case Elementwise(function="dropout"):
            return "View"
        case Elementwise(function="bias_add"):
            return "BiasAdd"
        case Elementwise(function=function):
            name = function.title().replace("_", "")
            return name if getattr(ELEMENTWISE.get(name), "operands", 0) == len(op.inputs) else None
    return None
