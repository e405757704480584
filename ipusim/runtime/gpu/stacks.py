"""Software stacks of GPU runs: named, sourced profiles."""

from __future__ import annotations

from dataclasses import dataclass, field

from ipusim.errors import DataError, resolve_name
from ipusim.files import read_tables, sourced_values
from ipusim.machine.gpu import GPU_PRECISIONS

FILE = "gpu/stacks.toml"

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


def gpu_stack_names() -> tuple[str, ...]:
    """Return the names that `load_gpu_stack` accepts, in file order."""
    return tuple(read_tables(FILE))


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
    tables = read_tables(FILE)
    aliases = {alias: key for key, table in tables.items() for alias in table.get("aliases", [])}
    valid = resolve_name("GPU software stack", name, tables, aliases)
    values, sources = sourced_values(tables[valid], valid, FILE, _PROPERTIES)
    for key, kind in _PROPERTIES.items():
        if kind is not list:
            continue
        values[key] = tuple(values[key])
        unknown = set(values[key]) - set(GPU_PRECISIONS)
        if unknown:
            raise DataError(
                f"The key {key!r} of {valid!r} in {FILE} names {min(unknown)!r}: "
                f"use {', '.join(GPU_PRECISIONS)}."
            )
    title = str(tables[valid].get("title", valid))
    return GpuStack(name=valid, title=title, sources=sources, **values)
