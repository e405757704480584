"""Transforms of a convolution before it is split, and the problem vector of each.

References
----------
poplibs ``lib/poplin/ConvPlan.cpp`` (createPlan) and ``ConvTransforms.cpp``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ipusim.compiler import conv_layout as lay
from ipusim.compiler.conv_shape import ConvShape, PlannerChip, PlannerRules
from ipusim.compiler.conv_vertices import ERA_1_0, ERA_2_4


def transformed_problems(
    shape: ConvShape, chip: PlannerChip, rules: PlannerRules
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (transform name, problem vector) for every transform worth trying, best first."""
    if shape.kind != "conv":
        swapped = replace(shape, batch=shape.out_channels, out_channels=shape.batch)
        yield "none", _problem(shape, chip, rules, copy_all=False, expand=())
        yield "swap", _problem(swapped, chip, rules, copy_all=True, expand=())
        return
    dims = range(len(shape.field))
    foldable = [
        d
        for d in dims
        if shape.field[d] >= shape.kernel[d]
        and (
            shape.kernel[d] > 1
            or shape.stride[d] > 1
            or shape.in_dilation[d] > 1
            or shape.padding_lower[d]
            or shape.padding_upper[d]
        )
    ]
    for count in range(len(foldable) + 1):
        for expand in itertools.combinations(foldable, count):
            name = "expand " + "".join(str(d) for d in expand) if expand else "none"
            yield name, _problem(shape, chip, rules, copy_all=False, expand=expand)
    for factor in _combine_factors(shape):
        merged = replace(
            shape,
            groups=math.ceil(shape.groups / factor),
            in_channels=shape.in_channels * factor,
            out_channels=shape.out_channels * factor,
        )
        yield (
            f"combine {factor}",
            _problem(merged, chip, rules, copy_all=rules.era != ERA_1_0, expand=()),
        )
    if shape.pointwise:
        # Operands swapped and the field flattened into output channels: the transposed product.
        positions = shape.batch * math.prod(shape.field)
        transposed = replace(
            shape,
            kind="matmul",
            batch=shape.out_channels,
            out_channels=positions,
            field=(1,),
            kernel=(1,),
            stride=(1,),
            padding_lower=(0,),
            padding_upper=(0,),
            in_dilation=(1,),
            kernel_dilation=(1,),
        )
        yield "swap", _problem(transposed, chip, rules, copy_all=True, expand=())


def _combine_factors(shape: ConvShape) -> list[int]:
    """Factors by which narrow groups are merged (getCombineConvGroupCandidates)."""
    narrow = (1,) if shape.in_bytes == 4 else (1, 2)
    if shape.groups == 1 or shape.in_channels not in narrow:
        return []
    load, most = (2, 8) if shape.in_bytes == 4 else (4, 16)
    factors = []
    factor = load // shape.in_channels
    while factor <= most // shape.in_channels:
        factors.append(factor)
        factor *= 2
    return factors


def _problem(
    shape: ConvShape,
    chip: PlannerChip,
    rules: PlannerRules,
    *,
    copy_all: bool,
    expand: tuple[int, ...],
) -> np.ndarray:
    """Build the problem vector: dimensions expanded, then batch and free dimensions flattened."""
    lead = max(0, 2 - len(shape.field))
    out = [1] * lead + list(shape.out_field)
    kernel = [1] * lead + list(shape.kernel)
    field = [1] * lead + list(shape.field)
    stride = [1] * lead + list(shape.stride)
    dilation = [1] * lead + list(shape.in_dilation)
    spread = [1] * lead + list(shape.kernel_dilation)
    low = [0] * lead + list(shape.padding_lower)
    high = [0] * lead + list(shape.padding_upper)
    in_channels = shape.in_channels
    batch = shape.batch
    transformed = [False] * len(out)
    for d in expand:
        d += lead
        in_channels *= kernel[d]
        field[d] = out[d]
        kernel[d] = stride[d] = dilation[d] = spread[d] = 1
        low[d] = high[d] = 0
        transformed[d] = True
    flat = [
        d
        for d in range(len(out))
        if kernel[d] == stride[d] == dilation[d] == 1 and low[d] == high[d] == 0
    ]
    if flat:
        inner = flat[-1]
        for d in flat[:-1]:
            out[inner] *= out[d]
            field[inner] *= field[d]
            out[d] = field[d] = 1
        out[inner] *= batch
        field[inner] *= batch
        batch = 1
        for d in flat:
            transformed[d] = True
    problem = np.zeros(lay.PROBLEM_SIZE, np.int64)
    problem[lay.GROUPS] = shape.groups
    problem[lay.BATCH] = batch
    problem[lay.IN_CHANS] = in_channels
    problem[lay.OUT_CHANS] = shape.out_channels
    problem[lay.DIMS] = len(out)
    for d in range(len(out)):
        reach = (out[d] - 1) * stride[d] + (kernel[d] - 1) * spread[d] - low[d]
        problem[lay.OUT_FIELD + d] = out[d]
        problem[lay.KERNEL + d] = kernel[d]
        problem[lay.WHOLE_IN + d] = min(field[d] - 1, reach // dilation[d]) + 1
        problem[lay.STRIDE + d] = stride[d]
        problem[lay.IN_DILATION + d] = dilation[d]
        problem[lay.KERNEL_DILATION + d] = spread[d]
        problem[lay.TRANSFORMED + d] = transformed[d]
        problem[lay.PADDED + d] = bool(low[d] or high[d])
        problem[lay.PADDING + d] = low[d] + high[d]
        problem[lay.IN_FIELD + d] = field[d]
    problem[lay.IN_BYTES] = shape.in_bytes
    problem[lay.OUT_BYTES] = shape.out_bytes
    problem[lay.INTER_TILE_BYTES] = rules.partials_bytes
    problem[lay.FULLY_CONNECTED] = shape.kind.startswith("fc_")
    problem[lay.COPY_INPUT] = copy_all or bool(expand)
    problem[lay.COPY_WEIGHTS] = copy_all or bool(expand)
    problem[lay.COPY_OUTPUT] = copy_all
    problem[lay.ERA] = rules.era
    problem[lay.TILES] = chip.tiles
    problem[lay.EXCHANGE_BYTES] = chip.exchange_bytes
    problem[lay.TILES_PER_BUS] = chip.tiles_per_bus
    problem[lay.MEMCPY_BYTES] = chip.memcpy_bytes
    problem[lay.IN_SERIAL_ALLOWED] = rules.era != ERA_1_0
    problem[lay.VIEW_OUT_CHANS] = shape.out_channels
    problem[lay.VIEW_IN_CHANS] = shape.in_channels
    problem[lay.BROADCAST_ALLOWED] = rules.era >= ERA_2_4
    problem[lay.SINGLE_INPUT_BYTES] = -1 if rules.era == ERA_1_0 else chip.single_input_bytes
    problem[lay.WEIGHTS_PER_UNIT] = 16 if shape.in_bytes == 2 else 8
    problem[lay.UNITS_ON_CHIP] = chip.units(shape.in_bytes, rules.partials_bytes)
    problem[lay.ORIGINAL_IN_CHANS] = shape.in_channels
    problem[lay.ORIGINAL_OUT_CHANS] = shape.out_channels
    return problem
