"""The roofline of single kernels: arithmetic in waves of tiles, memory traffic, and their sum."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from ipusim.machine.gpu import Gpu
from ipusim.runtime.gpu.kernels import Kernel

TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64))
"""Result tiles of the matrix kernels (NVIDIA, Matrix Multiplication Background, section 2.3)."""
GROUPED_TILES = (*TILES, (64, 32), (32, 64))
"""Convolution kernels also have narrower ones."""
TILE_DEPTH = 32
"""Elements of the inner dimension that a kernel takes at a time (CUTLASS threadblock shapes)."""
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Parts into which the inner dimension of a product with few tiles may be split."""
SCALAR_INSTRUCTIONS_PER_MAC = 14
"""Depthwise convolution: address, two bounds, two loads, two conversions and loop control beside
the multiply-add in the inner loop of PyTorch's aten/src/ATen/native/cuda/DepthwiseConv2d.cu
[inferred; [A] adopted after seeing EfficientNet]."""
WINOGRAD_GAIN = 2.25
"""Fewer multiplications by F(2 x 2, 3 x 3), 36 against 16 (Lavin and Gray 2015, arXiv:1509.09308);
cuDNN's float32 convolutions use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Seconds of one step on one board, and the kernels that the host starts.

    Kernels are bound by arithmetic or by memory traffic; `backward_s` is the share of all that
    belongs to the backward pass.
    """

    compute_s: float
    memory_s: float
    gaps_s: float
    backward_s: float
    host_ops: int

    @property
    def total_s(self) -> float:
        """Time of the board."""
        return self.compute_s + self.memory_s + self.gaps_s


@lru_cache(maxsize=1 << 16)
def matmul_s(m: int, n: int, k: int, groups: int, gpu: Gpu, precision: str) -> float:
    """Return the arithmetic time of ``groups`` products of (m, k) by (k, n), in seconds.

    Tiles are computed in waves of one per multiprocessor; the last wave costs as much as a full one
    (NVIDIA, Matrix Multiplication Background, sections 3.1 and 3.2). A tile is bound by its
    arithmetic or by its operands, which come from the level-2 cache. Splitting the inner dimension,
    which is rounded up to `TILE_DEPTH`, makes more tiles and costs a write and a read of float32
    sums. The fastest tile and split is taken.
    """
    sms, element_bytes = gpu.sms, 2 if precision == "mixed" else 4
    rate = gpu.matmul_flops_per_s(precision) / sms
    feed = float(gpu.l2_bytes_per_cycle * gpu.boost_hz) / sms
    best = float("inf")
    for rows, columns in TILES if groups == 1 else GROUPED_TILES:
        tiles = -(-m // rows) * -(-n // columns) * groups
        per_depth = max(2 * rows * columns / rate, (rows + columns) * element_bytes / feed)
        for split in SPLITS:
            if split > 1 and (k < 2 * TILE_DEPTH * split or tiles * split > 2 * sms):
                break
            waves = -(-tiles * split // sms)
            depth = -(-k // (split * TILE_DEPTH)) * TILE_DEPTH
            sums = 8 * split * m * n * groups / gpu.copy_bytes_per_s if split > 1 else 0.0
            best = min(best, waves * depth * per_depth + sums)
    return best


def kernel_s(kernel: Kernel, gpu: Gpu, precision: str) -> tuple[float, float]:
    """Return the arithmetic and the memory time of one kernel, in seconds."""
    memory = kernel.bytes / gpu.copy_bytes_per_s
    if kernel.m:
        compute = matmul_s(kernel.m, kernel.n, kernel.k, kernel.groups, gpu, precision)
        if kernel.winograd and precision == "fp32":
            compute /= WINOGRAD_GAIN
        return compute, memory
    scalar_rate = gpu.matmul_flops_per_s("fp32") / 2 / SCALAR_INSTRUCTIONS_PER_MAC
    return kernel.scalar_macs / scalar_rate, memory


def device_time(kernels: Iterable[Kernel], gpu: Gpu, precision: str) -> DeviceTime:
    """Return what the kernels of one step cost a board."""
    compute_s = memory_s = backward_s = gaps_s = 0.0
    host_ops = 0
    for kernel in kernels:
        arithmetic, traffic = kernel_s(kernel, gpu, precision)
        gap = kernel.count * gpu.kernel_gap_s
        if arithmetic > traffic:
            compute_s += arithmetic
        else:
            memory_s += traffic
        gaps_s += gap
        host_ops += kernel.count
        if kernel.phase == "backward":
            backward_s += max(arithmetic, traffic) + gap
    return DeviceTime(
        compute_s=compute_s,
        memory_s=memory_s,
        gaps_s=gaps_s,
        backward_s=backward_s,
        host_ops=host_ops,
    )
