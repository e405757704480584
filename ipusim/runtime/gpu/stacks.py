"""Software stacks of GPU runs: named, sourced profiles, such as "pytorch-21" or "PyTorch 21.03"."""

from dataclasses import dataclass, field
from typing import ClassVar

from ipusim.errors import DataError
from ipusim.machine.constants import Constant
from ipusim.machine.gpu import GPU_PRECISIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStack:
    """What one framework release does between a graph and the kernels that run.

    In `transposed_precisions` every dense convolution converts its operands and its result to the
    layout that its kernel reads; in `fused_precisions` elementwise operators join the kernel of
    what comes before them. If it `casts_weights`, a mixed-precision step converts every weight from
    float32; with a `kernel_per_reduction` each one within a softmax or layer norm reads all again.
    It `overlaps_all_reduce` where gradients are reduced beside the backward pass.
    """

    FILE: ClassVar = "gpu/stacks"
    WORD: ClassVar = "GPU software stack"

    name: str
    title: str
    transposed_precisions: tuple[str, ...]
    fused_precisions: tuple[str, ...]
    casts_weights: bool
    kernel_per_reduction: bool
    update_kernels_per_parameter: int
    overlaps_all_reduce: bool
    constants: dict[str, Constant] = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        for key in ("transposed_precisions", "fused_precisions"):
            unknown = set(getattr(self, key)) - set(GPU_PRECISIONS)
            if unknown:
                raise DataError(
                    f"The key {key!r} of {self.name!r} in {self.FILE}.toml names {min(unknown)!r}: "
                    f"use {', '.join(GPU_PRECISIONS)}."
                )
