"""From the contents of an ONNX file to a graph, for any batch."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain

from ipusim.errors import WorkloadError
from ipusim.workload.graph import Graph, Layout, Norm, Op
from ipusim.workload.onnx.context import ImportContext
from ipusim.workload.onnx.fusion import fuse
from ipusim.workload.onnx.inputs import Given, InputPlan, OpenSizes, plan_inputs
from ipusim.workload.onnx.nodes import UNKNOWN, Node, Scope
from ipusim.workload.onnx.operators import HANDLERS
from ipusim.workload.onnx.operators.emission import Emission
from ipusim.workload.onnx.reader import OnnxContents, Value
from ipusim.workload.onnx.rebatch import Rebatch
from ipusim.workload.onnx.walk import Misfit, Walk, fitting
from ipusim.workload.operators.base import name_in_body

_SHOWN = 8
"""Unsupported operators that a message names."""


@dataclass(frozen=True, slots=True)
class OnnxBuild:
    """Callable that builds the graph of a file for a micro-batch (None: the file's own)."""

    contents: OnnxContents
    plan: InputPlan
    allow_unknown: bool
    own: Graph | None = None  # for the file's own batch, once made

    @property
    def batch(self) -> int:
        """Items of a pass where no micro-batch is given."""
        return self.plan.fixed or self.plan.default

    def __call__(self, micro_batch: int | None) -> Graph:
        """Build the graph; `WorkloadError` says if the file has none, or none of this batch."""
        size = micro_batch or self.batch
        if size == self.batch and self.own:
            return self.own
        if self.plan.fixed == 0:
            return self.imported(size)[0]
        if self.plan.fixed is None:
            shapes = self.plan.shapes(size)
            raise self.contents.error(
                f"has data inputs of shapes {shapes}, none of whose sizes is a batch of items that "
                f"stay apart, so micro-batch {micro_batch} is impossible",
                "export it with a symbolic batch, or use 1 to take the file as exported",
            )
        return self._rebatched(self.plan.fixed, size)

    def imported(
        self, size: int, own: ImportContext | None = None, *, late: bool = False
    ) -> tuple[Graph, ImportContext]:
        """Return the graph of a batch, and its import; if the file fixes its own from that one.

        What is unknown is refused unless allowed.
        """
        contents, plan = self.contents, self.plan
        context, shapes = ImportContext(contents), plan.shapes(size)
        rebatch = Rebatch(plan.fixed, size, own.values, late) if own and plan.fixed else None
        for name in plan.values:
            context.constant(name, plan.value(name, size))
            context.values[name].learnable = None
        for item, shape in zip(plan.inputs, shapes, strict=True):
            value = Value(shape=shape, elem_type=item.elem_type, static=False)
            context.record(Node(op_type="Input", input=[], output=[item.name]), item.name, value)
        visitor = Walk(context, rebatch)
        try:
            visitor.body(contents.nodes, Scope())
        except WorkloadError:
            # What cannot be followed behind an unsupported operator is its fault.
            if not context.unknown:
                raise
        if context.unknown and not self.allow_unknown:
            raise unsupported(context)
        tensors = (visitor.sequences.get(name, [name]) for name in contents.outputs)
        outputs = tuple(dict.fromkeys(chain.from_iterable(tensors)))
        # A sequence leaves the graph tensor by tensor.
        context.contents = replace(contents, outputs=outputs)
        lost = [name for name in outputs if name not in context.values]
        if lost and context.unknown:
            raise unsupported(context, "since it has no shape of what they make")
        if lost:
            raise WorkloadError(
                f"Graph output {lost[0]!r} of {contents.source} is computed by no node."
            )
        fuse(context)
        _note_folded(context)
        for item, shape in zip(plan.inputs, shapes, strict=True):
            if 0 not in shape:
                context.graph.input(item.name, shape, context.dtype(item.name))
        for node in context.nodes:
            emission = Emission(context, node)
            with fitting(context, node):
                (_unknown if node.op_type.startswith(UNKNOWN) else HANDLERS[node.op_type])(emission)
            _add_extras(emission)
        if not context.graph.ops:
            raise contents.error(
                "computes nothing from its data inputs", "there is nothing to simulate"
            )
        graph = context.graph.finish(*[context.operand(name) for name in outputs])
        return graph, context

    def carries(self, exported: Graph, context: ImportContext) -> bool | None:
        """Whether the batch is one, by the same import at thrice its size; None if that fails."""
        if self.plan.fixed is None:
            return None
        try:
            return _scales(exported, self.imported(3 * self.batch, context)[0], 3)
        except Misfit as error:
            return False if error.weighted else None
        except WorkloadError:
            return None

    def _rebatched(self, fixed: int, size: int) -> Graph:
        """Return the graph with another batch than the file fixes, if all work follows it."""
        exported, context = self.imported(fixed)
        for late in (False, True):
            with suppress(WorkloadError):
                graph, _ = self.imported(size, context, late=late)
                if _scales(exported, graph, Fraction(size, fixed)):
                    return graph
        raise self.contents.error(
            f"fixes its batch of {fixed} inside the graph, so micro-batch {size} is impossible",
            f"export it with a symbolic batch or use {fixed}",
        )


_OF_ONE_ITEM = ("k", "length", "steps", "reduced", "in_channels", "field", "features")
"""Attributes that say along which sizes an operator mixes elements; a norm has groups of them."""


def _scales(exported: Graph, rebatched: Graph, times: Fraction | int) -> bool | None:
    """Whether work and outputs are so many times larger; False if items are mixed, else None."""
    # A batch of one may need fewer or simpler moves: what has one name and kind is compared.
    mixed = {(op.name, op.kind): _mixes(op) for op in _of_results(exported)}
    again = {(op.name, op.kind): _mixes(op) for op in _of_results(rebatched)}
    if any(sizes != mixed.get(which, sizes) for which, sizes in again.items()):
        return False
    rounds = _rounds(rebatched)
    if any(rounds.get(name, count) != count for name, count in _rounds(exported).items()):
        return False
    before, after = (
        [_macs_of_items(graph), *(graph.tensors[name].elements for name in graph.outputs)]
        for graph in (exported, rebatched)
    )
    return [size * times for size in before] == after or None


def _macs_of_items(graph: Graph) -> int:
    """Return the multiply-accumulates of what depends on data; others are of weights alone."""
    reached, total = set(graph.inputs), 0
    for op in graph.ops:
        if not reached.isdisjoint(op.inputs):
            reached.update(op.outputs)
            total += op.macs
    return total


def _of_results(graph: Graph) -> list[Op]:
    """Return the operators of results; what decides on branches and loops may ask all items."""
    needed, found = set(graph.outputs), []
    for op in reversed(graph.ops):
        if needed.intersection(op.outputs):
            needed.update(op.inputs)
            found.append(op)
    return found


def _rounds(graph: Graph) -> Counter[str]:
    """Return how often operators run, those of a loop in every round."""
    return Counter(name_in_body(op.name) for op in graph.ops)


def _mixes(op: Op) -> list[object]:
    sizes = [getattr(op.params, name, None) for name in _OF_ONE_ITEM]
    if isinstance(op.params, Norm) and op.params.kind != "batch":
        sizes.append(op.params.elements // op.params.statistics)
    return sizes


def settled(
    contents: OnnxContents, given: Given, *, allow_unknown: bool
) -> tuple[OnnxBuild, ImportContext]:
    """Return what builds a file's graphs, its own one made, and what that import knows."""
    imported: tuple[Graph, ImportContext] | None = None
    last = None
    # The batch is the size that is named so, or the leading one, or else the second one, if items
    # along it are not mixed, as the steps of a recurrent layer are, or the channels of an image.
    for axis in (0, 1, None):
        missing: OpenSizes | None = None
        try:
            plan = plan_inputs(contents.inputs, given, contents.source, axis)
        except OpenSizes as error:
            missing = error
            plan = plan_inputs(contents.inputs, error.answered(given), contents.source, axis)
        build = OnnxBuild(contents, plan, allow_unknown)
        sizes = (plan.shapes(build.batch), plan.filled)
        if sizes != last:
            imported, last = None, sizes
        if plan.named or plan.fixed == 1 or axis is None:
            break
        try:
            imported = imported or build.imported(build.batch)
            carries = build.carries(*imported)
        except WorkloadError:
            if missing is None:
                raise
            carries = None
        if carries or (carries is None and axis == 0 and plan.fixed is not None):
            break
    if missing is not None:
        raise missing
    graph, context = imported or build.imported(build.batch)
    return replace(build, own=graph), context


def _note_folded(context: ImportContext) -> None:
    """Say that training may lack batch norms: exporters fold them into convolutions."""
    biased = sum(node.op_type == "Conv" and node.has(2) for node in context.nodes)
    if biased > 1 and not any(node.op_type.endswith("Normalization") for node in context.nodes):
        context.notes[
            "convolutions have biases and there is no norm: if the exporter folded batch norms, a "
            "training step is 13 to 18 % too fast (export in training mode)"
        ] = biased


def _add_extras(e: Emission) -> None:
    """Let optional results that somebody reads (statistics, indices, masks) be one move each."""
    context = e.context
    for name in e.node.output[1:]:
        value = context.values.get(name)
        if value and not value.static and name not in context.graph.tensors and context.reads(name):
            e.note("optional results (statistics, indices) are one move each")
            source = context.graph.ops[-1].outputs[0]
            e.emit(Layout.move("extra"), source, suffix=f".{name}", outputs=[name])


_TIMED = "or time them as memory traffic with --allow-unknown (allow_unknown=True)"


def unsupported(context: ImportContext, advice: str = _TIMED) -> WorkloadError:
    """Return the error that names every unsupported operator of a file."""
    kinds = [
        f"{kind} ({len(nodes)} nodes, the first {nodes[0]!r})"
        for kind, nodes in list(context.unknown.items())[:_SHOWN]
    ]
    more = len(context.unknown) - len(kinds)
    rest = f" and {more} more" if more else ""
    return context.contents.error(
        f"has operators that are not supported: {', '.join(kinds)}{rest}",
        f"export it without them, {advice}",
    )


def _unknown(e: Emission) -> None:
    """Time an unknown operator as one move of its results."""
    operands = [e.operand(name) for name in dict.fromkeys(e.context.running(e.node.input))]
    e.layout(e.node.op_type, *operands, moves=True)
