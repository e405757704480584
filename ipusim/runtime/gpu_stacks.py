"""Software stacks of GPU runs: named, sourced profiles, and the one fitted constant of each."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ipusim import paths
from ipusim.errors import DataError, resolve_name
from ipusim.machine.gpu import GPU_PRECISIONS
from ipusim.runtime.calibration import FILE as CALIBRATION_FILE

FILE = Path("gpu") / "stacks.toml"
CALIBRATION_SECTION = "gpu_kernel_cost"

_PROPERTIES: dict[str, type] = {
    "transposed_precisions": list,
    "fused_precisions": list,
    "casts_weights": bool,
    "kernel_per_reduction": bool,
    "update_kernels_per_parameter": int,
    "overlaps_all_reduce": bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStack:
    """What one framework release does between a graph and the kernels that run.

    Attributes
    ----------
    name, title : str
        Short name, and what it is.
    transposed_precisions : tuple of str
        Precisions in which every dense convolution converts its operands and its result to the
        layout that its kernel reads.
    fused_precisions : tuple of str
        Precisions in which elementwise operators join the kernel of what comes before them.
    casts_weights : bool
        Whether a mixed-precision step converts every weight from float32.
    kernel_per_reduction : bool
        Whether each reduction within a softmax or layer norm is a kernel that reads all again.
    update_kernels_per_parameter : int
        Kernels of the optimiser per parameter tensor.
    overlaps_all_reduce : bool
        Whether gradients are reduced beside the backward pass.
    sources : dict of str to str
        Where each property comes from.
    """

    name: str
    title: str
    transposed_precisions: tuple[str, ...]
    fused_precisions: tuple[str, ...]
    casts_weights: bool
    kernel_per_reduction: bool
    update_kernels_per_parameter: int
    overlaps_all_reduce: bool
    sources: dict[str, str] = field(compare=False, repr=False)


@cache
def _tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"The data file {FILE} cannot be read ({error.strerror}): restore it."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"The data file {FILE} is not valid TOML ({error}): restore it.") from error


def gpu_stack_names() -> tuple[str, ...]:
    """Return the names that `load_gpu_stack` accepts, in file order."""
    return tuple(_tables(paths.data_dir() / FILE))


def load_gpu_stack(name: str) -> GpuStack:
    """Return one software stack of GPU runs.

    Parameters
    ----------
    name : str
        For example "pytorch-21" or "PyTorch 21.03", in any case.

    Raises
    ------
    UnknownNameError
        If there is no such stack; the message gives the nearest one.
    DataError
        If the data file is missing or corrupt.
    """
    tables = _tables(paths.data_dir() / FILE)
    aliases = {alias: key for key, table in tables.items() for alias in table.get("aliases", [])}
    valid = resolve_name("GPU software stack", name, tables, aliases)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, kind in _PROPERTIES.items():
        entry = tables[valid].get(key)
        if not isinstance(entry, dict) or not entry.get("source") or "value" not in entry:
            raise DataError(
                f"The key {key!r} of {valid!r} in {FILE} must have a value and a source: "
                "restore it."
            )
        if type(entry["value"]) is not kind:
            raise DataError(
                f"The key {key!r} of {valid!r} in {FILE} has the value {entry['value']!r}: "
                f"use a value of type {kind.__name__}."
            )
        values[key] = tuple(entry["value"]) if kind is list else entry["value"]
        sources[key] = entry["source"]
    for key, kind in _PROPERTIES.items():
        unknown = set(values[key]) - set(GPU_PRECISIONS) if kind is list else set()
        if unknown:
            raise DataError(
                f"The key {key!r} of {valid!r} in {FILE} names {min(unknown)!r}: "
                f"use {', '.join(GPU_PRECISIONS)}."
            )
    title = str(tables[valid].get("title", valid))
    return GpuStack(name=valid, title=title, sources=sources, **values)


def gpu_stack_table() -> list[dict[str, object]]:
    """Return every property of every stack with its source, one row each."""
    return [
        {
            "stack": stack.name,
            "property": key,
            "value": getattr(stack, key),
            "source": stack.sources[key],
        }
        for stack in map(load_gpu_stack, gpu_stack_names())
        for key in _PROPERTIES
    ]


@cache
def _fitted(path: Path) -> dict[str, Any]:
    try:
        section = tomllib.loads(path.read_text(encoding="utf-8")).get(CALIBRATION_SECTION)
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name} cannot be read ({error}): run 'ipusim calibrate'.") from error
    if not isinstance(section, dict):
        raise DataError(
            f"{path.name} has no section {CALIBRATION_SECTION!r}: run 'ipusim calibrate'."
        )
    return section


def kernel_cost_s(stack: str) -> float:
    """Return the fitted cost of a stack per kernel that the host starts, in seconds.

    Parameters
    ----------
    stack : str
        Name of the stack, as in the data file.

    Returns
    -------
    float
        0 for a stack that has no row to be fitted on.

    Raises
    ------
    DataError
        If the calibration file is missing or damaged.
    """
    entry = _fitted(paths.data_dir() / CALIBRATION_FILE).get(stack)
    if entry is None:
        return 0.0
    value = entry.get("value") if isinstance(entry, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise DataError(
            f"The entry {CALIBRATION_SECTION}.{stack} of {CALIBRATION_FILE} is not a number of "
            "seconds from 0 to 1: run 'ipusim calibrate'."
        )
    return float(value)
