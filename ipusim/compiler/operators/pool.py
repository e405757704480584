"""Pooling: the supersteps of popnn's forward and gradient passes.

Sources: poplibs lib/popnn/Pooling.cpp (what is done) and lib/popnn/PoolVertices.cpp (which vertex
runs where), at tags 1.0.136 ("2020-01") and sdk/poplar/2.4.0 ("2021-11").
"""

from __future__ import annotations

from math import prod

from ipusim.compiler.operators.elementwise import elementwise_step
from ipusim.compiler.operators.pool_plan import PoolParams, PoolPlan, plan_pool
from ipusim.compiler.operators.reduce import reduce_steps
from ipusim.compiler.superstep import (
    ChipLike,
    Era,
    Superstep,
    ceil_div,
    copy_cycles,
    element_bytes,
    linear_share,
    parse_era,
    require_float,
    vector_width,
)
from ipusim.compiler.vertices.pool import TileSlice, pool_tile_cycles

__all__ = ["PoolParams", "PoolPlan", "plan_pool", "pool_steps", "pooled_grouping"]


def pool_steps(
    params: PoolParams,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    backward: bool = False,
    channel_grouping: int = 16,
) -> list[Superstep]:
    """Return the supersteps of one pass of a pooling operation.

    Parameters
    ----------
    params : PoolParams
        The operation.
    dtype : str
        "float16" or "float32".
    chip : Chip
        The chip.
    era : str or Era
        Generation of poplibs.
    backward : bool, optional
        The gradient with respect to the input instead of the forward pass.
    channel_grouping : int, optional
        Channels that sit together in memory in the input (of the gradient, in its input).

    Returns
    -------
    list of Superstep
        A window that covers the field is a reduction (Pooling.cpp, substPoolingWithReduction), and
        the gradient of its average a broadcast (substPoolingGradientWithBroadcast). Other averages
        scale the incoming gradient by the elements of each window first (scaleGradient).

    Raises
    ------
    ConfigError, UnknownNameError
        If an argument is out of range.
    """
    require_float(dtype)
    era = parse_era(era)
    if params.is_global and not backward:
        return _global_pool_steps(params, dtype, chip, era, channel_grouping)
    scaled = _scale_gradient_steps(params, dtype, chip, era) if backward else []
    if params.is_global and scaled:
        return [*scaled, _broadcast_gradient(params, dtype, chip)]
    plan = plan_pool(
        params, dtype, chip, era=era, backward=backward, channel_grouping=channel_grouping
    )
    geometry = params.backward_geometry() if backward else params.forward_geometry()
    out_field = params.field if backward else params.out_field
    merged = era.library != "2020-01" and not backward
    batch = 1 if merged else params.batch
    channels = params.channels * (params.batch if merged else 1)
    groups = ceil_div(channels, plan.channel_grouping)
    part = TileSlice(
        plan.channel_grouping,
        ceil_div(groups, plan.channel_split),
        ceil_div(batch, plan.batch_split),
        tuple(map(ceil_div, out_field, plan.field_split)),
    )
    is_max = params.kind == "max"
    is_grad = backward and is_max
    cycles = pool_tile_cycles(
        geometry,
        out_field,
        plan.field_split,
        part,
        is_max=is_max,
        is_grad=is_grad,
        vector_width=vector_width(dtype, chip),
        workers=chip.workers,
        generation=era.estimator,
    )
    size = element_bytes(dtype)
    planes = part.batch * part.channel_groups * part.channel_grouping
    in_bytes = geometry.input_extent(part.field) * planes * size
    out_bytes = prod(part.field) * planes * size
    received = 2 * in_bytes + out_bytes if is_grad else in_bytes
    copied = 0
    if plan.channel_grouping != channel_grouping:
        atom = min(plan.channel_grouping, channel_grouping) * size
        copied = copy_cycles(in_bytes, chip, atom_bytes=atom)
    steps = scaled
    if is_grad:
        # The incoming gradient is first copied into the layout of the pooled output.
        pooled = ceil_div(params.batch * params.channels * prod(params.out_field), chip.tiles)
        steps.append(
            Superstep(
                name="rearrange gradient",
                vertex="copy",
                compute_cycles=0,
                exchange_bytes=pooled * size,
            )
        )
    vertex = "popnn::MaxPoolingGrad" if is_grad else "popnn::MaxPooling"
    steps.append(
        Superstep(
            name=f"{params.kind} pool" + (" gradient" if backward else ""),
            vertex=vertex if is_max else "popnn::SumPooling",
            compute_cycles=cycles,
            exchange_bytes=received,
            on_tile_copy_cycles=copied,
            temp_bytes=received,
        )
    )
    if (
        params.kind == "average"
        and not params.include_padding
        and not backward
        and any((*params.padding_lower, *params.padding_upper))
    ):
        # Windows over padding have fewer elements, so each output is scaled on its own
        # (SelectiveScaling, which the estimators charge 10 cycles per worker).
        steps.append(
            Superstep(
                name="scale by window",
                vertex="popnn::SelectiveScaling",
                compute_cycles=10 * chip.workers,
            )
        )
    return steps


def _global_pool_steps(
    params: PoolParams, dtype: str, chip: ChipLike, era: Era, channel_grouping: int
) -> list[Superstep]:
    """Return the reduction that replaces a pooling window over the whole field."""
    grouping = channel_grouping if params.channels % channel_grouping == 0 else 1
    shape = (params.channels // grouping, params.batch, prod(params.field), grouping)
    function = "max" if params.kind == "max" else "add"
    return reduce_steps(shape, (2,), dtype, chip, era=era, function=function)


def _scale_gradient_steps(
    params: PoolParams, dtype: str, chip: ChipLike, era: Era
) -> list[Superstep]:
    """Return the step that divides the gradient of an average by its windows' elements."""
    if params.kind != "average":
        return []
    pooled = params.batch * params.channels * prod(params.out_field)
    return elementwise_step(
        "mul",
        pooled,
        dtype,
        chip,
        era=era,
        n_inputs=2,
        exchanged_inputs=1,
        name="scale gradient by window",
    )


def _broadcast_gradient(params: PoolParams, dtype: str, chip: ChipLike) -> Superstep:
    """Return the copy of one gradient per channel to the whole field it was averaged over."""
    size = element_bytes(dtype)
    share = linear_share(params.batch * params.channels * prod(params.field), dtype, chip).elements
    values = min(params.batch * params.channels, share)
    return Superstep(
        name="broadcast gradient",
        vertex="copy",
        compute_cycles=0,
        exchange_bytes=values * size,
        on_tile_copy_cycles=copy_cycles(share * size, chip),
    )


def pooled_grouping(
    params: PoolParams,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    backward: bool = False,
    channel_grouping: int = 16,
) -> int:
    """Return how many channels sit together in the result of a pass (see `pool_steps`)."""
    if params.is_global and (params.kind == "average" or not backward):
        return channel_grouping
    plan = plan_pool(
        params, dtype, chip, era=era, backward=backward, channel_grouping=channel_grouping
    )
    return plan.channel_grouping
