"""Supersteps of gradients of elementwise functions, and of dropout, over the whole chip.

Sources: poplibs lib/popnn/NonLinearity.cpp (nonLinearityInputGradient), lib/popops/ElementWise.cpp
(map) and lib/poprand/RandomGen.cpp (dropout), tag sdk/poplar/2.4.0.
"""

from __future__ import annotations

from ipusim.compiler.operators.elementwise_functions import Expression
from ipusim.compiler.superstep import ChipLike, Era, Superstep, parse_era, tile_share
from ipusim.compiler.vertices.training import (
    dropout_cycles,
    generated_cycles,
    non_linearity_grad_cycles,
    set_seed_cycles,
    slow_operator_cycles,
)


def non_linearity_gradient_steps(
    function: str,
    elements: int,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    tiles_used: int | None = None,
) -> list[Superstep]:
    """Return the supersteps of the gradient of a non-linearity (popnn NonLinearityGrad1D).

    Raises
    ------
    UnknownNameError
        If the gradient has no vertex in that generation of the library.
    """
    era = parse_era(era)
    share = tile_share(elements, dtype, chip, tiles_used)
    cycles = non_linearity_grad_cycles(
        function, share.elements, dtype, chip, generation=era.estimator
    )
    return [
        Superstep(
            name=f"{function} gradient", vertex="popnn::NonLinearityGrad1D", compute_cycles=cycles
        )
    ]


def generated_steps(
    name: str,
    elements: int,
    expression: Expression,
    dtype: str,
    chip: ChipLike,
    *,
    era: str | Era,
    tiles_used: int | None = None,
) -> list[Superstep]:
    """Return the supersteps of an expression that popops::map turns into one vertex.

    Parameters
    ----------
    name : str
        Name of the step.
    elements : int
        Elements of the result.
    expression : Expression
        What is computed.
    dtype : str
        "float16" or "float32".
    chip : Chip
        The chip.
    era : str or Era
        Generation of poplibs.
    tiles_used : int, optional
        Tiles that hold the result; None spreads it linearly.

    Returns
    -------
    list of Superstep
    """
    era = parse_era(era)
    share = tile_share(elements, dtype, chip, tiles_used)
    cycles = generated_cycles(
        share.elements, expression.operations, expression.tensors, dtype, chip
    )
    for function in expression.slow:
        cycles += slow_operator_cycles(
            function, share.elements, dtype, chip, generation=era.estimator
        )
    return [Superstep(name=name, vertex="popops::map (generated)", compute_cycles=cycles)]


def dropout_steps(
    elements: int, dtype: str, chip: ChipLike, *, tiles_used: int | None = None
) -> list[Superstep]:
    """Return the supersteps of a dropout, or of its gradient.

    Both set every worker's seed and draw the same random bits (poprand::dropout with the seed of
    the forward pass, lib/poprand/RandomGen.cpp): no mask is kept.
    """
    share = tile_share(elements, dtype, chip, tiles_used)
    return [
        Superstep(name="set seed", vertex="poprand::SetSeed", compute_cycles=set_seed_cycles(chip)),
        Superstep(
            name="dropout",
            vertex="poprand::Dropout",
            compute_cycles=dropout_cycles(share.elements, dtype, chip),
        ),
    ]
