"""Losses with their gradient as the series of operations that popnn emits.

Source: poplibs lib/popnn/Loss.cpp (calcLoss) and lib/popops/Encoding.cpp (encodeOneHot), tags
1.0.136 and sdk/poplar/2.4.0; the mean over the rows is one more reduction, which frameworks add.
"""

from __future__ import annotations

from ipusim.compiler.operators.argmax import argmax_steps
from ipusim.compiler.operators.elementwise import elementwise_step, row_step
from ipusim.compiler.operators.layout import cast_steps, fill_steps
from ipusim.compiler.operators.reduce import reduce_steps
from ipusim.compiler.operators.softmax import softmax_steps
from ipusim.compiler.superstep import (
    ChipLike,
    Era,
    Superstep,
    ceil_div,
    element_bytes,
    parse_era,
    require_float,
    require_positive,
    tile_share,
    vector_width,
)
from ipusim.compiler.vertices.training import loss_transform_cycles, one_hot_cycles
from ipusim.errors import unknown_name
from ipusim.workload.operators import CLASS_LOSSES, LOSSES

_MIN_GRAINS_PER_TILE = 4


def loss_steps(
    kind: str,
    rows: int,
    classes: int,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    tiles_used: int | None = None,
    scattered: bool = False,
) -> list[Superstep]:
    """Return the supersteps of a loss, its gradient and the mean over all rows.

    Parameters
    ----------
    kind : str
        "cross_entropy" (softmax included, integer targets), "cross_entropy_accuracy" (which also
        counts the rows that are right), "binary_cross_entropy" (sigmoid included, a target per
        value), "mean_squared", or "identity" of a network that computed the loss itself.
    rows, classes : int
        Rows of predictions and values per row.
    dtype : str
        "float16" or "float32".
    chip : Chip
        The chip.
    era : str or Era
        Generation of poplibs.
    tiles_used : int, optional
        Tiles that hold the predictions; None spreads them linearly.
    scattered : bool, optional
        Whether neighbours of a row lie apart (`argmax`).

    Returns
    -------
    list of Superstep
        For a cross entropy: softmax, the targets one-hot (zero, one vertex, copy to the
        predictions' tiles), loss and gradient per element, the gradient of rows without a label
        masked, the sum per row; for the accuracy the largest prediction of each row, compared with
        the target, and the sum of what is right. For a mean squared error: loss and gradient per
        element with the targets brought to the predictions' tiles, the sum per row; for a binary
        cross entropy the same after a sigmoid, with the vertex that takes logarithms of
        probabilities [inferred: frameworks write it as one fused expression of as many operations].
        For the identity: the sum, and the gradient filled in (PopART popx/op/identitylossx.cpp).

    Raises
    ------
    ConfigError, UnknownNameError
        If an argument is out of range.
    """
    if kind not in LOSSES:
        raise unknown_name("loss", kind, LOSSES)
    require_float(dtype)
    require_positive(rows=rows, classes=classes)
    era = parse_era(era)
    elements = rows * classes
    if kind == "identity":
        return [
            *reduce_steps((elements,), (0,), dtype, chip, era=era, function="add"),
            *fill_steps(elements, dtype, chip, era=era),
        ]
    share = tile_share(elements, dtype, chip, tiles_used)
    tile_bytes = share.elements * element_bytes(dtype)
    steps: list[Superstep] = []
    if kind in CLASS_LOSSES:
        steps += softmax_steps(rows, classes, dtype, chip, era=era, tiles_used=tiles_used)
        steps += _one_hot_steps(rows, classes, dtype, chip, era)
    elif kind == "binary_cross_entropy":
        steps += elementwise_step("sigmoid", elements, dtype, chip, era=era, tiles_used=tiles_used)
    # The loss of every element and the targets; for a cross entropy the probabilities too.
    temporaries = 2 if kind == "mean_squared" else 3
    transform = "mean_squared" if kind == "mean_squared" else "cross_entropy"
    steps.append(
        Superstep(
            name="loss and gradient",
            vertex="popnn::Loss" + ("SumSquared" if kind == "mean_squared" else "CrossEntropy"),
            compute_cycles=loss_transform_cycles(transform, share.elements, dtype, chip),
            exchange_bytes=tile_bytes,
            temp_bytes=temporaries * tile_bytes,
        )
    )
    if kind in CLASS_LOSSES and rows > 1:
        steps += _mask_steps(rows, classes, dtype, chip, era, tiles_used)
    sums = None if tiles_used is None else share.elements
    steps += reduce_steps(
        (rows, classes), (1,), dtype, chip, era=era, function="add", elements_per_tile=sums
    )
    steps += reduce_steps((rows,), (0,), dtype, chip, era=era, function="add")
    if kind == "cross_entropy_accuracy":
        steps += argmax_steps(rows, classes, dtype, chip, scattered=scattered)
        steps += elementwise_step(
            "equal", rows, "float32", chip, era=era, n_inputs=2, name="rows that are right"
        )
        steps += cast_steps(rows, "bool", "float32", chip, era=era)
        steps += reduce_steps((rows,), (0,), "float32", chip, era=era, function="add")
    return steps


def _one_hot_steps(
    rows: int, classes: int, dtype: str, chip: ChipLike, era: Era
) -> list[Superstep]:
    """Return the steps that write the targets as rows of zeros and a one."""
    grain = vector_width(dtype, chip)
    index_grains = ceil_div(ceil_div(rows, grain), chip.tiles)
    groups = ceil_div(ceil_div(rows, grain), index_grains)
    row_parts = max(chip.tiles // groups, 1)
    row_grains = max(ceil_div(ceil_div(classes, grain), row_parts), _MIN_GRAINS_PER_TILE)
    indices = min(rows, index_grains * grain)
    vertices = groups * ceil_div(classes, row_grains * grain)
    per_tile = ceil_div(vertices, chip.tiles)
    zero = fill_steps(rows * classes, dtype, chip, era=era)
    return [
        *zero,
        Superstep(
            name="one-hot targets",
            vertex="popops::EncodeOneHot",
            compute_cycles=per_tile * one_hot_cycles(indices, dtype),
            exchange_bytes=per_tile * indices * element_bytes("int32"),
        ),
    ]


def _mask_steps(
    rows: int, classes: int, dtype: str, chip: ChipLike, era: Era, tiles_used: int | None
) -> list[Superstep]:
    """Return the steps that zero the gradient of rows whose target means none."""
    compare = elementwise_step(
        "equal",
        rows,
        "float32",
        chip,
        era=era,
        n_inputs=2,
        broadcast=True,
        channels=1,
        name="rows with a label",
    )
    return [
        *compare,
        *cast_steps(rows, "bool", dtype, chip, era=era),
        row_step("mask gradient", rows, classes, dtype, chip, era=era, tiles_used=tiles_used),
    ]
