"""Whose memory an elementwise result takes: that of an operand that nobody reads later.

PopART overwrites the first operand of a function, of a sum or product else the second
(graphcore/popart@sdk/poplar/2.4.0:willow/src/op/elementwise.cpp, inplacePriorityDefault;
willow/src/op/add.cpp and willow/include/popart/op/mul.hpp, hasRhsInplaceVariant). TensorFlow is
taken to do the same.
"""

from collections.abc import Mapping

from ipusim.workload.graph import Elementwise, Graph, Layout
from ipusim.workload.training import AGAIN

_EITHER = ("add", "mul")
"""Functions of two operands that may overwrite the second."""
_STORED = ("parameter", "constant")


def overwritten(graph: Graph) -> Mapping[str, int]:
    """Return the place of the operand that a result overwrites, by operation, where there is one.

    What is computed again counts as what it was at first: to PopART both are one.
    """
    wholes: dict[str, tuple[str, ...]] = {}
    last: dict[str, str] = {}

    def memory(name: str) -> tuple[str, ...]:
        name = name.removesuffix(AGAIN)
        return wholes.get(name, (name,))

    for op in graph.ops:
        read = tuple(whole for name in op.inputs for whole in memory(name))
        last.update(dict.fromkeys(read, op.name.removesuffix(AGAIN)))
        if isinstance(op.params, Layout) and op.params.viewed_on_ipu:
            wholes.update((name.removesuffix(AGAIN), read) for name in op.outputs)
    last.update((whole, "") for name in (*graph.outputs, *graph.kept) for whole in memory(name))
    found = {}
    for op in graph.ops:
        if not isinstance(op.params, Elementwise) or not op.params.in_place_ok:
            continue
        made = graph.tensors[op.outputs[0]]
        for place, name in enumerate(op.inputs[: 1 + (op.params.function in _EITHER)]):
            x = graph.tensors[name]
            alike = not place or (x.shape == made.shape and x.dtype == made.dtype)
            unread = all(last[whole] == op.name.removesuffix(AGAIN) for whole in memory(name))
            if alike and unread and x.role not in _STORED:
                found[op.name] = place
                break
    return found
