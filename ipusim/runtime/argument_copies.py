"""Weights that operations copy into a function that they share, each time that they call it.

Frameworks compile equal operations once, as a function with tensors of its own, and copy what they
pass to it (`Framework.copies_arguments`). Certain are the copies of weights, the least that a call
costs: where one function is passed several weights, none of them may be lost, so none can lie where
the function reads, and Poplar has no copy to leave out. Both tensors are laid out for the same
operation, so nothing is exchanged. Left out as open: activations, which may lie where the function
reads, rotated weights in gradients of convolutions among them; accumulators, which a function has
only where it adds to them; the syncs, as it is not known how many operations a function has.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

from ipusim.compiler.program import LoweredOp, Program, Superstep, all_temp_bytes
from ipusim.compiler.tiles import ceil_div, copy_cycles, element_bytes, tile_share
from ipusim.machine import Chip
from ipusim.workload.graph import Conv, Graph, MatMul, Op, Tensor

ARGUMENTS = "arguments"
"""Name of the step of copies, which comes first."""


def with_arguments(
    graph: Graph, ops: Iterable[LoweredOp], chip: Chip, ipu_of: Callable[[str], int] = lambda _: 0
) -> tuple[LoweredOp, ...]:
    """Return lowered operations with the copies of the weights that they pass to a function.

    Operations share one that are equal, on one chip, which `ipu_of` tells by name, and in one pass.
    """
    functions: dict[tuple[object, ...], dict[str, Tensor]] = defaultdict(dict)
    for op in graph.ops:
        if weights := _stored_weights(graph, op):
            functions[ipu_of(op.name), op.phase, op.params, weights.dtype][op.name] = weights
    passed: dict[str, Tensor] = {}
    for calls in functions.values():
        if len({weights.name for weights in calls.values()}) > 1:
            passed |= calls
    return tuple(_passing(op, passed[op.name], chip) if op.name in passed else op for op in ops)


def without_arguments(program: Program) -> Program:
    """Return a program without the steps that copy arguments."""
    return Program(
        tuple(
            op._replace(steps=op.steps[1:]) if op.steps and op.steps[0].name == ARGUMENTS else op
            for op in program.ops
        )
    )


def _stored_weights(graph: Graph, op: Op) -> Tensor | None:
    """Return the weights that an operation passes as they are stored; None if it has none."""
    params = op.params
    if isinstance(params, MatMul) or (isinstance(params, Conv) and params.pass_kind == "forward"):
        weights = graph.tensors[op.inputs[1]]
        return weights if weights.role == "parameter" else None
    return None


def _passing(op: LoweredOp, weights: Tensor, chip: Chip) -> LoweredOp:
    """Return an operation that first copies its weights and holds the copy."""
    share = tile_share(weights.elements, weights.dtype, chip)
    tiles, held = ceil_div(weights.elements, share), share * element_bytes(weights.dtype)
    copied = Superstep(ARGUMENTS, "copy", 0, 0, copy_cycles(held, chip), 0, 0, tiles)
    return op._replace(
        steps=(copied, *op.steps),
        temp_bytes=op.temp_bytes + held,
        chip_temp_bytes=all_temp_bytes(op) + weights.bytes,
    )
