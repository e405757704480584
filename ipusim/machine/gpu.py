"""GPU boards, and the machines of the TAMU study that hold them."""

from dataclasses import dataclass

from ipusim.errors import ConfigError
from ipusim.machine.constants import Sourced, constant

GPU_PRECISIONS = ("mixed", "tf32", "fp32")
"""float16 with float32 sums on tensor cores, TensorFloat-32 on tensor cores, float32 without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu(Sourced, file="hardware/gpus", word="GPU"):
    """What one GPU board is.

    Peaks are dense ones at the boost clock, 0 where the board lacks the mode; the efficiencies are
    the share of them, and of the stated memory bandwidth, that the largest matrix products and a
    plain copy reach on a running board. The level-2 cache hands ``l2_bytes_per_cycle`` to all
    multiprocessors (``sms``) together. ``all_reduce_bytes_per_s`` is the bus bandwidth within one
    machine, as nccl-tests defines it, of at most ``max_gpus`` boards; ``kernel_gap_s`` lies between
    two kernels that wait in the same queue. ``compared`` is "yes" where published runs on the board
    were compared with predictions.
    """

    name: str
    sms: int = constant("SMs")
    boost_hz: int = constant("Hz")
    fp32_flops_per_s: float = constant("FLOP/s")
    fp16_tensor_flops_per_s: float = constant("FLOP/s")
    tf32_tensor_flops_per_s: float = constant("FLOP/s", zero=True)
    tensor_efficiency: float = constant("ratio")
    fp32_efficiency: float = constant("ratio")
    l2_bytes_per_cycle: int = constant("B/cycle")
    memory_bytes_per_s: float = constant("B/s")
    memory_efficiency: float = constant("ratio")
    all_reduce_bytes_per_s: float = constant("B/s")
    all_reduce_hop_s: float = constant("s")
    kernel_gap_s: float = constant("s")
    max_gpus: int = constant("GPUs")
    tdp_w: float = constant("W")
    compared: str = constant("-")

    def matmul_flops_per_s(self, precision: str) -> float:
        """Return what large matrix products reach, in FLOP/s (`ConfigError` if none)."""
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
class GpuNode(Sourced, file="hardware/gpu_nodes", word="GPU machine"):
    """A machine with several boards of one kind; ``tdp_w`` is of the machine, hosts as stated."""

    name: str
    gpu: Gpu = constant("-")
    gpus: int = constant("GPUs")
    tdp_w: float = constant("W")
