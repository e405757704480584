"""From an operator graph to a program of supersteps.

Every operator is lowered by the function that its file in `operators` registers for its attributes
(`state.lowers`). Convolutions and products are planned (`planner`); everything else has its own
codelets. Between operations three costs arise that a plan alone does not see: the inputs of a
convolution lie where the operation before it left them, so all of them arrive by exchange and are
then copied on the tile into the order the vertex reads ([D] in three prototypes these copies moved
the mean error of published runs by 7 points); where the channel grouping of producer and consumer
differ they are regrouped; and operands of an addition come from different plans. Tensors that
arrive from the host, and parameters, are laid out for their consumer.
"""

from collections.abc import Mapping

from ipusim.compiler.emitter import DEFAULT_GROUPING, Emitter, Placed, TensorLayout
from ipusim.compiler.operators.conv import convolutions_planned
from ipusim.compiler.program import LoweredOp, Program
from ipusim.compiler.stacks import Stack
from ipusim.compiler.state import LoweringState
from ipusim.machine import Chip
from ipusim.workload.graph import Graph, arriving_dtype


def lower(
    graph: Graph,
    chip: Chip,
    stack: Stack,
    *,
    host_dtype: str | None,
    convolution_partials: str | None = None,
    layouts: Mapping[str, TensorLayout] | None = None,
) -> Program:
    """Lower a graph for one micro-batch to a program on one chip.

    Batch norm of the graph is folded or not as the stack does it; the chip has the tiles that
    compute (I/O tiles already taken away). Partials ("half" or "float") and the share of tile
    memory for the temporaries of one operation are the stack's, in which a run has put its own;
    convolutions may have other partials. Data that arrive from the host in another type than the
    graph's are converted on the chip; eight-bit images are also normalised there (one scale, one
    offset per channel). `layouts` has, by name, the layout of each tensor that is there at the
    start and is not laid out for its consumer.
    """
    rules = stack.planner_rules(), stack.planner_rules(convolution_partials)
    state = LoweringState(graph, chip, stack, *rules, layouts or {})
    with convolutions_planned(state):
        ops = [op for name in graph.inputs if (op := _lower_input(state, name, host_dtype))]
        ops += map(state.lower, graph.ops)
    return Program(tuple(ops))


def _lower_input(state: LoweringState, name: str, host_dtype: str | None) -> LoweredOp | None:
    """Convert data from the host on all tiles; None where they arrive in the graph's type."""
    tensor = state.graph.tensors[name]
    sent = arriving_dtype(tensor, host_dtype)
    if sent == tensor.dtype:
        return None
    m = Emitter(chip=state.chip, stack=state.stack, tiles=state.chip.tiles)
    m.cast(Placed(tensor.shape, sent), tensor.dtype)
    if sent == "uint8":
        channels = tensor.shape[1]
        image = Placed(tensor.shape, tensor.dtype, TensorLayout(grouping=channels))
        for function in ("mul", "add"):
            m.by_channel(function, image, channels, f"normalise, {function}", in_place=True)
    return LoweredOp(
        name=name,
        kind="input",
        function=f"from {sent}",
        steps=tuple(m.steps),
        tiles=state.chip.tiles,
        grouping=DEFAULT_GROUPING,
    )
