"""What a lowering knows while it runs: the graph, where every tensor lies, who lowers what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ipusim.compiler.convolution import planner
from ipusim.compiler.emitter import Emitter, Placed, TensorLayout
from ipusim.compiler.program import LoweredOp
from ipusim.compiler.stacks import Stack
from ipusim.machine import Chip
from ipusim.workload.graph import Graph, Op

FREE_ROLES = ("input", "parameter", "constant", "state")
FLOATING = ("float16", "float32")


def float_dtype(dtype: str) -> str:
    """Integers and booleans are charged like the float of their width or the next wider one."""
    return dtype if dtype in FLOATING else "float32"


@dataclass(slots=True)
class LoweringState:
    """State of one lowering: where every tensor lies.

    ``plans`` holds the forward plan that laid out each weight tensor, ``training`` whether the
    graph has gradients.
    """

    graph: Graph
    chip: Chip
    stack: Stack
    rules: planner.PlannerRules
    producers: dict[str, Op]
    layouts: dict[str, TensorLayout] = field(default_factory=dict)
    plans: dict[str, planner.Plan] = field(default_factory=dict)
    training: bool = field(init=False)

    def __post_init__(self) -> None:
        self.training = any(op.phase != "forward" for op in self.graph.ops)

    def layout(self, tensor: str) -> TensorLayout:
        """Return where a tensor lies; one that nothing has made yet is spread or free."""
        layout = self.layouts.get(tensor)
        if layout is None:
            layout = TensorLayout(free=self.graph.tensors[tensor].role in FREE_ROLES)
        if not layout.mapping:
            layout = self.layouts[tensor] = replace(layout, mapping=tensor)
        return layout

    def placed(self, name: str) -> Placed:
        """Return a tensor with where it lies."""
        tensor, layout = self.graph.tensors[name], self.layout(name)
        return Placed(tensor.shape, tensor.dtype, layout)

    def dtype(self, tensor: str) -> str:
        """Return the element type of a tensor."""
        return self.graph.tensors[tensor].dtype


@dataclass(slots=True, kw_only=True)
class Lowering(Emitter):
    """The lowering of one operation of a graph; what it plans and needs is as `LoweredOp` says.

    `temp_bytes` are those of the steps if None; `result` says where the operation's main result
    lies.
    """

    state: LoweringState
    op: Op
    plan: str = ""
    transform: str = ""
    temp_bytes: int | None = None
    interleaved_bytes: int = 0
    codelet: str = ""
    reads_lines: bool = False
    result: TensorLayout | None = None

    @classmethod
    def of(cls, state: LoweringState, op: Op) -> Lowering:
        """Start the lowering of an operation."""
        return cls(chip=state.chip, stack=state.stack, name=op.name, state=state, op=op)

    @property
    def dtype(self) -> str:
        """Floating-point type in which the result is computed."""
        return float_dtype(self.state.dtype(self.op.outputs[0]))

    def lay_out(self, *layouts: TensorLayout) -> None:
        """Record where the results lie, the last layout for all that remain."""
        for index, name in enumerate(self.op.outputs):
            self.state.layouts[name] = layouts[min(index, len(layouts) - 1)]

    def finish(self, layout: TensorLayout) -> LoweredOp:
        """Return the operation; steps that do not say otherwise run on the tiles of the result."""
        tiles = layout.tiles or self.chip.tiles
        for step in self.steps:
            if not step.tiles:
                # Nobody else has it yet; `replace` would take a tenth of the time of lowering.
                object.__setattr__(step, "tiles", tiles)
        op = self.op
        return LoweredOp(
            name=op.name,
            kind=op.kind,
            function=op.function,
            steps=tuple(self.steps),
            macs=op.macs,
            float_macs=op.macs if self.dtype == "float32" else 0,
            plan=self.plan,
            transform=self.transform,
            tiles=tiles,
            grouping=layout.grouping,
            temp_bytes=max([0, *(step.temp_bytes for step in self.steps)])
            if self.temp_bytes is None
            else self.temp_bytes,
            interleaved_bytes=self.interleaved_bytes,
            codelet=self.codelet,
            reads_lines=self.reads_lines,
        )


LOWERINGS: dict[type, Callable[..., TensorLayout | tuple[TensorLayout, ...]]] = {}
"""What lowers the operations with each class of attributes (`lowers`)."""


def lowers(attributes: type) -> Callable[[Callable], Callable]:
    """Register the function that lowers operations with attributes of a class.

    It takes the lowering, the attributes and the placed inputs, adds supersteps, and returns the
    layout of the results: one for all, or one each.
    """

    def register(function: Callable) -> Callable:
        LOWERINGS[attributes] = function
        return function

    return register


def lower_op(state: LoweringState, op: Op) -> LoweredOp:
    """Lower one operation and record where its results lie."""
    lowering = Lowering.of(state, op)
    placed = map(state.placed, op.inputs)
    layouts = LOWERINGS[type(op.params)](lowering, op.params, *placed)
    if isinstance(layouts, TensorLayout):
        layouts = (layouts,)
    lowering.lay_out(*layouts)
    return lowering.finish(lowering.result or layouts[0])
