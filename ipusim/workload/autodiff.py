"""Reverse-mode differentiation: which operators compute the gradients of others.

`backward_ops` differentiates a run of forward operators by the rules that stand beside their
attributes (`operators.gradient`); `training` decides in which order runs are taken and what is
computed twice.
"""

from collections.abc import Iterable
from dataclasses import replace

from ipusim.workload.graph import Elementwise, Graph, Op
from ipusim.workload.operators.gradient import Backward, Tape


def tensors_with_gradient(graph: Graph) -> frozenset[str]:
    """Return the floating-point tensors that a parameter influences, parameters included."""
    reached = {t.name for t in graph.with_role("parameter") if t.dtype.startswith("float")}
    for op in graph.ops:
        if not reached.isdisjoint(op.inputs):
            reached.update(
                name for name in op.outputs if graph.tensors[name].dtype.startswith("float")
            )
    return frozenset(reached)


def backward_ops(tape: Tape, ops: Iterable[Op]) -> None:
    """Differentiate forward operators, the last first; the tape holds and takes gradients."""
    for op in reversed(list(ops)):
        incoming = tuple(total_gradient(tape, name, op) for name in op.outputs)
        if any(incoming) and any(name in tape.wanted for name in op.inputs):
            Backward(tape, op, incoming).run()


def total_gradient(tape: Tape, name: str, source: Op) -> str | None:
    """Return the whole gradient of a forward tensor, adding up contributions; None if none."""
    parts = tape.gradients.get(name)
    if not parts:
        return None
    result, tensor = parts[0], tape.forward[name]
    if len(parts) == 1:
        return result
    made = {output: op.source for op in tape.ops for output in op.outputs}
    part_of = "" if name == source.outputs[0] else f"{name.rpartition('.')[2]}."
    for count, part in enumerate(parts[1:], start=1):
        add = Elementwise.in_place("add", tensor.elements)
        suffix = f"{part_of}gradient_sum{count}"
        result = Backward(tape, source, ()).emit(suffix, add, (result, part), tensor)
        # The sum belongs where the last part was made: in a pipeline only it changes chips.
        tape.ops[-1] = replace(tape.ops[-1], source=made.get(part, source.name))
    tape.gradients[name] = [result]
    return result
