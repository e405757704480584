"""What a lowering knows while it runs: the graph, the chip, the stack, where every tensor lies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ipusim.compiler.convolution import planner
from ipusim.compiler.program import LoweredOp, Step
from ipusim.compiler.stacks import Stack
from ipusim.compiler.superstep import Era, Superstep, parse_era
from ipusim.machine import Chip
from ipusim.workload.graph import Graph, Op

DEFAULT_GROUPING = 16
"""Channels that sit together where no plan says otherwise (poplibs: weights per conv unit)."""

HOST_ROLES = ("input", "parameter", "constant", "state")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLayout:
    """Where a tensor lies.

    Attributes
    ----------
    grouping : int
        Channels that sit together in memory.
    tiles : int or None
        Tiles that hold it; None for a linear mapping over the chip.
    from_host : bool
        Whether it is laid out for its consumer (host inputs and parameters).
    mapping : str
        Tensor whose tile mapping it shares, element by element; empty where it has its own.
    """

    grouping: int = DEFAULT_GROUPING
    tiles: int | None = None
    from_host: bool = False
    mapping: str = ""

    def lies_with(self, other: TensorLayout) -> bool:
        """Whether two tensors need no exchange to be combined element by element."""
        return self.from_host or other.from_host or self.mapping == other.mapping


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

    @property
    def era(self) -> Era:
        """Generation of the codelets."""
        return parse_era(self.stack.codelets)

    def layout(self, tensor: str) -> TensorLayout:
        """Return where a tensor lies; one that nothing has made yet is spread or from the host."""
        host = self.graph.tensors[tensor].role in HOST_ROLES
        layout = self.layouts.get(tensor, TensorLayout(from_host=host))
        return layout if layout.mapping else replace(layout, mapping=tensor)

    def rows_scattered(self, tensor: str) -> bool:
        """Whether neighbours of a row lie apart: a product keeps the rows of its result together.

        poplibs exchanges the operands of products (lib/poplin/MatMul.cpp), so what its plan calls
        output channels, a few of which sit together in memory, are rows.
        """
        layout = self.layout(tensor)
        producer = self.producers.get(layout.mapping)
        return layout.grouping > 1 and producer is not None and producer.kind == "matmul"

    def dtype(self, tensor: str) -> str:
        """Return the element type of a tensor."""
        return self.graph.tensors[tensor].dtype

    def step(self, op: str, step: Superstep, tiles: int | None) -> Step:
        """Return a superstep as it runs on `tiles` tiles (None: all) under this stack."""
        exchange = step.exchange_cycles(self.chip)
        overhead = (
            self.stack.superstep_cycles if step.exchange_bytes else self.stack.compute_set_cycles
        )
        return Step(
            op=op,
            name=step.name,
            vertex=step.vertex,
            sync_cycles=overhead,
            exchange_cycles=exchange,
            copy_cycles=step.on_tile_copy_cycles,
            compute_cycles=step.compute_cycles,
            exchange_bytes=step.exchange_bytes,
            tiles=tiles or self.chip.tiles,
        )

    def finish(
        self,
        op: Op,
        steps: list[Superstep],
        *,
        layout: TensorLayout,
        temp_bytes: int = 0,
    ) -> LoweredOp:
        """Record where the results lie and wrap the steps of an operation without a plan."""
        for name in op.outputs:
            self.layouts[name] = layout
        return LoweredOp(
            name=op.name,
            kind=op.kind,
            function=op.function,
            steps=tuple(self.step(op.name, step, layout.tiles) for step in steps),
            macs=op.macs,
            plan="",
            transform="",
            tiles=layout.tiles or self.chip.tiles,
            grouping=layout.grouping,
            temp_bytes=max([temp_bytes, *(step.temp_bytes for step in steps)]),
        )
