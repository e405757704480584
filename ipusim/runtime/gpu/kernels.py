"""The kernels that one inference or training step of an operator graph runs on a GPU.

Each operator is counted, forward and backward, from the forward graph alone: matrix products and
convolutions as their forward product and the two gradients, everything else as passes over memory.
Sizes are of one GPU's batch.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from ipusim.errors import DataError, WorkloadError, check_name, resolve_name
from ipusim.machine.constants import Sourced
from ipusim.machine.gpu import GPU_PRECISIONS
from ipusim.workload.graph import Conv, Elementwise, Gather, Graph, Layout, MatMul, Norm, Softmax
from ipusim.workload.operators.base import Attributes, Op
from ipusim.workload.operators.recurrent import Recurrent

GPU_MODES = ("training", "inference")

UPDATE_BYTES_PER_PARAMETER = {"sgd": 24, "rmsprop": 32, "adam": 32, "lamb": 44}
"""Float32 traffic of an update: weight, gradient and moments read, weight and moments written,
gradient cleared. RMSProp with momentum has two moments, as Adam; LAMB reads more for its norms."""

_MASK_BYTES = 1
"""Dropout keeps one byte per element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStack(Sourced, file="gpu/stacks", word="GPU software stack"):
    """What one framework release does between a graph and the kernels that run.

    In `transposed_precisions` every dense convolution converts its operands and its result to the
    layout that its kernel reads; in `fused_precisions` elementwise operators join the kernel of
    what comes before them. If it `casts_weights`, a mixed-precision step converts every weight from
    float32; with a `kernel_per_reduction` each one within a softmax or layer norm reads all again.
    It `overlaps_all_reduce` where gradients are reduced beside the backward pass.
    """

    name: str
    title: str
    transposed_precisions: tuple[str, ...]
    fused_precisions: tuple[str, ...]
    casts_weights: bool
    kernel_per_reduction: bool
    update_kernels_per_parameter: int
    overlaps_all_reduce: bool

    def __post_init__(self) -> None:
        for key in ("transposed_precisions", "fused_precisions"):
            unknown = set(getattr(self, key)) - set(GPU_PRECISIONS)
            if unknown:
                raise DataError(
                    f"The key {key!r} of {self.name!r} in {self.FILE}.toml names {min(unknown)!r}: "
                    f"use {', '.join(GPU_PRECISIONS)}."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel, or `count` alike, that the host starts for an operator in a phase of a step.

    `bytes` are read from and written to the board's memory. A product on the matrix rate has the
    size (m, k) by (k, n), `groups` times; m is 0 without one. A `winograd` one is a convolution
    that float32 kernels transform; `scalar_macs` run one by one, as in depthwise convolutions.
    """

    op: str
    phase: str
    bytes: int
    m: int = 0
    n: int = 0
    k: int = 0
    groups: int = 1
    winograd: bool = False
    scalar_macs: int = 0
    count: int = 1


class _Counter:
    def __init__(self, graph: Graph, stack: GpuStack, mode: str, precision: str) -> None:
        self.graph = graph
        self.stack = stack
        self.training = mode == "training"
        self.mixed = precision == "mixed"
        self.size = 2 if self.mixed else 4
        self.transposed = precision in stack.transposed_precisions
        self.fused = precision in stack.fused_precisions
        self.producers: Mapping[str, Op] = graph.producers()
        self.consumers = graph.consumers()

    def elements(self, *names: str) -> int:
        return sum(self.graph.tensors[name].elements for name in names)

    def computed(self, op: Op) -> list[str]:
        """Return the inputs that another operator computes: those that have a gradient."""
        return [name for name in op.inputs if name in self.producers]

    def passes(
        self, op: Op, forward: int, backward: int, counts: tuple[int, int] = (1, 1)
    ) -> Iterator[Kernel]:
        """Yield what moves so many elements per direction; 0 elements, no kernel."""
        if forward > 0:
            yield Kernel(op=op.name, phase="forward", bytes=self.size * forward, count=counts[0])
        if backward > 0 and self.training:
            yield Kernel(op=op.name, phase="backward", bytes=self.size * backward, count=counts[1])

    def cast(self, op: Op, weights: int) -> Iterator[Kernel]:
        """Yield the conversion of a float32 weight to float16."""
        if self.mixed and self.stack.casts_weights:
            yield Kernel(op=op.name, phase="forward", bytes=6 * weights)

    def conv(self, op: Op, params: Conv) -> Iterator[Kernel]:
        inputs, outputs = self.elements(op.inputs[0]), self.elements(op.outputs[0])
        moved = self.size * (inputs + outputs + params.weights)
        into, out = params.in_channels // params.groups, params.out_channels // params.groups
        taps = prod(params.kernel)
        positions = params.batch * prod(params.out_field)
        input_positions = params.batch * prod(params.field)
        depthwise = into == 1 and params.groups > 1
        # 3 x 3 windows with stride 1 are those that Winograd kernels take.
        plain = params.groups == 1 and not params.is_transposed and params.kernel == (3, 3)
        winograd = plain and set(params.stride) == set(params.dilation) == {1}
        if not depthwise:
            yield from self.cast(op, params.weights)
        shapes = [("forward", positions, out, into * taps)]
        if self.training:
            if op.inputs[0] in self.producers:
                # as many multiply-accumulates as forward, spread over the input's positions
                depth = max(1, out * taps * positions // input_positions)
                shapes.append(("backward", input_positions, into, depth))
            shapes.append(("backward", into * taps, out, positions))
        for phase, m, n, k in shapes:
            about = {"op": op.name, "phase": phase, "bytes": moved}
            if depthwise:
                yield Kernel(**about, scalar_macs=positions * taps * params.out_channels)
                continue
            yield Kernel(**about, m=m, n=n, k=k, groups=params.groups, winograd=winograd)
            if self.transposed:
                conversion = 2 * self.size * (inputs + outputs)
                # started by the library inside the convolution, so the host does not see it
                yield Kernel(op=op.name, phase=phase, bytes=conversion, count=0)

    def products(
        self, op: Op, shapes: Iterable[tuple[str, int, int, int]], groups: int = 1
    ) -> Iterator[Kernel]:
        """Yield products of (m, k) by (k, n), each given by its phase, m, n and k."""
        for phase, m, n, k in shapes:
            moved = self.size * groups * (m * k + k * n + m * n)
            yield Kernel(op=op.name, phase=phase, bytes=moved, m=m, n=n, k=k, groups=groups)

    def matmul(self, op: Op, params: MatMul) -> Iterator[Kernel]:
        m, k, n, groups = params.m, params.k, params.n, params.groups
        if params.weights_operand:
            yield from self.cast(op, groups * k * n)
        shapes = [("forward", m, n, k)]
        if self.training:
            shapes += [("backward", m, k, n), ("backward", k, n, m)]
        yield from self.products(op, shapes, groups)

    def recurrent(self, op: Op, params: Recurrent) -> Iterator[Kernel]:
        """Yield the products of a layer: with the input all at once, with the state by step."""
        rows, columns = params.steps * params.batch, params.gates * params.hidden
        yield from self.cast(op, columns * (params.features + params.hidden))
        whole = [("forward", rows, columns, params.features)]
        stepwise = [("forward", params.batch, columns, params.hidden)]
        if self.training:
            whole += [
                ("backward", rows, params.features, columns),
                ("backward", params.features, columns, rows),
                ("backward", params.hidden, columns, rows),
            ]
            stepwise.append(("backward", params.batch, params.hidden, columns))
        yield from self.products(op, whole)
        # The rest of a cell is part of the kernel of a step (Appleyard et al. 2016, arXiv
        # 1604.01946).
        for shape in stepwise:
            yield from self.products(op, [shape] * params.steps)

    def joined(self, op: Op) -> int:
        """Return the elements that need not be read where it is fused with what comes before."""
        if not self.fused:
            return 0
        for name in self.computed(op):
            before = self.producers[name].params
            alone = len(self.consumers[name]) == 1 and name not in self.graph.outputs
            if isinstance(before, Elementwise | Norm) and alone:
                return self.elements(name)
        return 0

    def elementwise(self, op: Op, params: Elementwise) -> Iterator[Kernel]:
        out = self.elements(*op.outputs)
        if params.function == "dropout":
            if self.training:
                mask = -(-out * _MASK_BYTES // self.size)
                saved = 2 * self.joined(op)
                yield from self.passes(op, 2 * out + mask - saved, 2 * out + mask - saved)
            return
        read = self.elements(*op.inputs)
        joined = self.joined(op)
        forward, backward = read + out, 0
        if params.function == "bias_add":
            before = self.producers.get(op.inputs[0])
            if before is not None and isinstance(before.params, MatMul):
                forward = 0  # the product starts from the bias
            backward = out
        elif self.computed(op):
            if len(op.inputs) == 1:
                backward = 3 * out
            elif params.function not in ("add", "sub"):
                backward = out + 2 * self.elements(*self.computed(op))
        moved = (forward - 2 * joined, backward - 2 * joined)
        yield from self.passes(op, *moved, (0, 0) if joined else (1, 1))

    def norm(self, op: Op, params: Norm) -> Iterator[Kernel]:
        size = params.elements
        if params.kind != "layer":
            # in training once for the statistics and once to normalise; in backward the sums first
            yield from self.passes(op, (3 if self.training else 2) * size, 5 * size)
        elif self.stack.kernel_per_reduction:
            # mean, variance, result; sums over rows, sums over columns, result
            yield from self.passes(op, 4 * size, 7 * size, (3, 3))
        else:
            # a row stays in the multiprocessor; the sums over columns read all again
            yield from self.passes(op, 2 * size, 5 * size, (1, 2))

    def other(self, op: Op, params: Attributes) -> Iterator[Kernel]:
        read, written = self.elements(*self.computed(op)), self.elements(*op.outputs)
        if isinstance(params, Softmax):
            size = params.outer * params.length
            if self.stack.kernel_per_reduction:
                # maximum, sum, result; sum, result
                yield from self.passes(op, 4 * size, 5 * size, (3, 2))
            else:
                yield from self.passes(op, 2 * size, 3 * size)
        elif isinstance(params, Gather):
            found = params.groups * params.indices * params.width
            table = 2 * params.groups * params.rows * params.width
            copied, added = 2 * found, table + 3 * found
            if params.function == "add":
                yield from self.passes(op, added, copied)
            else:
                yield from self.passes(op, copied, added if params.function == "lookup" else 0)
        elif isinstance(params, Layout) and not params.moves_data:
            return
        else:
            yield from self.passes(op, read + written, read + written)

    def kernels(self, update_bytes: int) -> Iterator[Kernel]:
        known = {
            Conv: self.conv,
            MatMul: self.matmul,
            Recurrent: self.recurrent,
            Elementwise: self.elementwise,
            Norm: self.norm,
        }
        for op in self.graph.ops:
            yield from known.get(type(op.params), self.other)(op, op.params)
        if self.training:
            yield from self.sums()
            tensors = len(self.graph.with_role("parameter"))
            yield Kernel(
                op="update",
                phase="update",
                bytes=update_bytes * self.graph.parameters,
                count=tensors * self.stack.update_kernels_per_parameter,
            )

    def sums(self) -> Iterator[Kernel]:
        """Yield the additions of gradients that reach one tensor from several operators."""
        for name, readers in self.consumers.items():
            more = len(readers) - 1
            if name in self.producers and more > 0:
                moved = 3 * self.size * self.elements(name) * more
                yield Kernel(op=f"{name}.sum", phase="backward", bytes=moved, count=more)


def step_kernels(
    graph: Graph, stack: GpuStack, *, mode: str, precision: str, optimizer: str = "sgd"
) -> tuple[Kernel, ...]:
    """Return the kernels of one step on one GPU: gradients beside their operator, the update last.

    The two gradients of a product need as many multiply-accumulates as the product, and read the
    other operand and the incoming gradient again. The first convolution has no data gradient.
    Additions pass their gradient on without a kernel. Dropout runs in training only.
    """
    check_name("mode", mode, GPU_MODES)
    if any(op.phase != "forward" for op in graph.ops):
        raise WorkloadError(
            f"Graph {graph.name!r} already holds a training step: give its forward graph."
        )
    kind = resolve_name("optimizer", optimizer, UPDATE_BYTES_PER_PARAMETER)
    counter = _Counter(graph, stack, mode, precision)
    return tuple(counter.kernels(UPDATE_BYTES_PER_PARAMETER[kind]))
