"""The public entry points: simulate one run, bound it by a roofline."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from ipusim.report import Estimate, Report, RooflineReport
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.options.config import make_config
from ipusim.runtime.options.spec import OPTIONS, RunConfig, option_docs
from ipusim.runtime.step import roofline_step_s, run_step
from ipusim.workload.loading import ONNX_OPTIONS, load_model
from ipusim.workload.model import Model

if TYPE_CHECKING:
    from ipusim.runtime.options.hints import ModelOptions


def split_onnx(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `from_onnx` out of others."""
    own = {name: options.pop(name) for name in ONNX_OPTIONS if name in options}
    return {name: value for name, value in own.items() if value}


def _asked(model: str | Model, options: dict[str, Any]) -> tuple[Model, RunConfig]:
    """Return the model and the run that the options of `simulate` ask for."""
    loaded = load_model(model, **split_onnx(options))
    if options.get("micro_batch") is None:
        options["micro_batch"] = loaded.batch
    return loaded, make_config(**options)


def names_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """List the options of a run in the signature, and where asked in the docstring, of a function.

    Editors read them from `hints.pyi`; a running Python, such as a notebook, from here.
    """
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    known = {name: (option.default, option.kind.hint) for name, option in OPTIONS.items()}
    known |= {name: (None, hint) for name, hint in ONNX_OPTIONS.items()}
    listed = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (default, hint) in known.items()
        if name not in signature.parameters
    ]
    function.__signature__ = signature.replace(parameters=[*own, *listed])
    # Without its indent, which Python takes away itself from 3.13 on.
    function.__doc__ = inspect.cleandoc(function.__doc__ or "").replace("<options>", option_docs())
    return function


@names_options
def simulate(
    model: str | Model,
    *,
    tier: str = "calibrated",
    costs: FittedCosts | None = None,
    as_if_it_fits: bool = False,
    **options: Unpack[ModelOptions],
) -> Report:
    """Predict a run.

    Parameters
    ----------
    model : str or Model
        A zoo name, a path ending in .onnx, or a model.
    tier : {"calibrated", "specification"}
        With or without the fitted constants of data/calibration.toml.
    costs : FittedCosts, optional
        Fitted costs instead of those in data/calibration.toml.
    as_if_it_fits : bool
        Whether latency, throughput and power are predicted of a run that needs more memory than
        there is; by default they are NaN. The model of memory says so of some published runs, too.
    shapes, dims, values, allow_unknown : optional
        What an ONNX file leaves open, as `from_onnx` takes it; for a path ending in .onnx.
    <options>

    Returns
    -------
    Report

    Raises
    ------
    IpuSimError
        With one sentence that says what is wrong.

    Examples
    --------
    >>> report = ipusim.simulate("mcmc_bnn", system="Bow-2000", micro_batch=4)
    >>> report.fits, report.supersteps, f"{1e6 * report.latency.value:.0f} us"
    (True, 19, '48 us')
    """
    asked = {"model": model, **options}
    loaded, config = _asked(model, options)
    result = run_step(loaded, config, tier=tier, costs=costs)
    return Report(
        loaded.name, config, tier, result, loaded.note, loaded.family, asked, as_if_it_fits
    )


@names_options
def roofline(model: str | Model, **options: Unpack[ModelOptions]) -> RooflineReport:
    """Bound a run by peak rates alone: latency and throughput that the hardware cannot beat.

    Parameters
    ----------
    model : str or Model
        As for `simulate`.
    shapes, dims, values, allow_unknown : optional
        What an ONNX file leaves open, as `from_onnx` takes it; for a path ending in .onnx.
    <options>

    Returns
    -------
    RooflineReport

    Raises
    ------
    IpuSimError
        With one sentence that says what is wrong.

    Examples
    --------
    >>> bound = ipusim.roofline("resnet50", system="IPU-M2000", micro_batch=4)
    >>> f"{1e6 * bound.latency.value:.0f} us"
    '385 us'
    """
    loaded, config = _asked(model, options)
    step, items = roofline_step_s(loaded, config)
    # A training step is timed whole, however many batches the host prepares meanwhile.
    steps = 1 if config.training else config.batches_in_flight
    return RooflineReport(
        model=loaded.name,
        config=config,
        latency=Estimate(steps * step, unit="s"),
        throughput=Estimate(config.replicas * items / step, unit="items/s"),
    )
