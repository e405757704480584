"""What inference leaves out: dropout, and batch norm, folded into the convolution before it.

``scale * (conv(x) - mean) / sqrt(var + eps) + shift`` is the same convolution with scaled weights
plus one bias per channel, so an inference compiler computes the new weights once, ahead of time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ipusim.workload.graph import Conv, Elementwise, Graph, Layout, Norm, Op, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    """A convolution, its own bias addition if any, and the batch norm that only follows it."""

    conv: Op
    bias_add: Op | None
    norm: Op


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
            view = Layout(function="identity", elements=op.params.elements, moves_data=False)
            ops.append(replace(op, params=view))
        else:
            stands_for[op.outputs[0]] = op.inputs[0]
    tensors = {name: t for name, t in graph.tensors.items() if name not in stands_for}
    return replace(graph, ops=tuple(ops), tensors=tensors).validate()


def fold_batch_norm(graph: Graph) -> Graph:
    """Fold every inference batch norm whose only source is a convolution into it.

    A batch norm is folded where the convolution's weights are a parameter that no other operator
    reads, and nothing else reads the convolution's result. What remains is the convolution and
    one "bias_add" in the place of the batch norm, writing the batch norm's output. A bias that
    the convolution already had is merged: its parameter is kept and the first addition goes.

    Inputs, outputs and MACs stay. Each folded batch norm without an earlier bias leaves one
    parameter ``<batch norm>.folded_bias`` of one element per output channel; scale, shift and
    statistics are gone.
    """
    consumers = graph.consumers()
    producers = graph.producers()
    replaced: dict[str, Op | None] = {}
    tensors = dict(graph.tensors)
    for op in graph.ops:
        match = _match(op, graph, producers, consumers)
        if match is None:
            continue
        replaced.update(_fold(match, tensors))
    ops = tuple(kept for op in graph.ops if (kept := replaced.get(op.name, op)) is not None)
    used = {name for op in ops for name in (*op.inputs, *op.outputs)}
    used.update(graph.inputs, graph.outputs)
    return replace(
        graph,
        ops=ops,
        tensors={name: tensor for name, tensor in tensors.items() if name in used},
    ).validate()


def _match(
    op: Op, graph: Graph, producers: dict[str, Op], consumers: dict[str, tuple[Op, ...]]
) -> _Match | None:
    if not isinstance(op.params, Norm) or op.params.kind != "batch" or op.params.training:
        return None
    if any(graph.tensors[name].role == "activation" for name in op.inputs[1:]):
        return None
    before = _sole_source(op, graph, producers, consumers)
    bias_add = None
    if before is not None and before.function == "bias_add":
        if len(consumers[before.inputs[1]]) != 1:
            return None
        bias_add, before = before, _sole_source(before, graph, producers, consumers)
    if before is None or not isinstance(before.params, Conv):
        return None
    weights = before.inputs[1]
    if graph.tensors[weights].role != "parameter" or len(consumers[weights]) != 1:
        return None
    return _Match(conv=before, bias_add=bias_add, norm=op)


def _sole_source(
    op: Op, graph: Graph, producers: dict[str, Op], consumers: dict[str, tuple[Op, ...]]
) -> Op | None:
    """Return the operator that computes the first input, if nothing else reads that."""
    name = op.inputs[0]
    if name in graph.outputs or len(consumers[name]) != 1:
        return None
    return producers.get(name)


def _fold(match: _Match, tensors: dict[str, Tensor]) -> dict[str, Op | None]:
    weights = tensors[match.conv.inputs[1]]
    channels = match.conv.params.out_channels
    output = tensors[match.norm.outputs[0]]
    if match.bias_add is None:
        bias = f"{match.norm.name}.folded_bias"
        tensors[bias] = Tensor(name=bias, shape=(channels,), dtype=weights.dtype, role="parameter")
    else:
        bias = match.bias_add.inputs[1]
    addition = Op(
        name=f"{match.norm.name}.bias_add",
        params=Elementwise.in_place("bias_add", output.elements, broadcast=True),
        inputs=(match.conv.outputs[0], bias),
        outputs=match.norm.outputs,
    )
    result: dict[str, Op | None] = {match.norm.name: addition}
    if match.bias_add is not None:
        result[match.bias_add.name] = None
    return result
