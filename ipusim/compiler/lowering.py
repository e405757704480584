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

from functools import partial

from ipusim.compiler import elementwise
from ipusim.compiler.codelets import binary_functions, gather_cycles, unary_functions
from ipusim.compiler.lowering_planned import lower_conv, lower_matmul
from ipusim.compiler.lowering_state import DEFAULT_GROUPING, LoweringState, TensorLayout
from ipusim.compiler.normalisation import batch_norm_steps, norm_steps
from ipusim.compiler.pooling import PoolParams, pool_steps
from ipusim.compiler.program import LoweredOp, Program
from ipusim.compiler.rearrange import cast_steps, rearrange_steps
from ipusim.compiler.reduction import reduce_steps
from ipusim.compiler.softmax import softmax_steps
from ipusim.compiler.stacks import Stack
from ipusim.compiler.superstep import (
    Superstep,
    ceil_div,
    element_bytes,
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
    state = LoweringState(graph, chip, stack, stack.planner_rules(partials), graph.producers())
    ops = [op for name in graph.inputs if (op := _lower_input(state, name, host_dtype))]
    for op in graph.ops:
        ops.append(_LOWER[type(op.params)](state, op))
    return Program(tuple(ops))


def _lower_input(state: LoweringState, name: str, host_dtype: str | None) -> LoweredOp | None:
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


def _lower_elementwise(state: LoweringState, op: Op) -> LoweredOp:
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
        return state.finish(op, steps, layout=layout)
    if _accumulates_product(state, op):
        # matMulAcc: C is laid out like the product, and IPUModel's gemms want half a cycle per
        # float16 element, the rate of operands in different memory elements.
        steps = elementwise.scaled_add_steps(
            params.elements, dtype, state.chip, era=state.era, constrained=True, tiles_used=tiles
        )
        return state.finish(op, steps, layout=layout)
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
    return state.finish(op, steps, layout=layout)


def _accumulates_product(state: LoweringState, op: Op) -> bool:
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


def _lower_pool(state: LoweringState, op: Op) -> LoweredOp:
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
    return state.finish(op, steps, layout=TensorLayout(grouping=layout.grouping))


def _lower_norm(state: LoweringState, op: Op) -> LoweredOp:
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
    return state.finish(op, steps, layout=layout)


def _lower_softmax(state: LoweringState, op: Op) -> LoweredOp:
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
    return state.finish(op, steps, layout=layout)


def _lower_reduce(state: LoweringState, op: Op) -> LoweredOp:
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
    return state.finish(op, steps, layout=TensorLayout())


def _lower_layout(state: LoweringState, op: Op) -> LoweredOp:
    params: Layout = op.params
    layout = state.layout(op.inputs[0]) if op.inputs else TensorLayout()
    if not params.moves_data:
        return state.finish(op, [], layout=layout)
    dtype = state.dtype(op.outputs[0])
    grouping = 1 if params.function == "transpose" else layout.grouping
    steps = rearrange_steps(
        params.elements,
        dtype,
        state.chip,
        from_grouping=layout.grouping,
        to_grouping=grouping,
    )
    return state.finish(op, steps, layout=TensorLayout(grouping=layout.grouping))


def _lower_gather(state: LoweringState, op: Op) -> LoweredOp:
    params: Gather = op.params
    dtype = state.dtype(op.outputs[0])
    rows = ceil_div(params.indices, state.chip.tiles)
    cycles = gather_cycles(rows, params.width, dtype, state.chip, generation=state.era.estimator)
    moved = rows * params.width * element_bytes(dtype)
    step = Superstep(
        name="gather", vertex="popops::MultiSlice", compute_cycles=cycles, exchange_bytes=moved
    )
    return state.finish(op, [step], layout=TensorLayout(), temp_bytes=moved)


def _lower_cast(state: LoweringState, op: Op) -> LoweredOp:
    params: Cast = op.params
    layout = state.layout(op.inputs[0])
    source, target = state.dtype(op.inputs[0]), state.dtype(op.outputs[0])
    if element_bytes(source) == element_bytes(target) or "int64" in (source, target):
        return state.finish(op, [], layout=layout)
    steps = cast_steps(
        params.elements, source, target, state.chip, era=state.era, tiles_used=layout.tiles
    )
    return state.finish(op, steps, layout=layout)


_LOWER = {
    Conv: lower_conv,
    MatMul: lower_matmul,
    Elementwise: _lower_elementwise,
    Pool: _lower_pool,
    Norm: _lower_norm,
    Softmax: _lower_softmax,
    Reduce: _lower_reduce,
    Layout: _lower_layout,
    Gather: _lower_gather,
    Cast: _lower_cast,
}
