"""From an operator graph to a program of supersteps.

Convolutions and products are planned (`planner`); everything else has its own codelets. Between
operations three costs arise that a plan alone does not see: the inputs of a convolution lie where
the operation before it left them, so all of them arrive by exchange and are then copied on the
tile into the order the vertex reads ([D] LESSONS of three prototypes: on-tile copies of operands
move the mean error of published runs by 7 points); where the channel grouping of producer and
consumer differ they are regrouped; and operands of an addition come from different plans.
Tensors that arrive from the host, and parameters, are laid out for their consumer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import prod

from ipusim.compiler import conv_search as cs
from ipusim.compiler import elementwise, planner
from ipusim.compiler.codelets import binary_functions, gather_cycles, unary_functions
from ipusim.compiler.normalisation import batch_norm_steps, norm_steps
from ipusim.compiler.pooling import PoolParams, pool_steps
from ipusim.compiler.program import LoweredOp, Program, Step
from ipusim.compiler.rearrange import cast_steps, rearrange_steps
from ipusim.compiler.reduction import reduce_steps
from ipusim.compiler.softmax import softmax_steps
from ipusim.compiler.stacks import Stack
from ipusim.compiler.superstep import (
    Superstep,
    ceil_div,
    copy_cycles,
    element_bytes,
    parse_era,
)
from ipusim.machine import Chip
from ipusim.workload.graph import (
    Cast,
    Conv,
    Elementwise,
    Gather,
    Graph,
    Layout,
    MatMul,
    Norm,
    Op,
    Pool,
    Reduce,
    Softmax,
)

DEFAULT_GROUPING = 16
"""Channels that sit together where no plan says otherwise (poplibs: weights per conv unit)."""

HOST_ROLES = ("input", "parameter", "constant")

# Functions without a vertex of their own: the popops expressions that compute them.
_COMPOSED: dict[str, tuple[str, ...]] = {
    "leaky_relu": ("mul", "max"),
    "prelu": ("mul", "max"),
    "clip": ("max", "min"),
    "elu": ("exp", "sub", "max"),
    "selu": ("exp", "sub", "max", "mul"),
    "celu": ("exp", "sub", "max"),
    "softplus": ("exp", "add", "log"),
    "softsign": ("abs", "add", "div"),
    "hard_sigmoid": ("mul", "max", "min"),
    "hard_swish": ("add", "max", "min", "mul"),
    "mish": ("exp", "add", "log", "tanh", "mul"),
    "mean": ("add", "mul"),
    "mod": ("div", "floor", "mul", "sub"),
    "scale": ("mul",),
    "scaled_add": ("mul", "add"),  # where it broadcasts; otherwise it has a vertex
    "reciprocal": ("inverse",),
    "thresholded_relu": ("greater", "mul"),
}
_FALLBACK = "equal"
"""Vertex that stands for comparisons, logic and selection: one compare per element."""


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
    """

    grouping: int = DEFAULT_GROUPING
    tiles: int | None = None
    from_host: bool = False


@dataclass(slots=True)
class _Lowering:
    """State of one lowering: where every tensor lies."""

    graph: Graph
    chip: Chip
    stack: Stack
    rules: planner.PlannerRules
    producers: dict[str, Op]
    layouts: dict[str, TensorLayout] = field(default_factory=dict)

    @property
    def era(self):
        return parse_era(self.stack.codelets)

    def layout(self, tensor: str) -> TensorLayout:
        if tensor in self.layouts:
            return self.layouts[tensor]
        return TensorLayout(from_host=self.graph.tensors[tensor].role in HOST_ROLES)

    def dtype(self, tensor: str) -> str:
        return self.graph.tensors[tensor].dtype

    def step(self, op: str, step: Superstep, tiles: int | None) -> Step:
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


def lower(
    graph: Graph, chip: Chip, stack: Stack, *, partials: str | None = None, host_dtype: str | None
) -> Program:
    """Lower a graph for one micro-batch to a program on one chip.

    Parameters
    ----------
    graph : Graph
        Shapes fixed, batch norm folded or not as the stack does it.
    chip : Chip
        Tiles that compute (I/O tiles already taken away).
    stack : Stack
        Planner rules, codelets and overheads.
    partials : str, optional
        "half" or "float" instead of the stack's default.
    host_dtype : str or None
        Type in which data arrive from the host; converted on the chip where it differs from the
        graph's. Eight-bit images are also normalised there (one scale, one offset per channel).

    Returns
    -------
    Program

    Raises
    ------
    ConfigError, UnknownNameError
        If an operation cannot be planned.
    """
    state = _Lowering(graph, chip, stack, stack.planner_rules(partials), graph.producers())
    ops = [op for name in graph.inputs if (op := _lower_input(state, name, host_dtype))]
    for op in graph.ops:
        ops.append(_LOWER[type(op.params)](state, op))
    return Program(tuple(ops))


def _finish(
    state: _Lowering,
    op: Op,
    steps: list[Superstep],
    *,
    layout: TensorLayout,
    temp_bytes: int = 0,
) -> LoweredOp:
    """Record where the results lie and wrap the steps of an operation without a plan."""
    for name in op.outputs:
        state.layouts[name] = layout
    return LoweredOp(
        name=op.name,
        kind=op.kind,
        function=op.function,
        steps=tuple(state.step(op.name, step, layout.tiles) for step in steps),
        macs=op.macs,
        plan="",
        transform="",
        tiles=layout.tiles or state.chip.tiles,
        grouping=layout.grouping,
        temp_bytes=max([temp_bytes, *(step.temp_bytes for step in steps)]),
    )


def _lower_input(state: _Lowering, name: str, host_dtype: str | None) -> LoweredOp | None:
    tensor = state.graph.tensors[name]
    floating = tensor.dtype in ("float16", "float32")
    if host_dtype is None or not floating or host_dtype == tensor.dtype:
        return None
    share = partial(cast_steps, tensor.elements, chip=state.chip, era=state.era)
    steps = share(from_dtype=host_dtype, to_dtype=tensor.dtype)
    if host_dtype == "uint8":
        channels = tensor.shape[1] if len(tensor.shape) > 1 else 1
        for function in ("mul", "add"):
            steps += elementwise.elementwise_step(
                function,
                tensor.elements,
                tensor.dtype,
                state.chip,
                era=state.era,
                n_inputs=2,
                broadcast=True,
                in_place=True,
                channels=channels,
                channel_grouping=channels,
                name=f"normalise, {function}",
            )
    return LoweredOp(
        name=name,
        kind="input",
        function=f"from {host_dtype}",
        steps=tuple(state.step(name, step, None) for step in steps),
        macs=0,
        plan="",
        transform="",
        tiles=state.chip.tiles,
        grouping=DEFAULT_GROUPING,
        temp_bytes=0,
    )


def conv_shape(params: Conv, dtype_bytes: int) -> planner.ConvShape:
    """Return what the planner needs to know of a convolution."""
    rank = len(params.field)
    return planner.ConvShape(
        kind="conv",
        groups=params.groups,
        batch=params.batch,
        in_channels=params.in_channels // params.groups,
        out_channels=params.out_channels // params.groups,
        field=params.field,
        kernel=params.kernel,
        stride=params.stride,
        padding_lower=tuple(max(0, pad) for pad in params.padding_lower),
        padding_upper=tuple(max(0, pad) for pad in params.padding_upper),
        in_dilation=params.input_dilation or (1,) * rank,
        kernel_dilation=params.dilation,
        in_bytes=dtype_bytes,
        out_bytes=dtype_bytes,
    )


def _lower_conv(state: _Lowering, op: Op) -> LoweredOp:
    shape = conv_shape(op.params, element_bytes(state.dtype(op.outputs[0])))
    chosen = planner.plan(shape, state.chip, state.rules)
    return _lower_planned(state, op, chosen, data=op.inputs[0], weights=op.inputs[1])


def _lower_matmul(state: _Lowering, op: Op) -> LoweredOp:
    params = op.params
    fully_connected = bool(params.weights_operand)
    shape = planner.ConvShape.matmul(
        params.groups,
        params.m,
        params.k,
        params.n,
        dtype_bytes=element_bytes(state.dtype(op.outputs[0])),
        kind="fc_inference" if fully_connected else "matmul",
    )
    chosen = planner.plan(shape, state.chip, state.rules)
    # poplibs swaps the operands of products: B plays the part of the input, A of the weights.
    return _lower_planned(state, op, chosen, data=op.inputs[1], weights=op.inputs[0])


def _lower_planned(
    state: _Lowering, op: Op, chosen: planner.Plan, *, data: str, weights: str
) -> LoweredOp:
    """Supersteps of a planned operation, in the order in which poplibs runs them."""
    chip, cost = state.chip, chosen.cost
    steps: list[Step] = []
    in_bytes = element_bytes(state.dtype(data))

    def add(
        name: str,
        vertex: str,
        *,
        exchange: int = 0,
        copy: int = 0,
        compute: int = 0,
        repeats: int = chosen.serial_splits,
    ) -> None:
        """Add one superstep; `exchange` is in cycles."""
        overhead = state.stack.superstep_cycles if exchange else state.stack.compute_set_cycles
        steps.append(
            Step(
                op=op.name,
                name=name,
                vertex=vertex,
                sync_cycles=overhead,
                exchange_cycles=exchange,
                copy_cycles=copy,
                compute_cycles=compute,
                exchange_bytes=exchange * chip.exchange_bytes_per_cycle,
                tiles=chosen.tiles_used,
                repeats=repeats,
            )
        )

    if op.kind == "matmul" and op.params.weights_operand and state.stack.regroup_fully_connected:
        operand_bytes = sum(
            ceil_div(state.graph.tensors[name].elements * in_bytes, chip.tiles)
            for name in (data, weights)
        )
        add(
            "regroup operands",
            "copy",
            exchange=ceil_div(operand_bytes, chip.exchange_bytes_per_cycle),
            copy=copy_cycles(operand_bytes, chip, atom_bytes=chip.memcpy_bytes_per_cycle),
            repeats=1,
        )
    if cost[cs.C_BEFORE]:
        add("arrange for slices", "copy", copy=cost[cs.C_BEFORE], repeats=1)
    if cost[cs.C_SLICE]:
        add("slice operands", "popops::DynamicSlice1D", compute=cost[cs.C_SLICE])
    moved = cost[cs.C_MOVE_IN] + cost[cs.C_MOVE_WEIGHTS]
    if moved:
        copied = cost[cs.C_COPY_IN] + cost[cs.C_COPY_WEIGHTS]
        add("rearrange operands", "copy", exchange=moved, copy=copied)
    exchange = cost[cs.C_WEIGHTS]
    copied = 0
    layout = state.layout(data)
    if layout.from_host:
        exchange += cost[cs.C_INPUT]
    else:
        # All inputs lie elsewhere; neighbours that want the same ones share the bus.
        paired = chosen.split[cs.S_OUT] % chip.tiles_per_exchange_bus == 0
        width = chip.exchange_bytes_per_cycle * (chip.tiles_per_exchange_bus if paired else 1)
        exchange += ceil_div(cost[cs.C_INPUT_BYTES], width)
        copied += copy_cycles(cost[cs.C_INPUT_BYTES], chip)
        regroup = chosen.in_chans_per_group * chosen.conv_groups_per_group
        if layout.grouping != regroup and not moved and op.kind == "conv":
            tile_bytes = ceil_div(state.graph.tensors[data].bytes, chip.tiles)
            atom = min(layout.grouping, regroup) * in_bytes
            add(
                "regroup channels",
                "popops::Transpose1D",
                copy=copy_cycles(tile_bytes, chip, atom_bytes=atom),
                repeats=1,
            )
    if op.kind == "matmul" and not state.layout(weights).from_host:
        copied += copy_cycles(cost[cs.C_WEIGHT_BYTES], chip)
    add(
        "convolve" if op.kind == "conv" else "multiply",
        f"poplin::{chosen.method}",
        exchange=exchange + cost[cs.C_TILE_TRANSFORM],
        copy=copied,
        compute=cost[cs.C_CALC],
    )
    if chosen.reduction_depth > 1:
        # Each tile keeps its own share of the partials that it reduces.
        depth = chosen.reduction_depth
        first = cost[cs.C_REDUCE_FIRST] * (depth - 1) // depth
        for stage in range(cost[cs.C_STAGES]):
            share = cost[cs.C_REDUCE] // cost[cs.C_STAGES]
            if stage == 0:
                share += cost[cs.C_REDUCE] % cost[cs.C_STAGES]
            moved_here = first if stage == 0 else cost[cs.C_REDUCE_REST] // (cost[cs.C_STAGES] - 1)
            add("reduce partials", "poplin::ReduceAdd", exchange=moved_here, compute=share)
    elif cost[cs.C_REDUCE]:
        add("cast partials", "popops::Cast1D", compute=cost[cs.C_REDUCE])
    if cost[cs.C_ADD]:
        add("accumulate", "popops::BinaryOp1DInPlace", compute=cost[cs.C_ADD])
    if cost[cs.C_UPDATE]:
        add("write slice", "popops::DynamicUpdateSlice1D", compute=cost[cs.C_UPDATE])
    if cost[cs.C_AFTER]:
        add("cast result", "popops::Cast1D", compute=cost[cs.C_AFTER], repeats=1)
    grouping = chosen.out_chans_per_group * chosen.conv_groups_per_group
    if cost[cs.C_MOVE_OUT]:
        add("rearrange output", "copy", exchange=cost[cs.C_MOVE_OUT], copy=cost[cs.C_COPY_OUT])
    for name in op.outputs:
        state.layouts[name] = TensorLayout(grouping=grouping, tiles=chosen.tiles_used)
    return LoweredOp(
        name=op.name,
        kind=op.kind,
        function=op.function,
        steps=tuple(steps),
        macs=op.macs,
        plan=chosen.describe(),
        transform=chosen.transform,
        tiles=chosen.tiles_used,
        grouping=grouping,
        temp_bytes=_temp_bytes(state, op, chosen, from_host=layout.from_host),
        interleaved_bytes=chosen.partial_bytes_per_tile if chosen.method == "AMP" else 0,
    )


def _temp_bytes(state: _Lowering, op: Op, chosen: planner.Plan, *, from_host: bool) -> int:
    """Bytes of the fullest tile that live during a planned operation only, its output left out.

    While the vertex runs: what was received of inputs and weights, and the partials; while the
    partials are reduced or cast: the partials and the output. Rearrangements and serial splits
    need what the planner reckons with (ConvModel.cpp).
    """
    cost, split = chosen.cost, chosen.split
    output = cost[cs.C_OUTPUTS] * element_bytes(state.dtype(op.outputs[0]))
    if chosen.serial_splits > 1 or cost[cs.C_MOVE_IN] or cost[cs.C_MOVE_WEIGHTS]:
        return max(0, chosen.temp_bytes - output)
    users = split[cs.S_BATCH] * prod(split[cs.S_FIELD : cs.S_KERNEL])
    inputs, weights = cost[cs.C_INPUT_BYTES], cost[cs.C_WEIGHT_BYTES]
    received = weights - weights // users + inputs
    if from_host:
        received -= inputs // split[cs.S_OUT]
    partials = cost[cs.C_PARTIAL_BYTES]
    after = partials if cost[cs.C_REDUCE] else 0
    return max(received + partials - output, after, 0)


def _lower_elementwise(state: _Lowering, op: Op) -> LoweredOp:
    params: Elementwise = op.params
    layout = state.layout(op.inputs[0])
    dtype = _float_dtype(state.dtype(op.outputs[0]))
    tiles = layout.tiles
    if op.function == "bias_add":
        channels = state.graph.tensors[op.inputs[1]].elements
        steps = elementwise.bias_add_steps(
            params.elements,
            channels,
            dtype,
            state.chip,
            era=state.era,
            channel_grouping=layout.grouping,
            tiles_used=tiles,
        )
        return _finish(state, op, steps, layout=layout)
    if _accumulates_product(state, op):
        # matMulAcc: C is laid out like the product, and IPUModel's gemms want half a cycle per
        # float16 element, the rate of operands in different memory elements.
        steps = elementwise.scaled_add_steps(
            params.elements, dtype, state.chip, era=state.era, constrained=True, tiles_used=tiles
        )
        return _finish(state, op, steps, layout=layout)
    steps: list[Superstep] = []
    elsewhere = sum(not state.layout(name).from_host for name in op.inputs[1:])
    for count, function in enumerate(_vertices_of(op.function, state.era.estimator)):
        binary = function in binary_functions(state.era.estimator)
        moved = count == 0 and params.n_inputs > 1 and elsewhere > 0 and not params.broadcast
        steps += elementwise.elementwise_step(
            function,
            params.elements,
            dtype,
            state.chip,
            era=state.era,
            n_inputs=2 if binary else 1,
            broadcast=binary and (params.broadcast or params.n_inputs == 1),
            in_place=params.in_place_ok,
            channels=None if params.broadcast else 1,
            channel_grouping=layout.grouping,
            exchanged_inputs=int(binary and moved),
            tiles_used=tiles,
            name=op.function,
        )
    return _finish(state, op, steps, layout=layout)


def _accumulates_product(state: _Lowering, op: Op) -> bool:
    """Whether a full matrix from the host is added to a matrix product."""
    if op.function not in ("add", "scaled_add") or op.params.broadcast or len(op.inputs) != 2:
        return False
    producer = state.producers.get(op.inputs[0])
    return (
        producer is not None and producer.kind == "matmul" and state.layout(op.inputs[1]).from_host
    )


def _vertices_of(function: str, generation: str) -> tuple[str, ...]:
    """Return the vertices that compute an elementwise function."""
    known = (*unary_functions(generation), *binary_functions(generation))
    canonical = elementwise.codelets.canonical_function(function)
    if canonical in known:
        return (canonical,)
    parts = _COMPOSED.get(function, (_FALLBACK,))
    return tuple(part if part in known else _FALLBACK for part in parts)


def _float_dtype(dtype: str) -> str:
    """Integers and booleans are charged like the float of their width or the next wider one."""
    return dtype if dtype in ("float16", "float32") else "float32"


def _lower_pool(state: _Lowering, op: Op) -> LoweredOp:
    params: Pool = op.params
    layout = state.layout(op.inputs[0])
    steps = pool_steps(
        PoolParams(
            kind=params.kind,
            batch=params.batch,
            channels=params.channels,
            field=params.field,
            kernel=params.kernel,
            stride=params.stride,
            padding_lower=params.padding_lower,
            padding_upper=params.padding_upper,
            include_padding=params.include_padding,
        ),
        _float_dtype(state.dtype(op.outputs[0])),
        state.chip,
        era=state.era,
        channel_grouping=layout.grouping,
    )
    return _finish(state, op, steps, layout=TensorLayout(grouping=layout.grouping))


def _lower_norm(state: _Lowering, op: Op) -> LoweredOp:
    params: Norm = op.params
    layout = state.layout(op.inputs[0])
    dtype = _float_dtype(state.dtype(op.outputs[0]))
    common = {
        "era": state.era,
        "channel_grouping": layout.grouping,
        "tiles_used": layout.tiles,
    }
    if params.kind == "batch" and not params.training:
        steps = batch_norm_steps(params.elements, params.channels, dtype, state.chip, **common)
    else:
        steps = norm_steps(
            params.kind,
            params.batch,
            params.channels,
            (params.spatial_elements,),
            dtype,
            state.chip,
            groups=params.groups,
            training=params.training,
            **common,
        )
    return _finish(state, op, steps, layout=layout)


def _lower_softmax(state: _Lowering, op: Op) -> LoweredOp:
    params: Softmax = op.params
    layout = state.layout(op.inputs[0])
    dtype = _float_dtype(state.dtype(op.outputs[0]))
    steps = softmax_steps(
        params.outer,
        params.length,
        dtype,
        state.chip,
        era=state.era,
        scaled=False,
        tiles_used=layout.tiles,
    )
    return _finish(state, op, steps, layout=layout)


def _lower_reduce(state: _Lowering, op: Op) -> LoweredOp:
    params: Reduce = op.params
    dtype = _float_dtype(state.dtype(op.outputs[0]))
    function = {"max": "max", "min": "min", "prod": "mul"}.get(params.function, "add")
    steps = reduce_steps(
        (params.outer, params.reduced, params.inner),
        (1,),
        dtype,
        state.chip,
        era=state.era,
        function=function,
    )
    return _finish(state, op, steps, layout=TensorLayout())


def _lower_layout(state: _Lowering, op: Op) -> LoweredOp:
    params: Layout = op.params
    layout = state.layout(op.inputs[0]) if op.inputs else TensorLayout()
    if not params.moves_data:
        return _finish(state, op, [], layout=layout)
    dtype = state.dtype(op.outputs[0])
    grouping = 1 if params.function == "transpose" else layout.grouping
    steps = rearrange_steps(
        params.elements,
        dtype,
        state.chip,
        from_grouping=layout.grouping,
        to_grouping=grouping,
    )
    return _finish(state, op, steps, layout=TensorLayout(grouping=layout.grouping))


def _lower_gather(state: _Lowering, op: Op) -> LoweredOp:
    params: Gather = op.params
    dtype = state.dtype(op.outputs[0])
    rows = ceil_div(params.indices, state.chip.tiles)
    cycles = gather_cycles(rows, params.width, dtype, state.chip, generation=state.era.estimator)
    moved = rows * params.width * element_bytes(dtype)
    step = Superstep(
        name="gather", vertex="popops::MultiSlice", compute_cycles=cycles, exchange_bytes=moved
    )
    return _finish(state, op, [step], layout=TensorLayout(), temp_bytes=moved)


def _lower_cast(state: _Lowering, op: Op) -> LoweredOp:
    params: Cast = op.params
    layout = state.layout(op.inputs[0])
    source, target = state.dtype(op.inputs[0]), state.dtype(op.outputs[0])
    if element_bytes(source) == element_bytes(target) or "int64" in (source, target):
        return _finish(state, op, [], layout=layout)
    steps = cast_steps(
        params.elements, source, target, state.chip, era=state.era, tiles_used=layout.tiles
    )
    return _finish(state, op, steps, layout=layout)


_LOWER = {
    Conv: _lower_conv,
    MatMul: _lower_matmul,
    Elementwise: _lower_elementwise,
    Pool: _lower_pool,
    Norm: _lower_norm,
    Softmax: _lower_softmax,
    Reduce: _lower_reduce,
    Layout: _lower_layout,
    Gather: _lower_gather,
    Cast: _lower_cast,
}
