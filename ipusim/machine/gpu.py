"""GPU boards, and the machines of the TAMU study that hold them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ipusim.errors import ConfigError
from ipusim.machine.constants import Constant, constant, load, table_names

GPU_PRECISIONS = ("mixed", "tf32", "fp32")
"""float16 with float32 sums on tensor cores, TensorFloat-32 on tensor cores, float32 without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What one GPU board is.

    Attributes
    ----------
    name : str
        For example "A100 SXM 80GB".
    sms : int
        Streaming multiprocessors.
    boost_hz : int
        Boost clock, at which the peaks are stated.
    fp32_flops_per_s, fp16_tensor_flops_per_s, tf32_tensor_flops_per_s : float
        Dense peaks; 0 where the board lacks the mode.
    tensor_efficiency, fp32_efficiency : float
        Share of those peaks that the largest matrix products reach on a running board.
    l2_bytes_per_cycle : int
        What the level-2 cache hands to all multiprocessors together.
    memory_bytes : int
        Size of the board's memory.
    memory_bytes_per_s : float
        Stated bandwidth of that memory.
    memory_efficiency : float
        Share of it that a plain copy reaches.
    all_reduce_bytes_per_s : float
        Bus bandwidth of an all-reduce within one machine, as nccl-tests defines it.
    all_reduce_hop_s : float
        Latency of one step of the ring.
    kernel_gap_s : float
        Between two kernels that wait in the same queue.
    max_gpus : int
        Boards in the largest machine that is modelled.
    tdp_w : float
        Thermal design power.
    compared : str
        "yes" where published runs on the board were compared with predictions, else "no".
    constants : dict of str to Constant
        The same values with unit, source and label.
    """

    FILE: ClassVar = "gpus"
    WORD: ClassVar = "GPU"

    name: str
    sms: int = constant("SMs")
    boost_hz: int = constant("Hz")
    fp32_flops_per_s: float = constant("FLOP/s")
    fp16_tensor_flops_per_s: float = constant("FLOP/s")
    tf32_tensor_flops_per_s: float = constant("FLOP/s", zero=True)
    tensor_efficiency: float = constant("ratio")
    fp32_efficiency: float = constant("ratio")
    l2_bytes_per_cycle: int = constant("B/cycle")
    memory_bytes: int = constant("B")
    memory_bytes_per_s: float = constant("B/s")
    memory_efficiency: float = constant("ratio")
    all_reduce_bytes_per_s: float = constant("B/s")
    all_reduce_hop_s: float = constant("s")
    kernel_gap_s: float = constant("s")
    max_gpus: int = constant("GPUs")
    tdp_w: float = constant("W")
    compared: str = constant("-")
    constants: dict[str, Constant] = field(compare=False, repr=False)

    def matmul_flops_per_s(self, precision: str) -> float:
        """Return what large matrix products reach at a precision, in FLOP/s.

        Raises
        ------
        ConfigError
            If the precision is unknown or the board does not have it.
        """
        rates = {
            "mixed": self.fp16_tensor_flops_per_s * self.tensor_efficiency,
            "tf32": self.tf32_tensor_flops_per_s * self.tensor_efficiency,
            "fp32": self.fp32_flops_per_s * self.fp32_efficiency,
        }
        usable = [name for name, rate in rates.items() if rate > 0]
        if precision not in usable:
            raise ConfigError(
                f"Precision {precision!r} does not exist on {self.name}: "
                f"use one of {', '.join(usable)}."
            )
        return rates[precision]

    @property
    def copy_bytes_per_s(self) -> float:
        """Memory bandwidth that kernels reach, in bytes per second."""
        return self.memory_bytes_per_s * self.memory_efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """A machine with several boards of one kind; ``tdp_w`` is of the machine, hosts as stated."""

    FILE: ClassVar = "gpu_nodes"
    WORD: ClassVar = "GPU machine"

    name: str
    gpu: Gpu = constant("-")
    gpus: int = constant("GPUs")
    tdp_w: float = constant("W")
    constants: dict[str, Constant] = field(compare=False, repr=False)


def gpu_names() -> tuple[str, ...]:
    """Return the names of all boards, in file order."""
    return table_names("gpus")


def gpu_node_names() -> tuple[str, ...]:
    """Return the names of all machines with GPUs, in file order."""
    return table_names("gpu_nodes")


def load_gpu(name: str) -> Gpu:
    """Return one board.

    Raises
    ------
    UnknownNameError
        If there is no such board; the message gives the nearest one.
    DataError
        If the data file is missing or corrupt.
    """
    return load(Gpu, name)


def load_gpu_node(name: str) -> GpuNode:
    """Return one machine with GPUs.

    Parameters
    ----------
    name : str
        For example "DGX A100" or "Grace A100".

    Raises
    ------
    UnknownNameError
        If there is no such machine; the message gives the nearest one.
    DataError
        If the data file is missing or corrupt.
    """
    return load(GpuNode, name)
