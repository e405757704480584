"""The public entry points: simulate one run, bound it by a roofline, sweep over many."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ipusim.errors import ConfigError
from ipusim.report import Estimate, Report, RooflineReport
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.options.config import make_config
from ipusim.runtime.options.spec import OPTIONS, RunConfig, RunOptions, option_docs
from ipusim.runtime.roofline import roofline_step_s
from ipusim.runtime.step import run_step
from ipusim.workload import zoo
from ipusim.workload.model import Model

if TYPE_CHECKING:
    import pandas as pd


ONNX_OPTIONS = ("shapes", "dims", "values", "allow_unknown")
"""Options that say what an ONNX file leaves open; those of `from_onnx`."""


class ModelOptions(RunOptions, total=False):
    """The options of a run, and those of `from_onnx` for a path that ends in .onnx."""

    shapes: Mapping[str, Any] | None
    dims: Mapping[str, Any] | None
    values: Mapping[str, Any] | None
    allow_unknown: bool


def load_model(model: str | Model, **given: Any) -> Model:
    """Return a model from a zoo name, a path ending in .onnx, or a `Model` as it is.

    `given` are options of `from_onnx` (`ONNX_OPTIONS`), for a path only.

    Raises
    ------
    UnknownNameError
        If the zoo has no such model; the message gives the nearest name.
    WorkloadError
        If the file cannot be read or holds an operator that is not supported.
    ConfigError
        If something is given for a model that is no file.
    """
    if not isinstance(model, Model) and str(model).lower().endswith(".onnx"):
        from ipusim.workload.onnx.importer import from_onnx

        return from_onnx(model, **given)
    for name in given:
        raise ConfigError(
            f"The option {name} is for a path that ends in .onnx, which {model!r} does not: leave "
            "it out."
        )
    return model if isinstance(model, Model) else zoo.load(str(model))


def _split_onnx(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `from_onnx` out of others."""
    return {name: options.pop(name) for name in ONNX_OPTIONS if options.get(name)}


def _asked(model: str | Model, options: dict[str, Any]) -> tuple[Model, RunConfig]:
    """Return the model and the run that the options of `simulate` ask for."""
    loaded = load_model(model, **_split_onnx(options))
    if options.get("micro_batch") is None:
        options["micro_batch"] = loaded.batch
    return loaded, make_config(**options)


def _documented(function: Callable[..., Any]) -> Callable[..., Any]:
    """List the options of a run in the docstring and the signature of a function that takes them.

    Editors read them from `ModelOptions`; a running Python, such as a notebook, from here.
    """
    signature = inspect.signature(function)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    listed = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=OPTIONS[name].default if name in OPTIONS else None,
            annotation=hint,
        )
        for name, hint in ModelOptions.__annotations__.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *listed])
    function.__doc__ = str(function.__doc__).replace("<options>", option_docs())
    return function


@_documented
def simulate(
    model: str | Model,
    *,
    tier: str = "calibrated",
    costs: FittedCosts | None = None,
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
    """
    loaded, config = _asked(model, options)
    result = run_step(loaded, config, tier=tier, costs=costs)
    return Report(loaded.name, config, tier, result, loaded.note, loaded.family)


@_documented
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
    """
    loaded, config = _asked(model, options)
    step, items = roofline_step_s(loaded, config)
    return RooflineReport(
        model=loaded.name,
        config=config,
        latency=Estimate(config.batches_in_flight * step, unit="s"),
        throughput=Estimate(config.replicas * items / step, unit="items/s"),
    )


def sweep(model: str | Model, *, progress: bool | None = None, **options: Any) -> pd.DataFrame:
    """Predict every combination of options.

    Parameters
    ----------
    model : str or Model
        As for `simulate`.
    progress : bool, optional
        Whether to show a bar; by default only on a terminal or in a notebook.
    **options
        Options of `simulate`, each a value or a list or range of values. Of an option that takes
        a list itself (such as pipeline_splits) several values are a list of lists. So may each
        size in dims (``dims={"sequence": [128, 256]}``) and, as lists of tuples, each shape in
        shapes.

    Returns
    -------
    pandas.DataFrame
        One row per combination: the swept options, latency (ms) and throughput (items/s) with
        their 80 % intervals (NaN where there is none), power (W), cycles per step, whether it fits,
        bytes on the fullest tile.

    Raises
    ------
    IpuSimError
        With one sentence that says what is wrong.
    """
    import pandas as pd
    from tqdm.auto import tqdm

    known = {name: OPTIONS[name].axis(value) for name, value in options.items() if name in OPTIONS}
    axes = {name: values for name, values in known.items() if values is not None}
    fixed = {name: value for name, value in options.items() if name not in (*axes, *ONNX_OPTIONS)}
    points = [
        (loaded, sizes, dict(zip(axes, combination, strict=True)))
        for loaded, sizes in _models(model, _split_onnx(options))
        for combination in itertools.product(*axes.values())
    ]
    rows = []
    bar = tqdm(
        points,
        desc=points[0][0].name if points else "",
        disable=None if progress is None else not progress,
    )
    for loaded, sizes, chosen in bar:
        report = simulate(loaded, **chosen, **fixed)
        rows.append(
            {
                "model": report.model,
                "system": report.system,
                **{name: value for name, value in (sizes | chosen).items() if name != "system"},
                "latency_ms": 1e3 * report.latency.value,
                "latency_low80_ms": _scaled(report.latency.low80, 1e3),
                "latency_high80_ms": _scaled(report.latency.high80, 1e3),
                "throughput_items_per_s": report.throughput.value,
                "throughput_low80_items_per_s": _scaled(report.throughput.low80),
                "throughput_high80_items_per_s": _scaled(report.throughput.high80),
                "power_w": report.power.value,
                "cycles_per_step": report.cycles_per_step,
                "fits": report.fits,
                "peak_tile_bytes": report.peak_tile_bytes,
            }
        )
    return pd.DataFrame(rows)


def _models(model: str | Model, given: dict[str, Any]) -> list[tuple[Model, dict[str, Any]]]:
    """Return the model once for each combination of sizes, with those that are swept."""
    axes: dict[tuple[str, str], list[Any]] = {}
    for name, size in given.get("dims", {}).items():
        if isinstance(size, Iterable):
            axes["dims", name] = list(size)
    for name, shape in given.get("shapes", {}).items():
        if any(isinstance(size, Iterable) for size in shape):
            axes["shapes", name] = list(shape)
    models = []
    for combination in itertools.product(*axes.values()):
        chosen = {key: dict(value) for key, value in given.items()}
        for (kind, name), size in zip(axes, combination, strict=True):
            chosen[kind][name] = size
        swept = {name: size for (_, name), size in zip(axes, combination, strict=True)}
        models.append((load_model(model, **chosen), swept))
    return models


def _scaled(end: float | None, scale: float = 1.0) -> float:
    return math.nan if end is None else scale * end
