"""Transforms of a convolution before it is split, and the problem vector of each.

References
----------
poplibs ``lib/poplin/ConvPlan.cpp`` (createPlan) and ``ConvModel.cpp`` (applyTransform,
addTransformCycleEstimate).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ipusim.compiler.convolution import record as lay
from ipusim.compiler.convolution.params import ConvParams, Dim
from ipusim.compiler.convolution.shape import ConvShape, PlannerChip, PlannerRules
from ipusim.compiler.vertices.conv import ERA_1_0, ERA_2_4


def transformed_problems(
    shape: ConvShape, chip: PlannerChip, rules: PlannerRules
) -> Iterator[tuple[str, np.ndarray, tuple[Dim, ...]]]:
    """Yield (name, problem vector, spatial dimensions) of every transform worth trying.

    Notes
    -----
    The name lists, in order: "swap" for exchanged operands (of a product: for those that poplibs
    does not exchange), "expand" and the dimensions whose kernel moves into the input channels,
    "flatten" and those whose output moves into the output channels, "combine" and the number of
    groups merged; "none" if nothing of the kind is done.
    """
    whole = ConvParams.of(shape).without_dilation()
    for swap in (False, True):
        turned = whole.swapped() if swap else whole
        for expand in _subsets(_expandable(turned)):
            expanded = turned.expanded(expand)
            for flatten in _subsets(_flattenable(expanded)):
                flattened, free = expanded.outputs_flattened(flatten).flattened()
                moved = (*expand, *flatten, *free)
                for factor in (1, *_combine_factors(shape, flattened)):
                    parts = {"swap": swap, "expand": expand, "flatten": flatten}
                    problem = _problem(
                        shape,
                        turned,
                        flattened.combined(factor),
                        chip,
                        rules,
                        moved=moved,
                        copies=_copies(shape, rules, swap, bool(expand), bool(flatten), factor > 1),
                    )
                    yield _name(parts, factor), problem, flattened.dims


def defers_dilation(shape: ConvShape) -> bool:
    """Whether zeros are spread through the output instead of the input (getDilatePostConvDims)."""
    return any(dim.defers_dilation for dim in ConvParams.of(shape).dims)


def _subsets(dims: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for count in range(len(dims) + 1):
        yield from itertools.combinations(dims, count)


def _name(parts: dict[str, object], factor: int) -> str:
    words = ["swap"] if parts["swap"] else []
    for key in ("expand", "flatten"):
        if parts[key]:
            words.append(f"{key} {''.join(str(d) for d in parts[key])}")
    if factor > 1:
        words.append(f"combine {factor}")
    return ", ".join(words) or "none"


def _expandable(params: ConvParams) -> tuple[int, ...]:
    """Dimensions whose kernel may move into the input channels (getExpandDimsCandidates)."""
    return tuple(
        d
        for d, dim in enumerate(params.dims)
        if dim.expanding_matters and dim.data.size >= dim.kernel.size
    )


def _flattenable(params: ConvParams) -> tuple[int, ...]:
    """Dimensions whose output may move into the channels (getOutChanFlattenDimsCandidates)."""
    return tuple(
        d for d, dim in enumerate(params.dims) if dim.out > 1 and dim.data.size <= dim.kernel.size
    )


def _combine_factors(shape: ConvShape, params: ConvParams) -> list[int]:
    """Factors by which narrow groups are merged (getCombineConvGroupCandidates)."""
    narrow = (1,) if shape.in_bytes == 4 else (1, 2)
    if params.groups == 1 or params.in_channels not in narrow:
        return []
    load, most = (2, 8) if shape.in_bytes == 4 else (4, 16)
    factors = []
    factor = load // params.in_channels
    while factor <= most // params.in_channels:
        factors.append(factor)
        factor *= 2
    return factors


def _copies(
    shape: ConvShape,
    rules: PlannerRules,
    swap: bool,
    expand: bool,
    flatten: bool,
    combine: bool,
) -> tuple[bool, bool, bool]:
    """Say which of input, weights and output are rearranged for a transform, whatever the vertex.

    Tag 1.0.136 did not count the merging of groups.
    """
    update = shape.kind == "conv_weight_gradient"
    combine = combine and rules.era != ERA_1_0
    # ConvShape has products with their operands exchanged already.
    swap_out = swap != update
    gradient = shape.kind in ("fc_data_gradient", "fc_weight_gradient")
    return (
        update or expand or swap or combine or gradient,
        update or expand or flatten or swap or combine,
        swap_out or flatten or combine or shape.kind == "fc_weight_gradient",
    )


def _problem(
    shape: ConvShape,
    turned: ConvParams,
    params: ConvParams,
    chip: PlannerChip,
    rules: PlannerRules,
    *,
    moved: tuple[int, ...],
    copies: tuple[bool, bool, bool],
) -> np.ndarray:
    """Build the problem vector of transformed parameters.

    `turned` are the parameters after an exchange of operands, before anything else; `moved` the
    dimensions that were expanded or flattened; `copies` as `_copies` gives them.
    """
    dims = params.dims
    problem = np.zeros(lay.PROBLEM_SIZE, np.int64)
    problem[lay.GROUPS] = params.groups
    problem[lay.BATCH] = params.batch
    problem[lay.IN_CHANS] = params.in_channels
    problem[lay.OUT_CHANS] = params.out_channels
    problem[lay.DIMS] = len(dims)
    plain = True
    simple_windows = True
    for d, dim in enumerate(dims):
        inputs, _, _, covered = dim.uses()
        problem[lay.OUT_FIELD + d] = dim.out
        problem[lay.KERNEL + d] = dim.kernel.size
        problem[lay.WHOLE_IN + d] = inputs[1] - inputs[0]
        problem[lay.STRIDE + d] = dim.stride
        problem[lay.IN_DILATION + d] = dim.data.dilation
        problem[lay.KERNEL_DILATION + d] = dim.kernel.dilation
        problem[lay.TRANSFORMED + d] = d in moved
        problem[lay.COVERED + d] = covered
        problem[lay.PADDING + d] = dim.data.pad_low + dim.data.pad_high
        problem[lay.IN_FIELD + d] = dim.data.size
        turned_kernel = dim.kernel.flip or dim.kernel.pad_low or dim.kernel.pad_high
        if dim.data.flip or turned_kernel or dim.kernel.dilation != 1:
            simple_windows = False
        cut_output = dim.cut_low or dim.cut_high or dim.pad_low or dim.pad_high
        if cut_output or dim.stride != 1 or dim.data.dilation != 1 or dim.data.flip:
            plain = False
    problem[lay.SLIC_ALLOWED] = simple_windows and dims[-1].stride <= 2
    problem[lay.OUTER_ALLOWED] = plain
    problem[lay.IN_BYTES] = shape.in_bytes
    problem[lay.OUT_BYTES] = shape.out_bytes
    problem[lay.INTER_TILE_BYTES] = rules.partials_bytes
    problem[lay.FULLY_CONNECTED] = shape.kind.startswith("fc_")
    problem[lay.COPY_INPUT], problem[lay.COPY_WEIGHTS], problem[lay.COPY_OUTPUT] = copies
    problem[lay.REGROUP_WEIGHTS] = shape.kind == "conv_forward"
    problem[lay.ERA] = rules.era
    problem[lay.TILES] = chip.tiles
    problem[lay.EXCHANGE_BYTES] = chip.exchange_bytes
    problem[lay.TILES_PER_BUS] = chip.tiles_per_bus
    problem[lay.MEMCPY_BYTES] = chip.memcpy_bytes
    problem[lay.IN_SERIAL_ALLOWED] = rules.era != ERA_1_0
    problem[lay.VIEW_OUT_CHANS] = turned.out_channels
    problem[lay.VIEW_IN_CHANS] = turned.in_channels
    problem[lay.BROADCAST_ALLOWED] = rules.era >= ERA_2_4
    problem[lay.SINGLE_INPUT_BYTES] = -1 if rules.era == ERA_1_0 else chip.single_input_bytes
    problem[lay.WEIGHTS_PER_UNIT] = 16 if shape.in_bytes == 2 else 8
    problem[lay.UNITS_ON_CHIP] = chip.units(shape.in_bytes, rules.partials_bytes)
    problem[lay.ORIGINAL_IN_CHANS] = shape.in_channels
    problem[lay.ORIGINAL_OUT_CHANS] = shape.out_channels
    return problem
