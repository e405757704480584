"""What a framework changes: norms made stable; in inference dropout left out, batch norm folded.

``scale * (conv(x) - mean) / sqrt(var + eps) + shift`` is the same convolution with scaled weights
plus one bias per channel, so an inference compiler computes the new weights once, ahead of time.
"""

from collections import Counter
from dataclasses import replace

from ipusim.workload.graph import Conv, Elementwise, Graph, Layout, Norm, Op, Tensor


def drop_dropout(graph: Graph) -> Graph:
    """Leave out every dropout, which hands on its input unchanged outside training.

    Inputs, outputs, parameters and MACs stay; readers of a dropout read what it read. A dropout
    that computes an output of the graph becomes a view, so that the output keeps its name.
    """
    stands_for: dict[str, str] = {}
    ops: list[Op] = []
    for op in graph.ops:
        op = replace(op, inputs=tuple(stands_for.get(name, name) for name in op.inputs))
        if not isinstance(op.params, Elementwise) or op.function != "dropout":
            ops.append(op)
        elif op.outputs[0] in graph.outputs:
            ops.append(replace(op, params=Layout.view("identity")))
        else:
            stands_for[op.outputs[0]] = op.inputs[0]
    tensors = {name: t for name, t in graph.tensors.items() if name not in stands_for}
    return replace(graph, ops=tuple(ops), tensors=tensors).validate()


def stable_norms(graph: Graph) -> Graph:
    """Let every norm subtract the mean before it sums squares."""

    def stable(op: Op) -> Op:
        is_norm = isinstance(op.params, Norm)
        return replace(op, params=replace(op.params, stable=True)) if is_norm else op

    return replace(graph, ops=tuple(map(stable, graph.ops)))


def fold_batch_norm(graph: Graph) -> Graph:
    """Fold every inference batch norm whose only source is a convolution into it.

    A batch norm is folded where the convolution's weights are a parameter that no other operator
    reads, and nothing else reads the convolution's result. What remains is the convolution and one
    "bias_add" in the place of the batch norm, of the bias that the convolution had or of a new
    parameter ``<batch norm>.folded_bias``; scale, shift and statistics are gone.
    """
    readers = Counter(name for op in graph.ops for name in set(op.inputs))
    alone = {name for name, count in readers.items() if count == 1} - set(graph.outputs)
    producers = graph.producers()
    replaced: dict[str, Op | None] = {}
    tensors = dict(graph.tensors)
    for op in graph.ops:
        replaced |= _folded(op, tensors, producers, alone)
    ops = tuple(kept for op in graph.ops if (kept := replaced.get(op.name, op)) is not None)
    used = {name for op in ops for name in (*op.inputs, *op.outputs)}
    used.update(graph.inputs, graph.outputs)
    return replace(
        graph, ops=ops, tensors={name: tensor for name, tensor in tensors.items() if name in used}
    ).validate()


def _folded(
    norm: Op, tensors: dict[str, Tensor], producers: dict[str, Op], alone: set[str]
) -> dict[str, Op | None]:
    """Return what takes the place of a batch norm after a convolution, and of the bias before it.

    What stands `alone` is read by one operator.
    """
    if not isinstance(norm.params, Norm) or norm.params.kind != "batch" or norm.params.training:
        return {}
    if any(tensors[name].role == "activation" for name in norm.inputs[1:]):
        return {}
    read = [norm.inputs[0]]
    conv = producers.get(read[0])
    bias_add = conv if conv is not None and conv.function == "bias_add" else None
    if bias_add is not None:
        read += bias_add.inputs
        conv = producers.get(bias_add.inputs[0])
    if conv is None or not isinstance(conv.params, Conv):
        return {}
    weights = conv.inputs[1]
    if tensors[weights].role != "parameter" or not alone.issuperset((*read, weights)):
        return {}
    if bias_add is None:
        dtype = tensors[weights].dtype
        bias, shape = f"{norm.name}.folded_bias", (conv.params.out_channels,)
        tensors[bias] = Tensor(name=bias, shape=shape, dtype=dtype, role="parameter")
    else:
        bias = bias_add.inputs[1]
    addition = Op(
        name=f"{norm.name}.bias_add",
        params=Elementwise.in_place("bias_add", broadcast=True),
        inputs=(conv.outputs[0], bias),
        outputs=norm.outputs,
    )
    return {norm.name: addition} | ({bias_add.name: None} if bias_add is not None else {})
