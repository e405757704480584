"""Whose memory an elementwise result takes: that of an operand that nobody reads later.

PopART overwrites the first operand of a function, of a sum or product else the second
(graphcore/popart@sdk/poplar/2.4.0:willow/src/op/elementwise.cpp, inplacePriorityDefault;
willow/src/op/add.cpp and willow/include/popart/op/mul.hpp, hasRhsInplaceVariant). TensorFlow is
taken to do the same.
"""

from collections.abc import Mapping
from functools import lru_cache

from ipusim.workload.graph import Elementwise, Graph, Layout
from ipusim.workload.training import AGAIN

_EITHER = ("add", "mul")
"""Functions of two operands that may overwrite the second."""
_STORED = ("parameter", "constant")


@lru_cache(maxsize=8)  # time and memory of a program both ask
def overwritten(graph: Graph) -> Mapping[str, int]:
    """Return the place of the operand that a result overwrites, by operation, where there is one.

    What is computed again counts as what it was at first: to PopART both are one. ``memory`` are
    the tensors whose memory a tensor shares as a view, ``last`` the operation that reads one last.
    """
    memory: dict[str, tuple[str, ...]] = {}
    last: dict[str, str] = {}
    for op in graph.ops:
        read: tuple[str, ...] = ()
        for name in op.inputs:
            read += memory.get(name, (name,))
        last.update(dict.fromkeys(read, op.name.removesuffix(AGAIN)))
        viewed = isinstance(op.params, Layout) and op.params.viewed_on_ipu
        for name in op.outputs:
            memory[name] = read if viewed else (name.removesuffix(AGAIN),)
    for name in (*graph.outputs, *graph.kept):
        last.update(dict.fromkeys(memory.get(name, (name,)), ""))
    found = {}
    for op in graph.ops:
        if not isinstance(op.params, Elementwise) or not op.params.in_place_ok:
            continue
        made, here = graph.tensors[op.outputs[0]], op.name.removesuffix(AGAIN)
        for place, name in enumerate(op.inputs[: 1 + (op.params.function in _EITHER)]):
            x = graph.tensors[name]
            alike = not place or (x.shape == made.shape and x.dtype == made.dtype)
            unread = all(last[whole] == here for whole in memory.get(name, (name,)))
            if alike and unread and x.role not in _STORED:
                found[op.name] = place
                break
    return found
