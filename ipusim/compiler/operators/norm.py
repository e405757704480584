"""Normalisation layers as the series of operations that poplin and popnn emit.

Sources: poplibs lib/poplin/Norms.cpp (statistics, whitening, scale and bias),
lib/popnn/BatchNorm.cpp, lib/popnn/GroupNorm.cpp and lib/popnn/NormsInternal.cpp, tags 1.0.136 and
sdk/poplar/2.4.0. Both generations emit the same operations for inference; the statistics of later
ones run in the same compute sets (reduceMany).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod

from ipusim.compiler.operators.elementwise import (
    DEFAULT_CHANNEL_GROUPING,
    channel_step,
    elementwise_step,
    row_step,
)
from ipusim.compiler.operators.reduce import reduce_steps
from ipusim.compiler.superstep import (
    ChipLike,
    Era,
    Superstep,
    ceil_div,
    element_bytes,
    linear_share,
    parse_era,
    require_float,
    require_positive,
    tile_share,
    vector_width,
)
from ipusim.errors import ConfigError, unknown_name

NORM_KINDS = ("batch", "layer", "group", "instance")


def statistics_count(kind: str, batch: int, channels: int, groups: int) -> int:
    """Return how many means a normalisation computes, after a check of its sizes.

    Parameters
    ----------
    kind : str
        One of `NORM_KINDS`.
    batch, channels, groups : int
        Batch size (tokens for layer norm), channels, and channel groups of group norm.

    Raises
    ------
    ConfigError, UnknownNameError
        If an argument is out of range.
    """
    if kind not in NORM_KINDS:
        raise unknown_name("normalisation", kind, NORM_KINDS)
    require_positive(batch=batch, channels=channels, groups=groups)
    if channels % groups:
        raise ConfigError(
            f"{groups} groups do not divide {channels} channels: give a divisor of {channels}."
        )
    per_kind = {
        "batch": channels,
        "layer": batch,
        "group": batch * groups,
        "instance": batch * channels,
    }
    return per_kind[kind]


def batch_norm_steps(
    elements: int,
    channels: int,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    channel_grouping: int = DEFAULT_CHANNEL_GROUPING,
    tiles_used: int | None = None,
) -> list[Superstep]:
    """Return the supersteps of inference batch norm that is not folded into a convolution.

    Parameters
    ----------
    elements, channels : int
        Elements and channels of the activations.
    dtype : str
        "float16" or "float32".
    chip : Chip
        The chip.
    era : str or Era
        Generation of poplibs.
    channel_grouping : int, optional
        Channels that sit together in memory.
    tiles_used : int, optional
        Tiles that hold the activations; None spreads them linearly.

    Returns
    -------
    list of Superstep
        Three small steps join the parameters (inverse deviation, scale, offset), two passes over
        the activations apply them (popnn::bn::batchNormalise with a combined multiplicand and
        addend).

    Raises
    ------
    ConfigError, UnknownNameError
        If a size or type is out of range.
    """
    require_float(dtype)
    require_positive(elements=elements, channels=channels)
    era = parse_era(era)

    def tiny(function: str, name: str, n_inputs: int = 2, broadcast: bool = False) -> Superstep:
        return elementwise_step(
            function,
            channels,
            dtype,
            chip,
            era=era,
            n_inputs=n_inputs,
            broadcast=broadcast,
            channels=1 if broadcast else None,
            name=f"batch norm, {name}",
        )[0]

    full = partial(
        channel_step,
        elements=elements,
        channels=channels,
        dtype=dtype,
        chip=chip,
        era=era,
        channel_grouping=channel_grouping,
        tiles_used=tiles_used,
    )
    return [
        tiny("variance_to_inv_std_dev", "inverse deviation", broadcast=True),
        tiny("mul", "multiplicand"),
        _fused_offset(channels, dtype, chip, era),
        full("mul", name="batch norm, scale", in_place=False),
        full("add", name="batch norm, offset", in_place=True),
    ]


def _fused_offset(channels: int, dtype: str, chip: ChipLike, era: Era) -> Superstep:
    """Return the step ``bias - multiplicand * mean``: one generated vertex (popops::map).

    A generated codelet loads three operands and stores one per vector, which is the loop of a
    two-operand vertex plus one load and one operation.
    """
    base = elementwise_step("sub", channels, dtype, chip, era=era, n_inputs=2)[0]
    share = linear_share(channels, dtype, chip)
    vectors = ceil_div(ceil_div(share.elements, chip.workers), vector_width(dtype, chip))
    return Superstep(
        name="batch norm, addend",
        vertex="popops::map (generated)",
        compute_cycles=base.compute_cycles + 2 * chip.workers * vectors,
    )


def _inverse_deviation(statistics: int, dtype: str, chip: ChipLike) -> Superstep:
    """Return the step from mean and mean square to the inverse standard deviation.

    Source: poplin InverseStdDeviation: workers, 4 cycles per region and 5 per pair of floats.
    """
    share = linear_share(statistics, dtype, chip)
    pairs = ceil_div(ceil_div(share.elements, chip.workers), 2)
    return Superstep(
        name="inverse deviation",
        vertex="poplin::InverseStdDeviation",
        compute_cycles=chip.workers * (10 + 5 * pairs),
    )


def _merge(first: list[Superstep], second: list[Superstep]) -> list[Superstep]:
    """Run two series of steps in the same compute sets: their costs add up step by step."""
    merged = []
    for index in range(max(len(first), len(second))):
        pair = [steps[index] for steps in (first, second) if index < len(steps)]
        merged.append(
            Superstep(
                name=pair[0].name,
                vertex=pair[0].vertex,
                compute_cycles=sum(step.compute_cycles for step in pair),
                exchange_bytes=sum(step.exchange_bytes for step in pair),
                on_tile_copy_cycles=sum(step.on_tile_copy_cycles for step in pair),
                temp_bytes=sum(step.temp_bytes for step in pair),
            )
        )
    return merged


def norm_steps(
    kind: str,
    batch: int,
    channels: int,
    spatial: tuple[int, ...],
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    groups: int = 1,
    training: bool = False,
    stable: bool = False,
    channel_grouping: int = DEFAULT_CHANNEL_GROUPING,
    tiles_used: int | None = None,
) -> list[Superstep]:
    """Return the supersteps of a normalisation layer's forward pass.

    Parameters
    ----------
    kind : str
        "batch", "layer", "group" or "instance".
    batch, channels : int
        Batch size (tokens for layer norm) and channels.
    spatial : tuple of int
        Field; empty for layer norm over features.
    dtype : str
        "float16" or "float32".
    chip : Chip
        The chip.
    era : str or Era
        Generation of poplibs.
    groups : int, optional
        Channel groups of group norm.
    training : bool, optional
        Whether batch norm computes its statistics; the others always do.
    stable : bool, optional
        Whether the mean is subtracted before squares are summed (normStatisticsImpl, stableAlgo):
        one more pass, and sums one after the other. Not for batch norm.
    channel_grouping : int, optional
        Channels that sit together in memory.
    tiles_used : int, optional
        Tiles that hold the activations.

    Returns
    -------
    list of Superstep

    Raises
    ------
    ConfigError, UnknownNameError
        If an argument is out of range.
    """
    statistics = statistics_count(kind, batch, channels, groups)
    require_float(dtype)
    era = parse_era(era)
    field = prod(spatial)
    elements = batch * channels * field
    per_channel = {
        "channels": channels,
        "channel_grouping": channel_grouping,
        "tiles_used": tiles_used,
    }
    if kind == "batch" and not training:
        return batch_norm_steps(elements, dtype=dtype, chip=chip, era=era, **per_channel)
    if kind == "batch":
        grouping = channel_grouping if channels % channel_grouping == 0 else 1
        shape = (channels // grouping, batch * field, grouping)
    else:
        shape = (statistics, elements // statistics)
    mean = reduce_steps(shape, (1,), dtype, chip, era=era, function="add")
    power = reduce_steps(
        shape, (1,), dtype, chip, era=era, function="square_add", out_dtype="float32"
    )

    def by_row(name: str) -> Superstep:
        return row_step(name, *shape, dtype, chip, era=era, tiles_used=tiles_used)

    if stable and kind != "batch":
        removed = by_row("remove mean")
        held = tile_share(elements, dtype, chip, tiles_used).elements * element_bytes(dtype)
        centred = [replace(step, temp_bytes=step.temp_bytes + held) for step in (removed, *power)]
        steps = [*mean, *centred]
    else:
        steps = _merge(mean, power)
    steps.append(_inverse_deviation(statistics, dtype, chip))
    if kind == "batch":
        # Frameworks join the parameters first, as in inference (graphcore/tensorflow
        # driver/ops/norm_ops.cc, BatchNormalise; graphcore/popart nn/batchnormx.cpp): two passes
        # over the activations instead of four. The deviation is there already.
        joined = batch_norm_steps(elements, dtype=dtype, chip=chip, era=era, **per_channel)
        return steps + joined[1:]

    scaled = partial(
        channel_step, elements=elements, dtype=dtype, chip=chip, era=era, **per_channel
    )
    for name in ("subtract mean", "scale to unit variance"):
        steps.append(by_row(name))
    steps.append(scaled("mul", name="scale", in_place=False))
    # The whitened activations are a tensor of their own until they are scaled.
    whitened = tile_share(elements, dtype, chip, tiles_used).elements * element_bytes(dtype)
    steps = [replace(step, temp_bytes=step.temp_bytes + whitened) for step in steps]
    steps.append(scaled("add", name="offset", in_place=True))
    return steps
