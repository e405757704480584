"""The time of a training or inference step on one to several GPUs of one machine.

A kernel takes the longer of its arithmetic and its memory traffic; kernels follow one another, and
each adds what its software stack costs beside: one fitted constant per stack. With several boards,
the gradients are reduced around a ring, beside the backward pass.

A cost that adds to every kernel describes small and large batches alike
(study/verdicts/compare_gpu.py). A host that only starts kernels while the board computes,
max(board, host), is the obvious mechanism but leaves large batches unexplained: median error 20 %
instead of 14 %. [A] adopted after seeing both
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ipusim.errors import ConfigError, check_name, resolve_name
from ipusim.machine.constants import aliases, load, names
from ipusim.machine.gpu import GPU_PRECISIONS, Gpu, GpuNode
from ipusim.runtime.calibration import Fitted, calibration
from ipusim.runtime.gpu.kernels import GpuStack, step_kernels
from ipusim.runtime.gpu.roofline import DeviceTime, device_time
from ipusim.runtime.power import price_per_item
from ipusim.workload.loading import load_model
from ipusim.workload.model import Model, check_micro_batch

BUCKET_BYTES = 25 * 2**20
"""Gradients reduced in one go (PyTorch DistributedDataParallel, bucket_cap_mb = 25)."""
GRADIENT_BYTES = 4
"""Gradients of float32 master weights."""

UNCOMPARED = "outside the fitted range: no published run on {} was compared with the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReport:
    """One simulated GPU run.

    Attributes
    ----------
    model, gpu, stack, mode, precision : str
        What ran where.
    gpus, batch : int
        Boards, and samples per board and step.
    step_s : float
        Seconds per step.
    parts : dict of str to float
        Seconds of a step by cause, which add up to ``step_s``: "compute" and "memory", of kernels
        bound by arithmetic and by memory traffic; "launch", gaps between kernels and the fitted
        cost of the stack per kernel; "all_reduce", what nothing hides of the gradient reduction.
    host_ops : int
        Kernels that the host starts per step.
    tdp_w : float
        Thermal design power of the boards in use.
    note : str
        What is to know of the prediction: a board that nothing here was compared with.
    """

    model: str
    gpu: str
    stack: str
    mode: str
    precision: str
    gpus: int
    batch: int
    step_s: float
    parts: dict[str, float]
    host_ops: int
    tdp_w: float
    note: str = ""

    @property
    def throughput(self) -> float:
        """Items per second of all boards."""
        return self.gpus * self.batch / self.step_s

    @property
    def energy_per_item_j(self) -> float:
        """Joules per item at the thermal design power, which a board seldom draws."""
        return self.tdp_w / self.throughput

    def price_per_item(self, price_per_hour: float) -> float:
        """Return the price of an item where all boards together cost so much per hour."""
        return price_per_item(price_per_hour, self.throughput)

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {1e3 * part:.3g}" for name, part in self.parts.items())
        return (
            f"{self.model} {self.mode} on {self.gpus} x {self.gpu} ({self.stack}, "
            f"{self.precision}, batch {self.batch}): {self.throughput:.4g} items/s, "
            f"{1e3 * self.step_s:.4g} ms per step ({parts} ms)"
            + (f"; {self.note}" if self.note else "")
        )


def ring_all_reduce_s(size_bytes: float, gpus: int, gpu: Gpu) -> float:
    """Return the time of one all-reduce of `size_bytes` on each board around a ring, in seconds.

    Each board sends and receives 2 (n - 1) / n of the data in 2 (n - 1) steps; nccl-tests states
    bus bandwidth by the same formula (NVIDIA/nccl-tests doc/PERFORMANCE.md).
    """
    steps = 2 * (gpus - 1)
    return steps / gpus * size_bytes / gpu.all_reduce_bytes_per_s + steps * gpu.all_reduce_hop_s


def exposed_all_reduce_s(
    gradient_bytes: float, gpus: int, gpu: Gpu, *, backward_s: float, overlapped: bool
) -> float:
    """Return the time of the gradient reduction that the backward pass does not hide, in seconds.

    Gradients are reduced in buckets of `BUCKET_BYTES`; if `overlapped`, all but the last beside the
    backward pass.
    """
    buckets = max(1, -(-int(gradient_bytes) // BUCKET_BYTES))
    one = ring_all_reduce_s(gradient_bytes / buckets, gpus, gpu)
    if not overlapped:
        return buckets * one
    return one + max(0.0, (buckets - 1) * one - backward_s)


def _boards(name: str) -> tuple[Gpu, int, str]:
    """Return the board that a name stands for, how many there may be, and where."""
    known = (*names(Gpu), *names(GpuNode))
    found = resolve_name("GPU", name, known, aliases(Gpu) | aliases(GpuNode))
    if found in names(GpuNode):
        node = load(GpuNode, found)
        return node.gpu, node.gpus, node.name
    board = load(Gpu, found)
    return board, board.max_gpus, f"one machine with {board.name}"


_graph = lru_cache(maxsize=64)(Model.graph)
"""Boards, stacks and precisions share the graph of a model."""


@lru_cache(maxsize=512)
def _step_on_board(
    model: Model, batch: int, mode: str, precision: str, optimizer: str, stack: GpuStack, gpu: Gpu
) -> tuple[DeviceTime, int]:
    """Return the time on one board and the parameters; the sources of a stack are not compared."""
    graph = _graph(model, batch)
    kernels = step_kernels(graph, stack, mode=mode, precision=precision, optimizer=optimizer)
    return device_time(kernels, gpu, precision), graph.parameters


def simulate_gpu(
    model: Model | str,
    gpu: str = "A100 SXM 80GB",
    *,
    gpus: int = 1,
    batch: int = 256,
    mode: str = "training",
    precision: str = "mixed",
    framework: str = "pytorch-21",
    optimizer: str = "sgd",
    op_s: float | None = None,
    **opened: Any,
) -> GpuReport:
    """Predict one step of a model on GPUs of one machine.

    Parameters
    ----------
    model : Model or str
        A model, the name of one in the zoo, or a path ending in .onnx.
    gpu : str
        A board ("T4", "V100 SXM2 32GB", ...) or a machine ("DGX A100", "Grace A100", ...).
    gpus : int
        Boards that share the work, each with a batch of its own.
    batch : int
        Samples per board and step.
    mode : {"training", "inference"}
    precision : {"mixed", "tf32", "fp32"}
    framework : str
        Software stack, a name in data/gpu/stacks.toml or what a table prints ("PyTorch 21.03").
    optimizer : {"sgd", "rmsprop", "adam", "lamb"}
    op_s : float, optional
        Seconds that the stack adds per kernel that the host starts; by default its fitted value.
    **opened
        What an ONNX file leaves open, as `from_onnx` takes it: shapes, dims, values, allow_unknown.

    Returns
    -------
    GpuReport

    Raises
    ------
    UnknownNameError
        If a name does not exist; the message gives the nearest one.
    ConfigError
        If a number is out of range, or the board lacks the precision.
    WorkloadError
        If the model cannot be built.

    Notes
    -----
    Data loading on the host, memory capacity, gradient accumulation and several machines are not
    modelled.

    Examples
    --------
    >>> report = ipusim.simulate_gpu("resnet50", "A100 SXM 80GB", batch=256)
    >>> report.host_ops, f"{1e3 * report.step_s:.0f} ms"
    (1100, '127 ms')
    """
    network = load_model(model, **opened)
    board, most, where = _boards(gpu)
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= most:
        raise ConfigError(f"gpus = {gpus!r} must be a whole number from 1 to {most} on {where}.")
    size = check_micro_batch(batch)
    check_name("precision", precision, GPU_PRECISIONS)
    board.matmul_flops_per_s(precision)  # says so where the board lacks the precision
    stack = load(GpuStack, framework)
    fitted = calibration().gpu.get(stack.name, Fitted())  # nothing without rows
    per_op = fitted.value if op_s is None else op_s
    if not 0 <= per_op < 1:
        raise ConfigError(f"op_s = {op_s!r} must be a number of seconds from 0 to 1.")
    device, parameters = _step_on_board(network, size, mode, precision, optimizer, stack, board)
    added = device.host_ops * per_op
    reduced = 0.0
    if mode == "training":
        beside = {"backward_s": device.backward_s, "overlapped": stack.overlaps_all_reduce}
        reduced = exposed_all_reduce_s(GRADIENT_BYTES * parameters, gpus, board, **beside)
    return GpuReport(
        model=network.name,
        gpu=board.name,
        stack=stack.name,
        mode=mode,
        precision=precision,
        gpus=gpus,
        batch=size,
        step_s=device.total_s + added + reduced,
        parts={
            "compute": device.compute_s,
            "memory": device.memory_s,
            "launch": device.gaps_s + added,
            "all_reduce": reduced,
        },
        host_ops=device.host_ops,
        tdp_w=gpus * board.tdp_w,
        note="" if board.compared == "yes" else UNCOMPARED.format(board.name),
    )
