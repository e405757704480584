"""The public entry points: simulate one run, bound it by a roofline, sweep over many."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ipusim.errors import ConfigError
from ipusim.report import Estimate, Report, RooflineReport
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.options.config import make_config
from ipusim.runtime.roofline import roofline_step_s
from ipusim.runtime.step import run_step
from ipusim.workload import zoo
from ipusim.workload.model import Model

if TYPE_CHECKING:
    import pandas as pd

_SWEPT = ("system", "micro_batch", "precision", "partials", "stack", "batches_in_flight")


ONNX_OPTIONS = ("shapes", "dims", "values")
"""Options that say what an ONNX file leaves open; those of `from_onnx`."""


def load_model(model: str | Model, **given: Any) -> Model:
    """Return a model from a zoo name, a path ending in .onnx, or a `Model` as it is.

    `given` are options of `from_onnx` (shapes, dims, values), for a path only.

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


def simulate(
    model: str | Model,
    *,
    system: str = "IPU-M2000",
    mode: str = "inference",
    micro_batch: int | None = None,
    replicas: int | None = None,
    ipus_per_replica: int = 1,
    precision: str = "16.16",
    stack: str | None = None,
    tier: str = "calibrated",
    costs: FittedCosts | None = None,
    **options: Any,
) -> Report:
    """Predict a run.

    Parameters
    ----------
    model : str or Model
        A zoo name, a path ending in .onnx, or a model.
    system : str
        Name of a system.
    mode : {"inference", "training"}
        What to run.
    micro_batch : int, optional
        Items per replica and step, in training per replica and micro-batch; by default what the
        model fixes, or 1.
    replicas : int, optional
        Copies of the model; by default as many as the system holds.
    ipus_per_replica : int
        Chips of a copy; above 1 the model is cut into stages.
    precision : {"16.16", "16.32", "32.32"}
        Storage of activations.weights.
    stack : str, optional
        Software stack; by default that of the system.
    tier : {"calibrated", "specification"}
        With or without the fitted constants of data/calibration.toml.
    costs : FittedCosts, optional
        Fitted costs instead of those in data/calibration.toml.
    **options
        For a path ending in .onnx: shapes, dims and values, as described at `from_onnx`. For every
        run: partials ("half" or "float"), available_memory_proportion, host_dtype
        ("uint8", "float16" or "float32"), overlap_io, io_tiles, batches_in_flight, instances,
        loader_item_s, serial_item_s, serial_products (such as ["head=4"], described at
        `ipusim.workload.serialization`). For replicas over several chips: pipeline_splits,
        stage_ipus (chip of each stage) and schedule ("grouped": all stages at once; "sequential":
        one after another, PopTorch's sharded execution; "interleaved", in training). For models
        that one or two chips load phase by phase from Streaming Memory: phases, phase_splits,
        phase_liveness, load_schedule, weights, activations and accumulators ("on_chip" or
        "off_chip"), micro_batches_per_phase, as described at `ipusim.runtime.options.phases`. For
        training: gradient_accumulation, loss, optimizer, optimizer_state,
        replicated_tensor_sharding, recompute, batch_norm_span, merge_gradients_bytes, framework,
        host_servers, loader_workers, dataset, as described at
        `ipusim.runtime.options.training.TrainingOptions`.

    Returns
    -------
    Report

    Raises
    ------
    IpuSimError
        With one sentence that says what is wrong.
    """
    loaded = load_model(model, **_split_onnx(options))
    config = make_config(
        system=system,
        mode=mode,
        micro_batch=loaded.batch if micro_batch is None else micro_batch,
        replicas=replicas,
        ipus_per_replica=ipus_per_replica,
        precision=precision,
        stack=stack,
        **options,
    )
    result = run_step(loaded, config, tier=tier, costs=costs)
    return Report(loaded.name, config, tier, result)


def roofline(model: str | Model, **options: Any) -> RooflineReport:
    """Bound a run by peak rates alone.

    Parameters
    ----------
    model : str or Model
        As for `simulate`.
    **options
        Those of `simulate` that describe the run.

    Returns
    -------
    RooflineReport
        Latency and throughput that the hardware cannot beat.
    """
    loaded = load_model(model, **_split_onnx(options))
    config = make_config(**({"system": "IPU-M2000", "micro_batch": loaded.batch} | options))
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
        Options of `simulate`; system, micro_batch, precision, partials, stack and
        batches_in_flight may be lists or ranges, and so may each size in dims
        (``dims={"sequence": [128, 256]}``) and, as lists of tuples, each shape in shapes.

    Returns
    -------
    pandas.DataFrame
        One row per combination: the swept options, latency (ms) and throughput (items/s) with
        their 80 % intervals (NaN where there is none), power (W), cycles per step, whether it fits,
        bytes on the fullest tile.
    """
    import pandas as pd
    from tqdm.auto import tqdm

    lists = {name: _as_list(options.pop(name)) for name in _SWEPT if name in options}
    combinations = list(itertools.product(*lists.values()))
    points = [
        (loaded, sizes | dict(zip(lists, combination, strict=True)), sizes)
        for loaded, sizes in _models(model, _split_onnx(options))
        for combination in combinations
    ]
    rows = []
    bar = tqdm(
        points,
        desc=points[0][0].name if points else "",
        disable=None if progress is None else not progress,
    )
    for loaded, chosen, sizes in bar:
        report = simulate(loaded, **{k: v for k, v in chosen.items() if k not in sizes}, **options)
        rows.append(
            {
                "model": report.model,
                "system": report.system,
                **{name: value for name, value in chosen.items() if name != "system"},
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


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return [value]
    return list(value)
