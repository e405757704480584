"""Convolutions and products: from a plan to the supersteps that poplibs would run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from ipusim.compiler.convolution import planner, record as lay
from ipusim.compiler.convolution.joint import plan_layer
from ipusim.compiler.program import LoweredOp, Step
from ipusim.compiler.state import LoweringState, TensorLayout
from ipusim.compiler.superstep import (
    Superstep,
    ceil_div,
    copy_cycles,
    element_bytes,
    linear_share,
)
from ipusim.compiler.vertices import elementwise as codelets
from ipusim.workload.graph import Conv, MatMul, Op

_CONV_KINDS = {
    "forward": "conv",
    "data_gradient": "conv_data_gradient",
    "weight_gradient": "conv_weight_gradient",
}

_REGROUP_GRAIN_BYTES = 8
"""Bytes of a row of the smallest block that is worth a transposition."""


def conv_shape(params: Conv, dtype_bytes: int, *, training: bool = False) -> planner.ConvShape:
    """Return what the planner needs to know of a convolution, in a training graph or not."""
    rank = len(params.field)
    kind = _CONV_KINDS[params.pass_kind]
    return planner.ConvShape(
        kind="conv_forward" if training and kind == "conv" else kind,
        groups=params.groups,
        batch=params.batch,
        in_channels=params.in_channels // params.groups,
        out_channels=params.out_channels // params.groups,
        field=params.field,
        kernel=params.kernel,
        stride=params.stride,
        padding_lower=params.padding_lower,
        padding_upper=params.padding_upper,
        in_dilation=params.input_dilation or (1,) * rank,
        kernel_dilation=params.dilation,
        in_bytes=dtype_bytes,
        out_bytes=dtype_bytes,
    )


def lower_conv(state: LoweringState, op: Op) -> LoweredOp:
    """Plan a convolution and return its supersteps."""
    params: Conv = op.params
    shape = conv_shape(params, element_bytes(state.dtype(op.outputs[0])), training=state.training)
    chosen = planner.plan(shape, state.chip, state.rules)
    before: list[Superstep] = []
    if params.pass_kind == "forward":
        state.plans[op.inputs[1]] = chosen
    elif params.pass_kind == "data_gradient":
        before = _transposed_weights(state, op, chosen, state.plans.get(op.inputs[1], chosen))
    return _lower_planned(state, op, chosen, data=op.inputs[0], weights=op.inputs[1], before=before)


def _transposed_weights(
    state: LoweringState,
    op: Op,
    chosen: planner.Plan,
    forward: planner.Plan,
    *,
    in_place: bool = False,
) -> list[Superstep]:
    """Rearrange the forward weights for the data gradient: channels exchanged, field reversed.

    Blocks are transposed where they lie, then sent (poplibs ``lib/poplin/Convolution.cpp``,
    weightsTransposeChansFlipXY and fullyConnectedWeightTranspose).  With `in_place` they stay on
    their tiles, as joint plans have it. The groups of a tensor divide its channels, whatever the
    plan pads them to; a product whose groups hold one element only is copied one by one
    (getGroupSizes there, useCopyImpl).
    """
    weights = state.graph.tensors[op.inputs[1]]
    share = linear_share(weights.elements, weights.dtype, state.chip)
    element = element_bytes(weights.dtype)
    moved = share.elements * element
    if isinstance(op.params, MatMul):
        block = gcd(chosen.in_chans_per_group, op.params.k)
        in_per = gcd(forward.in_chans_per_group, op.params.n)
        copied = min(block, in_per) == 1
    else:
        out_channels = op.params.in_channels // op.params.groups
        out_per = gcd(forward.out_chans_per_group, out_channels)
        in_per = gcd(forward.in_chans_per_group, op.params.out_channels // op.params.groups)
        wanted = gcd(chosen.in_chans_per_group, out_channels)
        block = wanted if out_per % wanted == 0 else out_per
        copied = False
    steps = []
    if block > 1 and not copied:
        cycles = codelets.transpose_cycles(
            block, in_per, ceil_div(share.elements, block * in_per), weights.dtype, state.chip
        )
        steps.append(
            Superstep(name="transpose weights", vertex="popops::Transpose1D", compute_cycles=cycles)
        )
    if in_place and not copied:
        return steps
    steps.append(
        Superstep(
            name="turn weights",
            vertex="copy",
            compute_cycles=0,
            exchange_bytes=0 if in_place else moved,
            on_tile_copy_cycles=copy_cycles(moved, state.chip, atom_bytes=element) if copied else 0,
            temp_bytes=moved,
        )
    )
    return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProduct:
    """A planned product: its plan, what is done to its weights before, whether passes share plans.

    Attributes
    ----------
    chosen : planner.Plan
    before : list of Superstep
        Transposition of the weights, where the product is a data gradient.
    joint : bool
        Whether one partition serves all passes of the layer.
    """

    chosen: planner.Plan
    before: list[Superstep]
    joint: bool


def plan_product(state: LoweringState, op: Op) -> PlannedProduct:
    """Plan a matrix product; when training, with all three passes of it.

    PopART gives every product of a training graph a pass of a fully connected layer, whether its
    second operand is stored or computed, like the keys and values of attention
    (willow/src/popx/op/matmulx.cpp, appendPoplarOptionsForOp; enableFullyConnectedPass in
    willow/include/popart/sessionoptions.hpp), and so the backward pass transposes that operand.
    TensorFlow sorts its products into these passes by the operands that they share. [inferred:
    those of attention, too]
    """
    params: MatMul = op.params
    dtype_bytes = element_bytes(state.dtype(op.outputs[0]))
    if state.training:
        plans = plan_layer(layer_shape(params, dtype_bytes), state.chip, state.rules)
        chosen = getattr(plans, params.pass_kind)
        before: list[Superstep] = []
        if params.pass_kind == "data_gradient":
            before = _transposed_weights(state, op, chosen, plans.forward, in_place=plans.joint)
        return PlannedProduct(chosen=chosen, before=before, joint=plans.joint)
    shape = planner.ConvShape.matmul(
        params.groups,
        params.m,
        params.k,
        params.n,
        dtype_bytes=dtype_bytes,
        kind="fc_inference" if params.weights_operand else "matmul",
    )
    return PlannedProduct(
        chosen=planner.plan(shape, state.chip, state.rules), before=[], joint=False
    )


def lower_matmul(state: LoweringState, op: Op) -> LoweredOp:
    """Plan a matrix product and return its supersteps."""
    return lower_product(state, op, plan_product(state, op))


def lower_product(state: LoweringState, op: Op, planned: PlannedProduct) -> LoweredOp:
    """Return the supersteps of a planned product, those of its weights' transposition first."""
    # poplibs swaps the operands of products: B plays the part of the input, A of the weights.
    lowered = _lower_planned(
        state,
        op,
        planned.chosen,
        data=op.inputs[1],
        weights=op.inputs[0],
        before=planned.before,
    )
    stored = op.params.weights_operand
    if planned.joint and stored and op.params.pass_kind == "weight_gradient":
        # The gradient lies where the weights lie.
        for name in op.outputs:
            state.layouts[name] = replace(state.layouts[name], from_host=True)
    return lowered


def layer_shape(params: MatMul, dtype_bytes: int) -> planner.ConvShape:
    """Return the forward product of the layer that a product is a pass of, for `plan_layer`."""
    m, k, n = params.m, params.k, params.n
    if params.pass_kind == "data_gradient":
        k, n = n, k
    elif params.pass_kind == "weight_gradient":
        m, k = k, m
    return planner.ConvShape.matmul(
        params.groups, m, k, n, dtype_bytes=dtype_bytes, kind="fc_training"
    )


def _lower_planned(
    state: LoweringState,
    op: Op,
    chosen: planner.Plan,
    *,
    data: str,
    weights: str,
    before: list[Superstep] | None = None,
) -> LoweredOp:
    """Supersteps of a planned operation, in the order in which poplibs runs them."""
    chip, cost = state.chip, chosen.cost
    steps: list[Step] = [state.step(op.name, step, None) for step in before or ()]
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
        stack = state.stack
        overhead = stack.planned_superstep_cycles if exchange else stack.compute_set_cycles
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

    stored = op.kind == "matmul" and op.params.weights_operand
    if stored and op.params.pass_kind == "forward" and state.stack.regroup_fully_connected:
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
    if cost[lay.C_BEFORE]:
        add("arrange for slices", "copy", copy=cost[lay.C_BEFORE], repeats=1)
    if cost[lay.C_SLICE]:
        add("slice operands", "popops::DynamicSlice1D", compute=cost[lay.C_SLICE])
    moved = cost[lay.C_MOVE_IN] + cost[lay.C_MOVE_WEIGHTS]
    copied = cost[lay.C_COPY_IN] + cost[lay.C_COPY_WEIGHTS]
    if before and op.kind == "matmul":
        # The weights, which are the input here, have been transposed into their place.
        moved, copied = cost[lay.C_MOVE_WEIGHTS], cost[lay.C_COPY_WEIGHTS]
    if moved and op.function == "weight_gradient":
        # What is summed over must become innermost.
        if _regroups(op, chosen, in_bytes):
            # Blocks are transposed before they are sent.
            add("transpose operands", "popops::Transpose1D", compute=copied)
            copied = 0
        else:
            copied = copy_cycles(moved * chip.exchange_bytes_per_cycle, chip, atom_bytes=in_bytes)
    if moved:
        add("rearrange operands", "copy", exchange=moved, copy=copied)
    exchange = cost[lay.C_WEIGHTS]
    copied = 0
    layout = state.layout(data)
    arranged = layout.from_host or (moved > 0 and op.function == "weight_gradient")
    if arranged:
        exchange += cost[lay.C_INPUT]
    else:
        # All inputs lie elsewhere; neighbours that want the same ones share the bus.
        paired = chosen.split[lay.S_OUT] % chip.tiles_per_exchange_bus == 0
        width = chip.exchange_bytes_per_cycle * (chip.tiles_per_exchange_bus if paired else 1)
        exchange += ceil_div(cost[lay.C_INPUT_BYTES], width)
        copied += copy_cycles(cost[lay.C_INPUT_BYTES], chip)
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
    if op.kind == "matmul" and not state.layout(weights).from_host and not cost[lay.C_MOVE_WEIGHTS]:
        # Activations come from another plan, whether or not B was laid out for this one.
        copied += copy_cycles(cost[lay.C_WEIGHT_BYTES], chip)
    add(
        "convolve" if op.kind == "conv" else "multiply",
        f"poplin::{chosen.method}",
        exchange=exchange + cost[lay.C_TILE_TRANSFORM],
        copy=copied,
        compute=cost[lay.C_CALC],
    )
    if chosen.reduction_depth > 1:
        # Each tile keeps its own share of the partials that it reduces.
        depth = chosen.reduction_depth
        first = cost[lay.C_REDUCE_FIRST] * (depth - 1) // depth
        for stage in range(cost[lay.C_STAGES]):
            share = cost[lay.C_REDUCE] // cost[lay.C_STAGES]
            if stage == 0:
                share += cost[lay.C_REDUCE] % cost[lay.C_STAGES]
            moved_here = (
                first if stage == 0 else cost[lay.C_REDUCE_REST] // (cost[lay.C_STAGES] - 1)
            )
            add("reduce partials", "poplin::ReduceAdd", exchange=moved_here, compute=share)
    elif cost[lay.C_REDUCE]:
        add("cast partials", "popops::Cast1D", compute=cost[lay.C_REDUCE])
    if cost[lay.C_ADD]:
        add("accumulate", "popops::BinaryOp1DInPlace", compute=cost[lay.C_ADD])
    if cost[lay.C_UPDATE]:
        add("write slice", "popops::DynamicUpdateSlice1D", compute=cost[lay.C_UPDATE])
    if cost[lay.C_AFTER]:
        add("cast result", "popops::Cast1D", compute=cost[lay.C_AFTER], repeats=1)
    grouping = chosen.out_chans_per_group * chosen.conv_groups_per_group
    if cost[lay.C_MOVE_OUT]:
        add("rearrange output", "copy", exchange=cost[lay.C_MOVE_OUT], copy=cost[lay.C_COPY_OUT])
    if chosen.spreads_output:
        # Copied with zeros between its elements into a tensor of its own (Convolution.cpp,
        # convolutionPostprocess).
        result = state.graph.tensors[op.outputs[0]]
        element = element_bytes(result.dtype)
        tile_bytes = ceil_div(result.bytes, chosen.tiles_used)
        add(
            "spread output",
            "copy",
            copy=copy_cycles(tile_bytes, chip, atom_bytes=element),
            repeats=1,
        )
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
        temp_bytes=_temp_bytes(state, op, chosen, before or [], from_host=arranged),
        interleaved_bytes=chosen.partial_bytes_per_tile if chosen.method == "AMP" else 0,
    )


def _regroups(op: Op, chosen: planner.Plan, in_bytes: int) -> bool:
    """Whether the operands of a weight gradient are transposed in blocks, not element by element.

    The new groups divide the rows that a product sums over, and blocks have at least
    `_REGROUP_GRAIN_BYTES` of them (poplibs lib/poplin/Convolution.cpp, regroupIfBeneficialForPlan;
    lib/popops/Rearrange.cpp, getMinimumRegroupGrainSize). Batch and field of a convolution are
    taken to divide well. [inferred]
    """
    if not isinstance(op.params, MatMul):
        return True
    return gcd(chosen.in_chans_per_group, op.params.k) * in_bytes % _REGROUP_GRAIN_BYTES == 0


def _temp_bytes(
    state: LoweringState,
    op: Op,
    chosen: planner.Plan,
    before: list[Superstep],
    *,
    from_host: bool,
) -> int:
    """Bytes of the fullest tile that live during a planned operation only, its output left out.

    While the vertex runs: what was received of inputs and weights, its share of weights that were
    turned before, and the partials; while the partials are reduced or cast: the partials and the
    output. Rearrangements and serial splits need what the planner reckons with (ConvModel.cpp).
    """
    cost, split = chosen.cost, chosen.split
    output = cost[lay.C_OUTPUTS] * element_bytes(state.dtype(op.outputs[0]))
    if chosen.serial_splits > 1 or cost[lay.C_MOVE_IN] or cost[lay.C_MOVE_WEIGHTS]:
        return max(0, chosen.temp_bytes - output)
    users = split[lay.S_BATCH] * prod(split[lay.S_FIELD : lay.S_KERNEL])
    inputs, weights = cost[lay.C_INPUT_BYTES], cost[lay.C_WEIGHT_BYTES]
    received = weights - weights // users + inputs
    if from_host:
        received -= inputs // split[lay.S_OUT]
    received += max((step.temp_bytes for step in before), default=0)
    partials = cost[lay.C_PARTIAL_BYTES]
    after = partials if cost[lay.C_REDUCE] else 0
    return max(received + partials - output, after, 0)
