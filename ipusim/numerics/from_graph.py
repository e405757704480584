"""From an operator graph of the zoo to a program.

An operator graph records shapes and work, not every attribute. Operators are translated where the
rest follows from the shapes or from the one convention that the zoo uses (leaky ReLU with slope
0.01, hard sigmoid with slope 1/6, norms with epsilon 1e-5, dropout off); others are refused.
"""

from collections.abc import Iterator

from ipusim.errors import WorkloadError
from ipusim.numerics.operators.elementwise import ELEMENTWISE
from ipusim.numerics.program import Node, Program
from ipusim.workload import graph

_VIEWS = ("reshape", "flatten", "squeeze", "unsqueeze", "identity")


def program_of(forward: graph.Graph) -> Program:
    """Translate a forward graph; `WorkloadError` names an operator that has no translation."""
    producers = forward.producers()
    stored = [*forward.with_role("parameter"), *forward.with_role("constant")]
    return Program(
        name=forward.name,
        nodes=tuple(node for op in forward.ops for node in _nodes(op, forward, producers)),
        inputs=forward.inputs,
        outputs=forward.outputs,
        input_shapes={name: forward.tensors[name].shape for name in forward.inputs},
        floating=frozenset(
            name for name in forward.inputs if forward.tensors[name].dtype in graph.FLOAT_DTYPES
        ),
        parameters={tensor.name: tensor.shape for tensor in stored},
        values={},
        may_draw=True,
    )


def _nodes(op: graph.Op, forward: graph.Graph, producers: dict[str, graph.Op]) -> Iterator[Node]:
    """Yield an operator as numerics calls it; a bias is first viewed along its axis, then added."""
    name, inputs, shape = _operator(op, forward), op.inputs, forward.tensors[op.outputs[0]].shape
    if name is None or op.phase != "forward":
        kind = f"{op.kind} ({op.function})" if op.function else op.kind
        raise WorkloadError(
            f"Operator {op.name!r} of kind {kind} cannot be executed from an operator graph; pass "
            "an ONNX file with this operator, or a model without it."
        )
    if op.function == "bias_add":
        producer = producers.get(inputs[0])
        axis = 1 if producer and isinstance(producer.params, graph.Conv) else len(shape) - 1
        wide = tuple(size if place == axis else 1 for place, size in enumerate(shape))
        x, bias = inputs
        inputs = (x, f"{bias} along axis {axis} of {x}")
        viewed = {"outputs": inputs[1:], "attributes": {"shape": wide}}
        yield Node(name=inputs[1], op="View", inputs=(bias,), **viewed)
    given = {"shape": shape} | ({"alpha": 1 / 6} if name == "HardSigmoid" else {})
    ends = {"inputs": inputs, "outputs": op.outputs}
    yield Node(name=op.name, op=name, params=op.params, attributes=given, **ends)


def _operator(op: graph.Op, forward: graph.Graph) -> str | None:
    """Return what numerics calls an operator of a graph, None if it has no such."""
    read, made = (forward.tensors[name] for name in (op.inputs[0], op.outputs[0]))
    match op.params:
        case graph.Conv():
            return "Conv"
        case graph.MatMul():
            return "Product"
        case graph.Pool(kind=kind):
            return "MaxPool" if kind == "max" else "AveragePool"
        case graph.Softmax(log=False, length=length) if length == made.shape[-1]:
            return "Softmax"
        case graph.Norm(kind="batch", training=False):
            return "BatchNormalization"
        case graph.Cast() if {made.dtype, read.dtype} <= {*graph.FLOAT_DTYPES}:
            return "Copy"
        case graph.Layout(function=function) if function in _VIEWS:
            return "View"
        case graph.Elementwise(function="dropout"):
            return "View"
        case graph.Elementwise(function="bias_add"):
            return "Add"
        case graph.Elementwise(function=function):
            name = function.title().replace("_", "")
            return name if getattr(ELEMENTWISE.get(name), "operands", 0) == len(op.inputs) else None
    return None
