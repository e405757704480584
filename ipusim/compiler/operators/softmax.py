"""Softmax as the series of operations that popnn emits.

Source: poplibs lib/popnn/NonLinearity.cpp, softmaxImpl; the same at tags 1.0.136 and
sdk/poplar/2.4.0 (frameworks ask for the stable form).
"""

from __future__ import annotations

from dataclasses import replace

from ipusim.compiler.operators.elementwise import elementwise_step, row_step
from ipusim.compiler.operators.layout import cast_steps
from ipusim.compiler.operators.reduce import reduce_steps
from ipusim.compiler.superstep import (
    ChipLike,
    Era,
    Superstep,
    element_bytes,
    parse_era,
    require_float,
    require_positive,
    tile_share,
)


def softmax_steps(
    outer: int,
    length: int,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    stable: bool = True,
    scaled: bool = False,
    in_place: bool = False,
    tiles_used: int | None = None,
) -> list[Superstep]:
    """Return the supersteps of a softmax over the innermost dimension.

    Parameters
    ----------
    outer, length : int
        Number of rows and elements per row.
    dtype : str
        "float16" or "float32".
    chip : Chip
        The chip.
    era : str or Era
        Generation of poplibs.
    stable : bool, optional
        Whether the row's maximum is subtracted first.
    scaled : bool, optional
        Whether half results are scaled up to keep their precision.
    in_place : bool, optional
        Whether the input is overwritten.
    tiles_used : int, optional
        Tiles that hold the input; None spreads it linearly.

    Returns
    -------
    list of Superstep

    Raises
    ------
    ConfigError, UnknownNameError
        If a size or type is out of range.
    """
    require_float(dtype)
    require_positive(outer=outer, length=length)
    era = parse_era(era)
    elements = outer * length
    share = tile_share(elements, dtype, chip, tiles_used)

    def with_row_value(name: str) -> Superstep:
        return row_step(
            f"softmax, {name}", outer, length, dtype, chip, era=era, tiles_used=tiles_used
        )

    steps: list[Superstep] = []
    overwrite = in_place
    reduce_layout = None if tiles_used is None else share.elements
    if stable:
        steps += reduce_steps(
            (outer, length),
            (1,),
            dtype,
            chip,
            era=era,
            function="max",
            elements_per_tile=reduce_layout,
        )
        steps.append(with_row_value("subtract maximum"))
        overwrite = True
        if scaled:
            steps += elementwise_step(
                "add",
                elements,
                dtype,
                chip,
                era=era,
                n_inputs=2,
                broadcast=True,
                channels=1,
                in_place=True,
                tiles_used=tiles_used,
                name="softmax, add scale",
            )
    steps += elementwise_step(
        "exp",
        elements,
        dtype,
        chip,
        era=era,
        in_place=overwrite,
        tiles_used=tiles_used,
        name="softmax, exp",
    )
    steps += reduce_steps(
        (outer, length),
        (1,),
        dtype,
        chip,
        era=era,
        function="add",
        out_dtype="float32",
        elements_per_tile=reduce_layout,
    )
    steps += elementwise_step(
        "inverse", outer, "float32", chip, era=era, in_place=True, name="softmax, 1 / sum"
    )
    if scaled:
        steps += elementwise_step(
            "mul",
            outer,
            "float32",
            chip,
            era=era,
            n_inputs=2,
            broadcast=True,
            channels=1,
            in_place=True,
            name="softmax, scale sum",
        )
    steps += cast_steps(outer, "float32", dtype, chip, era=era)
    steps.append(with_row_value("divide by sum"))
    return steps


def softmax_gradient_steps(
    outer: int,
    length: int,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    log: bool = False,
    exchanged_gradient: bool = True,
    tiles_used: int | None = None,
) -> list[Superstep]:
    """Return the supersteps of the gradient of a softmax over the innermost dimension.

    Parameters
    ----------
    outer, length : int
        Number of rows and elements per row.
    dtype : str
        "float16" or "float32".
    chip : Chip
        The chip.
    era : str or Era
        Generation of poplibs.
    log : bool, optional
        Whether the result was the logarithm: the gradient less exp(y) times its row sum.
    exchanged_gradient : bool, optional
        Whether the incoming gradient lies on other tiles than the result of the forward pass.
    tiles_used : int, optional
        Tiles that hold the result of the forward pass; None spreads it linearly.

    Returns
    -------
    list of Superstep
        y g, its row sum, y times that, and their difference in place (popnn NonLinearity.cpp,
        softmaxInputGradientImpl).

    Raises
    ------
    ConfigError, UnknownNameError
        If a size or type is out of range.
    """
    require_float(dtype)
    require_positive(outer=outer, length=length)
    era = parse_era(era)
    elements = outer * length
    share = tile_share(elements, dtype, chip, tiles_used)
    tile_bytes = share.elements * element_bytes(dtype)
    common = {"era": era, "tiles_used": tiles_used}
    if log:
        first = elementwise_step(
            "exp", elements, dtype, chip, name="softmax gradient, exp", **common
        )
    else:
        first = elementwise_step(
            "mul",
            elements,
            dtype,
            chip,
            n_inputs=2,
            exchanged_inputs=int(exchanged_gradient),
            name="softmax gradient, result times gradient",
            **common,
        )
    total = reduce_steps(
        (outer, length),
        (1,),
        dtype,
        chip,
        era=era,
        function="add",
        elements_per_tile=None if tiles_used is None else share.elements,
    )
    by_row = row_step("softmax gradient, times row sum", outer, length, dtype, chip, **common)
    difference = elementwise_step(
        "sub",
        elements,
        dtype,
        chip,
        n_inputs=2,
        in_place=True,
        exchanged_inputs=int(log and exchanged_gradient),
        name="softmax gradient, subtract",
        **common,
    )
    # The product with the row sum is a tensor of its own until the difference is taken.
    return [
        *first,
        *total,
        replace(by_row, temp_bytes=tile_bytes),
        *(replace(step, temp_bytes=tile_bytes) for step in difference),
    ]
