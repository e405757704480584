"""Published GPU rows: what was run on which board, and what is predicted for it."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ipusim.errors import DataError, UnknownNameError
from ipusim.files import once_per_data_dir, read
from ipusim.machine import load
from ipusim.machine.gpu import Gpu
from ipusim.runtime.gpu.kernels import GpuStack
from ipusim.workload import zoo
from ipusim.workload.model import Model

GPU_FILE = "gpu_published.csv"
NETWORKS_FILE = "runs/gpu_networks.csv"
_ALWAYS_XLA = "BERT"
"""TensorFlow/LanguageModeling/BERT turns XLA on by default, without saying so in the precision."""
_PRECISIONS = {"mixed": "mixed", "TF32": "tf32", "FP32": "fp32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNetwork:
    """What is run for a model and a task as they are printed."""

    model: str
    task: str
    family: str  # that a leave-one-out fit leaves out
    zoo: str = ""  # name in the zoo, which has no pre-training as NVIDIA does it:
    tokens: int = 0  # of a sequence of BERT-Large there,
    masked_tokens: int = 0  # and how many of them are predicted
    optimizer: str = "sgd"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One published GPU throughput: a line of the file as printed, and what is run for it."""

    row_id: str
    gpu: str
    gpus: int  # boards
    model: str
    framework: str
    task: str
    precision: str
    batch: int = 0  # samples per board and step; 0 where the source does not say
    metric: str
    published: float  # items per second of all boards
    unit: str
    flag: str
    network: str = ""  # family that a leave-one-out fit leaves out; empty where none is modelled
    options: dict[str, Any] = field(default_factory=dict)  # of `simulate_gpu`, beside the model
    left_out: str = ""  # why nothing is predicted, without options


@lru_cache(maxsize=32)
def build_network(model: str, task: str) -> Model:
    """Return the network of a row, whose cells are as "BERT-Large" and "pre-training SL128"."""
    network = _networks().get((model, task))
    if network is None:
        raise DataError(f"No network stands for {model!r} in {task!r}: leave the row out.")
    if network.zoo:
        return zoo.load(network.zoo)
    sizes = {"tokens": network.tokens, "masked_tokens": network.masked_tokens}
    return zoo.bert_large_pretraining_sl128(**sizes, drops=("attention", "output"))


@once_per_data_dir
def _networks() -> dict[tuple[str, str], GpuNetwork]:
    return {(one.model, one.task): one for one in read(GpuNetwork, NETWORKS_FILE)}


def _options(row: GpuRow, network: GpuNetwork | None) -> tuple[dict[str, Any], str]:
    """Return the arguments of a prediction, or the reason why there is none."""
    if row.metric != "throughput":
        return {}, "not a throughput"
    if network is None:
        return {}, "network not among those compared"
    if "PyTorch" in row.framework and network.masked_tokens:
        return {}, "sequences sorted by length, so tokens per sequence unknown"
    if row.flag:
        return {}, row.flag.split(":")[0].replace("_", " ").lower()
    precision, _, xla = row.precision.partition("+")
    if precision not in _PRECISIONS:
        return {}, f"precision {precision!r} is not modelled"
    if row.framework.startswith("TensorFlow1") and network.family.startswith(_ALWAYS_XLA):
        xla = "XLA"
    try:
        stack = load(GpuStack, "+".join(filter(None, (row.framework, xla))))
        board = load(Gpu, row.gpu)
    except UnknownNameError as error:
        return {}, f"not modelled: {str(error).split(':')[0]}"
    if row.gpus > board.max_gpus:
        return {}, "several machines"
    return {
        "gpu": board.name,
        "gpus": row.gpus,
        "batch": row.batch,
        "mode": "inference" if row.task.startswith("inference") else "training",
        "precision": _PRECISIONS[precision],
        "framework": stack.name,
        "optimizer": network.optimizer,
    }, ""


@once_per_data_dir
def load_gpu_rows() -> tuple[GpuRow, ...]:
    """Return every published GPU row, those without a prediction included."""
    rows = []
    for row in read(GpuRow, f"published/{GPU_FILE}"):
        network = _networks().get((row.model, row.task))
        options, why = _options(row, network)
        family = network.family if network else ""
        rows.append(replace(row, network=family, options=options, left_out=why))
    return tuple(rows)
