"""From a forward graph to the two graphs of a training step.

One runs per micro-batch: forward, loss, backward, and the addition of the gradients to
accumulators. The other runs once per step and updates the weights. Between checkpoints, forward
operators are computed a second time in the backward pass instead of keeping their results.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import isqrt
from typing import Any

from ipusim.errors import ConfigError, WorkloadError, check_name
from ipusim.workload.graph import Cast, Conv, Elementwise, Graph, MatMul, Norm, Recurrent, Softmax
from ipusim.workload.operators.base import DTYPE_BYTES, Op, Tensor, changed
from ipusim.workload.operators.gradient import Backward, Tape, gradient as differentiate
from ipusim.workload.operators.loss import CLASS_LOSSES, LOSSES, Loss
from ipusim.workload.optimizers import WHOLE, Sharding, update_graph

RECOMPUTE_MODES = ("none", "auto")
"""Keep everything; or choose checkpoints so that segments and checkpoints take like memory."""

ACCUMULATOR_SUFFIX = ".accumulator"
"""After the name of a parameter: the sum of its gradients."""

AGAIN = ".again"
"""After the name of an operation or tensor: the same, computed again in the backward pass."""

_PLANNED = Conv | MatMul | Recurrent


@dataclass(frozen=True, slots=True, kw_only=True)
class Graphs:
    """What a replica runs in one step; inference is a micro-batch alone.

    In training `micro_batch` is forward, recomputation, backward and accumulation of one; ``kept``
    names the gradients where nothing is accumulated. `update` is the optimiser, which reads
    gradients (role "state") and writes parameters and its own state. `gradient_bytes` are what
    replicas add up of each parameter, so without streamed rows.
    """

    micro_batch: Graph
    update: Graph | None = None
    gradient_bytes: Mapping[str, int] = field(default_factory=dict)


def training_graphs(
    graph: Graph,
    *,
    loss: str,
    optimizer: str = "sgd_momentum",
    accumulate: str = "",
    accumulator_dtype: str | None = None,
    seeds_dropouts: bool = False,
    cross_entropy: str = "fused",
    recompute: str | Sequence[str] = "none",
    batch_norm_span: int = 1,
    sharding: Sharding = WHOLE,
) -> Graphs:
    """Derive what a training step runs from a forward graph of one micro-batch.

    The loss, one of `LOSSES`, is applied to every output that a parameter influences (so not to
    labels and positions, which have no gradient); each gets an input of targets, unless it is the
    loss itself ("identity"). With several micro-batches per update `accumulate` names the function
    that takes a gradient into its float16 accumulator; float32 ones are sums. Accumulators have the
    type of the weight unless `accumulator_dtype` names another. Each dropout draws from a seed made
    for it (`seeds_dropouts`), or all from that of the step. `cross_entropy` is one of
    `CROSS_ENTROPIES`. `recompute` says what to keep for the backward pass: everything ("none");
    what separates about as many segments as each has convolutions and products ("auto"); or the
    tensors that cross the places after the named forward operators. Replicas share the statistics
    of a batch norm (`batch_norm_span`) or a weight update (`sharding`).
    """
    if not graph.parameters:
        raise WorkloadError(
            f"Model {graph.name!r} has no parameters, so nothing can be trained: use the mode "
            "'inference'."
        )
    training = _training_mode(
        _with_weight_casts(graph), batch_norm_span, seeds_dropouts=seeds_dropouts
    )
    forward = _with_loss(training, loss, cross_entropy)
    micro_batch, gradients = _differentiate(forward, _segments(forward, recompute))
    dtype = accumulator_dtype if accumulate else None
    if accumulate:
        micro_batch = _accumulating(micro_batch, gradients, accumulate, dtype)
    else:
        micro_batch = replace(micro_batch, kept=tuple(dict.fromkeys(gradients.values())))
    weights = tuple(graph.tensors[name] for name in gradients)
    sums = {name: micro_batch.tensors[gradient] for name, gradient in gradients.items()}
    return Graphs(
        micro_batch=micro_batch.validate(),
        update=update_graph(graph.name, weights, optimizer, sharding, dtype),
        gradient_bytes={
            name: tensor.elements * DTYPE_BYTES[dtype or tensor.dtype]
            for name, tensor in sums.items()
            if name not in graph.streamed
        },
    )


def _with_weight_casts(graph: Graph) -> Graph:
    """Convert weights to the type of the activations where the master copy is wider."""
    tensors, ops = dict(graph.tensors), []
    for op in graph.ops:
        dtype = tensors[op.outputs[0]].dtype
        inputs = list(op.inputs)
        for index, name in enumerate(op.inputs):
            tensor = tensors[name]
            planned = isinstance(op.params, _PLANNED) and tensor.role == "parameter"
            if not planned or tensor.dtype == dtype:
                continue
            cast = f"{op.name}.weight_cast" + (str(index) if index > 1 else "")
            inputs[index] = f"{cast}.out"
            tensors[inputs[index]] = Tensor(name=inputs[index], shape=tensor.shape, dtype=dtype)
            ops.append(Op(name=cast, params=Cast(), inputs=(name,), outputs=(inputs[index],)))
        ops.append(_reading(op, tuple(inputs)))
    return replace(graph, tensors=tensors, ops=tuple(ops))


def _reading(op: Op, inputs: tuple[str, ...]) -> Op:
    """Return an operator with these inputs: itself if it has them."""
    return op if op.inputs == inputs else changed(op, inputs=inputs)


def _training_mode(graph: Graph, batch_norm_span: int, *, seeds_dropouts: bool) -> Graph:
    """Let norms and recurrent layers hand on what gradients need; batch norms move statistics."""
    tensors, ops = dict(graph.tensors), []
    readers = Counter(name for op in graph.ops for name in op.inputs)
    for op in graph.ops:
        params, running = op.params, ()
        match params:
            case Elementwise(function="dropout") if seeds_dropouts:
                op = replace(op, params=replace(params, function="seeded_dropout"))
            case Recurrent():
                shape = (params.steps, params.saved, params.batch, params.hidden)
                dtype = tensors[op.outputs[0]].dtype
                kept = Tensor(name=f"{op.name}.kept", shape=shape, dtype=dtype)
                op = _handing_on(op, kept, tensors, params=replace(params, training=True))
            case Norm():
                if params.kind == "batch":
                    params = replace(params, training=True, replica_span=batch_norm_span)
                kept = Tensor(name=f"{op.name}.statistics", shape=(2, params.statistics))
                running = op.inputs[3:]
                op = _handing_on(op, kept, tensors, params=params, inputs=op.inputs[:3])
        ops.append(op)
        for place, constant in enumerate(running):
            # Exporters store equal constants once: what others read too is not what moves.
            name = constant if readers[constant] == 1 else f"{op.name}.statistic{place}"
            tensors[name] = changed(tensors[constant], name=name, role="state")
            # What moves a statistic is as small as the scale.
            pair, moved = (name, op.inputs[1]), f"{name}.moved"
            ops.append(_add_into(tensors, pair, moved, "scaled_add", source=op.name))
    return replace(graph, tensors=tensors, ops=tuple(ops))


def _handing_on(op: Op, kept: Tensor, tensors: dict[str, Tensor], **changes: Any) -> Op:
    tensors[kept.name] = kept
    return changed(op, outputs=(*op.outputs, kept.name), **changes)


def _add_into(
    tensors: dict[str, Tensor], inputs: tuple[str, str], output: str, function: str, **more: str
) -> Op:
    """Return the addition of a tensor to a stored one, in whose memory the sum stays."""
    stored, params = inputs[0], Elementwise.in_place(function)
    tensors[output] = changed(tensors[stored], name=output, role="activation", alias_of=stored)
    return Op(name=output, params=params, inputs=inputs, outputs=(output,), **more)


def _with_loss(graph: Graph, loss: str, cross_entropy: str) -> Graph:
    """Append the loss of every output, with an input for its targets."""
    if loss not in LOSSES:
        named = f"the loss {loss!r} does not exist" if loss else "it names no loss"
        raise ConfigError(
            f"Model {graph.name!r} cannot be trained because {named}: give one of "
            f"{', '.join(LOSSES)}, such as '--loss mean_squared', in Python loss='mean_squared'."
        )
    tensors, ops, inputs, outputs = dict(graph.tensors), list(graph.ops), list(graph.inputs), []
    producers = graph.producers()
    trained = tensors_with_gradient(graph)
    if trained.isdisjoint(graph.outputs):
        raise WorkloadError(
            f"Model {graph.name!r} has no output with a gradient, so nothing can be trained: "
            "export it with what comes before labels and positions, or use the mode 'inference'."
        )
    for name in graph.outputs:
        if name not in trained:
            outputs.append(name)  # nothing to train, but something that the host asked for
            continue
        last = producers.get(name)
        if loss in CLASS_LOSSES and last is not None and isinstance(last.params, Softmax):
            # The loss takes the softmax itself.
            ops.remove(last)
            del tensors[name]
            name = last.inputs[0]
        prediction = tensors[name]
        if prediction.role == "output":
            prediction = tensors[name] = replace(prediction, role="activation")
        classes = prediction.shape[-1] if prediction.shape else 1
        rows = prediction.elements // classes
        targets = () if loss == "identity" else (f"{name}.target",)
        for target in targets:  # values of the same shape, or numbers of classes
            tensors[target] = replace(prediction, name=target, role="input")
            if loss in CLASS_LOSSES:
                numbers = {"shape": prediction.shape[:-1], "dtype": "int32", "alias_of": None}
                tensors[target] = replace(tensors[target], **numbers)
        result, gradient = f"{name}.loss", f"{name}.loss_gradient"
        tensors[result] = Tensor(name=result, shape=(rows,), dtype="float32", role="output")
        tensors[gradient] = Tensor(name=gradient, shape=prediction.shape, dtype=prediction.dtype)
        form = cross_entropy if loss in CLASS_LOSSES else "fused"
        params = Loss(kind=loss, rows=rows, classes=classes, cross_entropy=form)
        made = result, gradient
        ops.append(Op(name=result, params=params, inputs=(name, *targets), outputs=made))
        inputs.extend(targets)
        outputs.append(result)
    return replace(
        graph, tensors=tensors, ops=tuple(ops), inputs=tuple(inputs), outputs=tuple(outputs)
    )


def _segments(graph: Graph, recompute: str | Sequence[str]) -> list[list[Op]]:
    """Cut the forward operators at the checkpoints."""
    if isinstance(recompute, str):
        if recompute not in RECOMPUTE_MODES:
            raise ConfigError(
                f"The option recompute is {recompute!r}: use {', '.join(RECOMPUTE_MODES)} or the "
                "names of operators after which to keep results."
            )
        checkpoints = _automatic_checkpoints(graph) if recompute == "auto" else ()
    else:
        checkpoints = tuple(recompute)
    names = [op.name for op in graph.ops]
    for name in checkpoints:
        check_name("operator", name, names)
    cuts = sorted(names.index(name) + 1 for name in checkpoints)
    bounds = [0, *cuts, len(names)]
    parts = [list(graph.ops[low:high]) for low, high in pairwise(bounds)]
    return [part for part in parts if part]


def _automatic_checkpoints(graph: Graph) -> tuple[str, ...]:
    """Choose about as many segments as each has planned operators, at narrow places."""
    planned = [i for i, op in enumerate(graph.ops) if isinstance(op.params, _PLANNED)]
    # The classic rule of Chen et al. 2016, arXiv:1604.06174: with n layers, sqrt(n) segments.
    count = isqrt(len(planned))
    crossing = _crossing_bytes(graph)
    chosen = []
    for part in range(1, count):
        low = planned[len(planned) * part // count]
        high = planned[min(len(planned) * (part + 1) // count, len(planned) - 1)]
        best = min(range(low, max(low + 1, high)), key=lambda index: crossing[index])
        chosen.append(graph.ops[best].name)
    return tuple(dict.fromkeys(chosen))


def _crossing_bytes(graph: Graph) -> list[int]:
    """Bytes of activations that are live after each operator."""
    last = {name: index for index, op in enumerate(graph.ops) for name in op.inputs}
    change = [0] * len(graph.ops)
    for index, op in enumerate(graph.ops):
        for tensor in map(graph.tensors.__getitem__, op.outputs):
            if tensor.role == "activation" and tensor.name in last:
                change[index] += tensor.bytes
                change[last[tensor.name]] -= tensor.bytes
    return list(accumulate(change))


def tensors_with_gradient(graph: Graph) -> frozenset[str]:
    """Return the floating-point tensors that a parameter influences, parameters included."""
    reached = {t.name for t in graph.with_role("parameter") if t.dtype.startswith("float")}
    for op in graph.ops:
        if not reached.isdisjoint(op.inputs):
            reached.update(
                name for name in op.outputs if graph.tensors[name].dtype.startswith("float")
            )
    return frozenset(reached)


def _total_gradient(tape: Tape, name: str, source: Op) -> str | None:
    """Return the whole gradient of a forward tensor, adding up contributions; None if none."""
    parts = tape.gradients.get(name)
    if not parts:
        return None
    result, tensor = parts[0], tape.forward[name]
    part_of = "" if name == source.outputs[0] else f"{name.rpartition('.')[2]}."
    for count, part in enumerate(parts[1:], start=1):
        add = Elementwise.in_place("add")
        suffix = f"{part_of}gradient_sum{count}"
        result = Backward(tape, source, ()).emit(suffix, add, (result, part), tensor)
        # The sum belongs where the last part was made: in a pipeline only it changes chips.
        made_by = (op.source for op in reversed(tape.ops) if part in op.outputs)
        tape.ops[-1] = changed(tape.ops[-1], source=next(made_by, source.name))
    tape.gradients[name] = [result]
    return result


def _differentiate(forward: Graph, segments: list[list[Op]]) -> tuple[Graph, dict[str, str]]:
    """Return both passes, and the gradient of each parameter."""
    tape = Tape(forward=forward.tensors, wanted=tensors_with_gradient(forward))
    for op in forward.ops:
        if isinstance(op.params, Loss):
            tape.contribute(op.inputs[0], op.outputs[1])
    home = {name: i for i, part in enumerate(segments) for op in part for name in op.outputs}
    crossing = {
        name
        for i, part in enumerate(segments)
        for op in part
        for name in op.inputs
        if home.get(name, i) != i
    }
    ops = list(forward.ops)
    for index in reversed(range(len(segments))):
        start = len(tape.ops)
        forward_part = [op for op in segments[index] if not isinstance(op.params, Loss)]
        for op in reversed(forward_part):
            incoming = tuple(_total_gradient(tape, name, op) for name in op.outputs)
            if any(incoming) and any(name in tape.wanted for name in op.inputs):
                differentiate(op.params, Backward(tape, op, incoming))
        backward = tape.ops[start:]
        if index < len(segments) - 1:
            backward = _recomputed(tape, forward_part, backward, crossing)
        ops += backward
    gradients, readers = {}, forward.consumers()
    for tensor in forward.with_role("parameter"):
        start = len(tape.ops)
        total = _total_gradient(tape, tensor.name, readers[tensor.name][0])
        ops += tape.ops[start:]
        if total is not None:
            gradients[tensor.name] = total
    tensors = {**forward.tensors, **tape.tensors}
    return replace(forward, tensors=tensors, ops=tuple(ops)), gradients


def _recomputed(
    tape: Tape, forward: list[Op], backward: list[Op], crossing: Iterable[str]
) -> list[Op]:
    """Put before a backward segment the forward operators whose results it needs again."""
    made = {name for op in forward for name in op.outputs if name not in crossing}
    wanted = {name for op in backward for name in op.inputs if name in made}
    again: list[Op] = []
    for op in reversed(forward):
        if wanted.intersection(op.outputs):
            again.append(op)
            wanted.update(made.intersection(op.inputs))
    again.reverse()
    clones = {name: name + AGAIN for op in again for name in op.outputs}
    for name, clone in clones.items():
        tape.tensors[clone] = changed(tape.forward[name], name=clone)
    # What crosses a boundary was kept: the backward pass reads the kept tensor.
    renamed = {name: clone for name, clone in clones.items() if name in made}

    def reads(op: Op) -> tuple[str, ...]:
        return tuple(renamed.get(name, name) for name in op.inputs)

    def second(op: Op) -> Op:
        new = {"name": op.name + AGAIN, "phase": "recompute", "source": op.name}
        return changed(op, inputs=reads(op), outputs=tuple(map(clones.get, op.outputs)), **new)

    return [*map(second, again), *(_reading(op, reads(op)) for op in backward)]


def _accumulating(
    graph: Graph, gradients: dict[str, str], accumulate: str, dtype: str | None
) -> Graph:
    """Add each gradient to its accumulator as soon as it is complete, or average it in."""
    tensors, ops = dict(graph.tensors), []
    owners: dict[str, list[str]] = {}
    for parameter, gradient in gradients.items():
        owners.setdefault(gradient, []).append(parameter)
    for op in graph.ops:
        ops.append(op)
        for gradient in op.outputs:
            for parameter in owners.get(gradient, ()):
                name, output = f"{parameter}{ACCUMULATOR_SUFFIX}", f"{parameter}.accumulated"
                stored = {"name": name, "dtype": dtype or tensors[parameter].dtype}
                tensors[name] = changed(tensors[parameter], role="state", alias_of=None, **stored)
                function = accumulate if tensors[name].dtype == "float16" else "scaled_add"
                where = {"phase": "backward", "source": op.source or op.name}
                ops.append(_add_into(tensors, (name, gradient), output, function, **where))
    return replace(graph, tensors=tensors, ops=tuple(ops))
