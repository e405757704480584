"""What a lowering knows while it runs: the graph, where every tensor lies, who lowers what."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, NamedTuple

from ipusim.compiler.convolution.planner import Plan
from ipusim.compiler.convolution.rules import PlannerRules
from ipusim.compiler.emitter import Emitter, Placed, TensorLayout
from ipusim.compiler.eras import ERA_2_4
from ipusim.compiler.overwriting import overwritten
from ipusim.compiler.program import LoweredOp, all_temp_bytes
from ipusim.compiler.stacks import Stack
from ipusim.compiler.tiles import Runs
from ipusim.machine import Chip
from ipusim.workload.graph import Attributes, Conv, Elementwise, Gather, Graph, MatMul, Op
from ipusim.workload.operators.elementwise import DROPOUTS

FREE_ROLES = ("input", "parameter", "constant", "state")
FLOATING = ("float16", "float32")


def float_dtype(dtype: str) -> str:
    """Return the type by whose cycles elements are charged: float32 for all but float16."""
    return dtype if dtype in FLOATING else "float32"


class Task(NamedTuple):
    """All that the lowering of an operation depends on besides `LoweringState`, without names.

    So equal operations of a graph have equal tasks. `results` have no layout yet, and what is read
    no mapping: `mappings` are numbers, equal where those of `inputs`, and of a `reference` after
    them, are. `updates` says that the operation is part of a weight update, `product` how the first
    input lies on its fullest tile if a matrix product made it, `changes_table` that the graph
    changes the rows of a table of these sizes; `forward_plan` is the plan of the forward
    convolution if this is its data gradient, `reference` the layout of what the forward pass
    dropped from if this is a dropout's gradient, `overwritten` the place of the input whose memory
    an elementwise result takes.
    """

    params: Attributes
    updates: bool = False
    inputs: tuple[Placed, ...] = ()
    mappings: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()
    results: tuple[Placed, ...] = ()
    product: Runs | None = None
    changes_table: bool = False
    forward_plan: Plan | None = None
    reference: TensorLayout | None = None
    overwritten: int | None = None


@dataclass(slots=True, kw_only=True)
class Lowering(Emitter):
    """The lowering of one operation.

    `training` says whether the graph has gradients. `known` are fields of the `LoweredOp` that the
    steps do not tell; unless it has ``temp_bytes``, these are the most of any step. `result` is the
    layout of the main result if that is not the first one, `plan` that of a planned operation.
    """

    rules: PlannerRules
    training: bool
    task: Task
    known: dict[str, Any] = field(default_factory=dict)
    result: TensorLayout | None = None
    plan: Plan | None = None

    @property
    def made(self) -> Placed:
        """The first result: shape and type, without a layout yet."""
        return self.task.results[0]

    @property
    def dtype(self) -> str:
        """Floating-point type in which the result is computed."""
        return float_dtype(self.made.dtype)

    def bring_operand(self, x: Placed, layout: TensorLayout, *sizes: int) -> int:
        """Bring an operand of popops::map from its `layout` to that of x; return cycles of copies.

        From tag sdk/poplar/2.4.0 on blocks of whole groups are transposed where rows are adjacent
        in one and channels in the other (lib/popops/ElementWise.cpp, binaryOpGeneral); `sizes` are
        rows and columns, as `bring` has them.
        """
        if self.era >= ERA_2_4:
            return self.bring("regroup operand", x, layout, *sizes)
        return self.piece_copies(x, layout)

    def finish(self, layout: TensorLayout) -> LoweredOp:
        """Return the lowered operation; steps without tiles of their own run on the result's."""
        tiles = layout.tiles or self.chip.tiles
        steps = [step if step.tiles else step._replace(tiles=tiles) for step in self.steps]
        params, held = self.task.params, {}
        if "temp_bytes" not in self.known:
            held["temp_bytes"] = max([0, *(step.temp_bytes for step in steps)])
            held["chip_temp_bytes"] = max([0, *(all_temp_bytes(step) for step in steps)])
        return LoweredOp(
            name="",
            kind=params.KIND,
            function=params.variant,
            steps=tuple(steps),
            tiles=tiles,
            grouping=layout.grouping,
            macs=params.macs,
            float_macs=params.macs if self.dtype == "float32" else 0,
            **held,
            **self.known,
        )


LOWERINGS: dict[type, Callable[..., TensorLayout | tuple[TensorLayout, ...]]] = {}
"""The function that lowers operations with each class of attributes (`lowers`)."""


def lowers(attributes: type) -> Callable[[Callable], Callable]:
    """Register the function that lowers operations with attributes of a class.

    It takes the lowering, the attributes and the placed inputs, adds supersteps, and returns the
    layout of the results: one for all, or one each. Those in `operators` stand in a file of the
    same name as the attributes, which is loaded when a graph has the operator.
    """

    def register(function: Callable) -> Callable:
        LOWERINGS[attributes] = function
        return function

    return register


class Lowered(NamedTuple):
    """An operation without a name, its results, and the plan of a convolution or product.

    Results have no mapping: `mappings` are the numbers of those in the `Task` that they have too,
    None where a result has its own.
    """

    op: LoweredOp
    results: tuple[Placed, ...]
    mappings: tuple[int | None, ...]
    plan: Plan | None


@dataclass(slots=True)
class LoweringState:
    """State of one lowering: where every tensor lies, and what was lowered.

    `placed` are the tensors that have been met, without their mapping: in `mappings` stands the
    tensor whose mapping another one has. ``plans`` holds, by weight tensor, the plan of its forward
    convolution, ``products``, by result, how that of a matrix product lies on its fullest tile,
    ``dropped``, by forward dropout, the tensor that it dropped from last. Networks repeat their
    layers, so each `Task` is lowered once and its result remembered in ``lowered``.
    """

    graph: Graph
    chip: Chip
    stack: Stack
    rules: PlannerRules
    convolution_rules: PlannerRules
    layouts: Mapping[str, TensorLayout]
    placed: dict[str, Placed] = field(default_factory=dict)
    mappings: dict[str, str] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    products: dict[str, Runs] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    lowered: dict[Task, Lowered] = field(default_factory=dict)
    changed_tables: frozenset[Gather] = field(init=False)
    overwritten: Mapping[str, int] = field(init=False)
    training: bool = field(init=False)

    def __post_init__(self) -> None:
        ops = self.graph.ops
        gathers = (op.params for op in ops if isinstance(op.params, Gather))
        self.changed_tables = frozenset(map(_table_of, (g for g in gathers if g.variant)))
        self.training = any(op.phase != "forward" for op in ops)
        self.overwritten = overwritten(self.graph)

    def place(self, name: str) -> Placed:
        """Return a tensor where it lies; one that no operation made is free by role, or spread."""
        placed = self.placed.get(name)
        if placed is None:
            tensor = self.graph.tensors[name]
            layout = self.layouts.get(name) or TensorLayout(free=tensor.role in FREE_ROLES)
            placed = self.placed[name] = Placed(tensor.shape, tensor.dtype, layout)
        return placed

    def task(self, op: Op, numbers: dict[str, int]) -> Task:
        """Return the task of an operation; `numbers` receives the number of each mapping."""
        tensors, params, read, reference = self.graph.tensors, op.params, op.inputs, None
        if isinstance(params, Elementwise) and params.function in DROPOUTS:
            if op.phase == "backward":
                dropped = self.dropped.get(op.source, read[0])
                read, reference = (*read, dropped), self.place(dropped).layout
            else:
                self.dropped[op.source or op.name] = read[0]
        lie = self.mappings
        mappings = [numbers.setdefault(lie.get(name, name), len(numbers)) for name in read]
        return Task(
            params,
            op.phase == "update",
            tuple([self.place(name) for name in op.inputs]),
            tuple(mappings),
            tuple([tensors[name].role for name in op.inputs]),
            tuple([Placed(tensors[name].shape, tensors[name].dtype) for name in op.outputs]),
            product=self.products.get(op.inputs[0]) if op.inputs else None,
            changes_table=isinstance(params, Gather) and _table_of(params) in self.changed_tables,
            forward_plan=self.plans.get(op.inputs[1])
            if isinstance(params, Conv) and params.pass_kind == "data_gradient"
            else None,
            reference=reference,
            overwritten=self.overwritten.get(op.name),
        )

    def lower(self, op: Op) -> LoweredOp:
        """Lower one operation and record where its results lie."""
        numbers: dict[str, int] = {}
        task = self.task(op, numbers)
        lowered = self.lowered.get(task)
        if lowered is None:
            lowered = self.lowered[task] = self._lowered(task)
        self.placed.update(zip(op.outputs, lowered.results, strict=True))
        for name, number in zip(op.outputs, lowered.mappings, strict=True):
            if number is not None:
                self.mappings[name] = [*numbers][number]
        if isinstance(op.params, Conv) and op.params.pass_kind == "forward":
            self.plans[op.inputs[1]] = lowered.plan
        elif isinstance(op.params, MatMul) and lowered.plan:
            self.products[op.outputs[0]] = lowered.plan.result
        # The name comes first; `_replace` would take twice as long.
        return LoweredOp(op.name, *lowered.op[1:])

    def _lowered(self, task: Task) -> Lowered:
        read = [*(one.layout for one in task.inputs), *filter(None, [task.reference])]
        read = [one.mapped(number) for one, number in zip(read, task.mappings, strict=True)]
        if task.reference:
            task = task._replace(reference=read[-1])
        inputs = (
            one._replace(layout=layout) for one, layout in zip(task.inputs, read, strict=False)
        )
        attributes = type(task.params)
        rules = self.convolution_rules if attributes is Conv else self.rules
        m = Lowering(
            chip=self.chip, stack=self.stack, rules=rules, training=self.training, task=task
        )
        if attributes not in LOWERINGS:
            operator = attributes.__module__.rpartition(".")[2]
            import_module(f"ipusim.compiler.operators.{operator}")
        layouts = LOWERINGS[attributes](m, task.params, *inputs)
        if isinstance(layouts, TensorLayout):
            layouts = (layouts,)
        # The last layout holds for all further results.
        each = [layouts[min(index, len(layouts) - 1)] for index in range(len(task.results))]
        results = [
            made._replace(layout=layout.mapped(None))
            for made, layout in zip(task.results, each, strict=True)
        ]
        mappings = [layout.mapping for layout in each]
        lowered = m.finish(m.result or layouts[0])
        return Lowered(lowered, tuple(results), tuple(mappings), m.plan)


def _table_of(gather: Gather) -> Gather:
    """Return a lookup of equal sizes: lookups and updates of a table have it in common."""
    return replace(gather, function="lookup")
