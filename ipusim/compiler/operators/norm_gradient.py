"""Gradients of normalisation layers as the series of operations that poplin and popnn emit.

Sources: poplibs lib/poplin/Norms.cpp (normWhiten, normParamGradients, normGradients,
normStatisticsGradients), lib/popnn/BatchNorm.cpp and lib/popnn/GroupNorm.cpp, tag
sdk/poplar/2.4.0. The forward pass keeps the mean and the deviation only: the activations are
whitened again, once for both gradients. Products of batch norm across replicas (its two all-reduced
vectors) belong to the step, not to the chip.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ipusim.compiler.operators.elementwise import (
    DEFAULT_CHANNEL_GROUPING,
    channel_step,
    elementwise_step,
    row_step,
    scaled_add_steps,
)
from ipusim.compiler.operators.layout import rearrange_steps
from ipusim.compiler.operators.norm import statistics_count
from ipusim.compiler.operators.reduce import reduce_steps
from ipusim.compiler.superstep import (
    ChipLike,
    Era,
    Superstep,
    element_bytes,
    parse_era,
    require_float,
    tile_share,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Activations:
    """The tensor that is normalised, and how its statistics relate to it."""

    kind: str
    elements: int
    channels: int
    statistics: int
    dtype: str
    chip: ChipLike
    era: Era
    channel_grouping: int
    tiles_used: int | None

    @property
    def tile_bytes(self) -> int:
        """Bytes on the fullest tile."""
        share = tile_share(self.elements, self.dtype, self.chip, self.tiles_used)
        return share.elements * element_bytes(self.dtype)

    def full(self, function: str, name: str, *, in_place: bool) -> Superstep:
        """Return the step that combines two tensors of this shape."""
        return elementwise_step(
            function,
            self.elements,
            self.dtype,
            self.chip,
            era=self.era,
            n_inputs=2,
            in_place=in_place,
            tiles_used=self.tiles_used,
            name=name,
        )[0]

    def by_channel(self, function: str, name: str, *, in_place: bool) -> Superstep:
        """Return the step that combines it with one value per channel."""
        return channel_step(
            function,
            self.elements,
            self.channels,
            self.dtype,
            self.chip,
            era=self.era,
            name=name,
            in_place=in_place,
            channel_grouping=self.channel_grouping,
            tiles_used=self.tiles_used,
        )

    def by_statistic(self, function: str, name: str, *, in_place: bool) -> Superstep:
        """Return the step that combines it with one value per mean."""
        if self.kind == "batch":
            return self.by_channel(function, name, in_place=in_place)
        rows = (self.statistics, self.elements // self.statistics)
        return row_step(
            name, *rows, self.dtype, self.chip, era=self.era, tiles_used=self.tiles_used
        )

    def joint_sums(self, name: str, *, per_channel: bool) -> list[Superstep]:
        """Return the reduction of two such tensors at once, to two values per channel or mean."""
        if per_channel:
            divides = self.channels % self.channel_grouping == 0
            grouping = self.channel_grouping if divides else 1
            groups = self.channels // grouping
            shape = (2 * groups, self.elements // self.channels, grouping)
        else:
            shape = (2 * self.statistics, self.elements // self.statistics)
        steps = reduce_steps(shape, (1,), self.dtype, self.chip, era=self.era, function="add")
        return [replace(step, name=f"{name}, {step.name}") for step in steps]


def norm_gradient_steps(
    kind: str,
    batch: int,
    channels: int,
    spatial: tuple[int, ...],
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    groups: int = 1,
    channel_grouping: int = DEFAULT_CHANNEL_GROUPING,
    gradient_grouping: int | None = None,
    exchanged_gradient: bool = True,
    tiles_used: int | None = None,
) -> list[Superstep]:
    """Return the supersteps of a normalisation layer's gradients: data, scale and offset.

    Parameters
    ----------
    kind : str
        "batch" (with statistics of its own batch), "layer", "group" or "instance".
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
    channel_grouping, gradient_grouping : int, optional
        Channels that sit together in the activations and in the incoming gradient (the same).
    exchanged_gradient : bool, optional
        Whether the incoming gradient lies on other tiles than the activations.
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
    acts = _Activations(
        kind=kind,
        elements=batch * channels * prod(spatial),
        channels=channels,
        statistics=statistics,
        dtype=dtype,
        chip=chip,
        era=parse_era(era),
        channel_grouping=channel_grouping,
        tiles_used=tiles_used,
    )
    steps = _arrival(acts, gradient_grouping or channel_grouping, exchanged=exchanged_gradient)
    whitened = acts.tile_bytes
    if kind == "batch":
        steps += elementwise_step(
            "variance_to_inv_std_dev",
            channels,
            dtype,
            chip,
            era=acts.era,
            n_inputs=2,
            broadcast=True,
            channels=1,
            name="inverse deviation",
        )
    steps.append(acts.by_statistic("sub", "whiten, subtract mean", in_place=False))
    steps.append(acts.by_statistic("mul", "whiten, scale to unit variance", in_place=True))
    # Gradients of scale and offset.
    steps.append(acts.full("mul", "whitened times gradient", in_place=False))
    steps += acts.joint_sums("scale and offset gradient", per_channel=True)
    # Gradient of the data.
    steps.append(acts.by_channel("mul", "gradient times scale", in_place=False))
    steps.append(acts.full("mul", "whitened times scaled gradient", in_place=False))
    steps += acts.joint_sums("statistics gradient", per_channel=kind == "batch")
    steps.append(_copy_of_gradient(acts))
    steps.append(acts.by_statistic("mul", "whitened times variance gradient", in_place=False))
    steps += elementwise_step(
        "mul",
        statistics,
        dtype,
        chip,
        era=acts.era,
        n_inputs=2,
        broadcast=True,
        channels=1,
        in_place=True,
        name="scale mean gradient",
    )
    steps.append(acts.by_statistic("add", "add mean gradient", in_place=True))
    steps += scaled_add_steps(acts.elements, dtype, chip, era=acts.era, tiles_used=tiles_used)
    steps.append(acts.by_statistic("mul", "scale by inverse deviation", in_place=True))
    return _with_temporaries(steps, whitened)


def _arrival(acts: _Activations, gradient_grouping: int, *, exchanged: bool) -> list[Superstep]:
    """Return the steps that bring the incoming gradient into the layout of the activations."""
    if not exchanged:
        return []
    return rearrange_steps(
        acts.elements,
        acts.dtype,
        acts.chip,
        from_grouping=gradient_grouping,
        to_grouping=acts.channel_grouping,
        tiles_used=acts.tiles_used,
    )


def _copy_of_gradient(acts: _Activations) -> Superstep:
    """Return the step that copies the scaled gradient, which is then worked on in place."""
    return Superstep(
        name="copy gradient",
        vertex="copy",
        compute_cycles=0,
        on_tile_copy_cycles=-(-acts.tile_bytes // acts.chip.memcpy_bytes_per_cycle),
    )


def _with_temporaries(steps: list[Superstep], tile_bytes: int) -> list[Superstep]:
    """Charge what lives beside inputs and result: the whitened data and one product.

    At the peak there are the whitened data, the scaled gradient and a product of both, but not
    yet the result, whose place the scaled gradient takes in the reckoning.
    """
    return [replace(step, temp_bytes=step.temp_bytes + 2 * tile_bytes) for step in steps]
