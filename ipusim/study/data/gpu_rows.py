"""Published GPU rows: what was run on which board, and what is predicted for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ipusim.errors import DataError, UnknownNameError
from ipusim.files import read
from ipusim.machine.gpu import load_gpu
from ipusim.runtime.gpu.stacks import load_gpu_stack
from ipusim.workload import zoo
from ipusim.workload.model import Model
from ipusim.workload.zoo.language import bert

GPU_FILE = "gpu_published.csv"
_IMAGE_MODELS = {
    "ResNet-50 v1.5": "resnet50",
    "ResNeXt-101-32x4d": "resnext101_32x4d",
    "EfficientNet-B0": "efficientnet_b0",
    "EfficientNet-B4": "efficientnet_b4",
}
_OPTIMIZERS = {"EfficientNet-B0": "rmsprop", "EfficientNet-B4": "rmsprop"}
_ALWAYS_XLA = "BERT"
"""TensorFlow/LanguageModeling/BERT turns XLA on by default, without saying so in the precision."""
_MASKED_TOKENS = {128: 20, 512: 80}
"""max_predictions_per_seq of the two phases (NVIDIA/DeepLearningExamples, BERT)."""
_PRECISIONS = {"mixed": "mixed", "TF32": "tf32", "FP32": "fp32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Printed:
    """A line of the file, as far as it is used."""

    row_id: str
    gpu: str
    n_gpus: int
    model: str
    framework: str
    task: str
    precision: str
    batch_size_per_gpu: float = 0.0
    metric: str
    value: float
    unit: str
    flag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One published GPU throughput.

    Attributes
    ----------
    row_id : str
        Identifier of the row, which never changes.
    model, gpu, framework, task : str
        As printed.
    gpus : int
        Boards.
    printed_precision : str
        As printed.
    batch : int
        Samples per board and step; 0 where the source does not say.
    published : float
        Items per second of all boards.
    unit, flag : str
        What an item is; why the cell is suspicious, if it is.
    network : str
        Model family that a leave-one-out fit leaves out; empty where none is modelled.
    options : dict
        Arguments of `simulate_gpu` beside the model.
    left_out : str
        Why nothing is predicted; empty where something is.
    """

    row_id: str
    model: str
    gpu: str
    framework: str
    task: str
    gpus: int
    printed_precision: str
    batch: int
    published: float
    unit: str
    flag: str
    network: str
    options: dict[str, Any]
    left_out: str

    @property
    def stack(self) -> str:
        """Name of the software stack; empty where the row is left out."""
        return self.options.get("framework", "")

    @property
    def step_s(self) -> float:
        """Seconds per step that the published throughput implies."""
        return self.gpus * self.batch / self.published


@lru_cache(maxsize=32)
def build_network(model: str, task: str) -> Model:
    """Return the network of a published row.

    Parameters
    ----------
    model, task : str
        As printed, for example "BERT-Large" and "pre-training SL128".

    Raises
    ------
    DataError
        If no network stands for it.
    """
    if model in _IMAGE_MODELS:
        return zoo.load(_IMAGE_MODELS[model])
    name = model.split(" ")[0]
    makers = {"BERT-Base": bert.base, "BERT-Large": bert.large}
    words = f"{model} {task}".split(" SL")
    if name not in makers or len(words) < 2:
        raise DataError(f"No network stands for {model!r} in {task!r}: leave the row out.")
    tokens = int(words[-1].split(" ")[0])
    head = "pretraining" if "pre-training" in task else "question_answering"
    options = {"masked_tokens": _MASKED_TOKENS[tokens]} if head == "pretraining" else {}
    return bert.model(f"{name}-{head}-{tokens}", makers[name](tokens, head, **options))


def _network(model: str) -> str:
    """Return the family of a printed model name, or nothing."""
    if model in _IMAGE_MODELS:
        return model
    return model.split(" ")[0] if model.startswith("BERT") else ""


def _optimizer(model: str, task: str) -> str:
    if model.startswith("BERT"):
        return "lamb" if "pre-training" in task else "adam"
    return _OPTIMIZERS.get(model, "sgd")


def _options(printed: _Printed) -> tuple[dict[str, Any], str]:
    """Return the arguments of a prediction, or the reason why there is none."""
    model, task, framework = printed.model, printed.task, printed.framework
    if printed.metric != "throughput":
        return {}, "not a throughput"
    if not _network(model):
        return {}, "network not among those compared"
    if "PyTorch" in framework and "pre-training" in task:
        return {}, "sequences sorted by length, so tokens per sequence unknown"
    if printed.flag:
        return {}, printed.flag.split(":")[0].replace("_", " ").lower()
    precision = printed.precision.split("+")[0]
    if precision not in _PRECISIONS:
        return {}, f"precision {precision!r} is not modelled"
    xla = "XLA" in printed.precision or (
        framework.startswith("TensorFlow1") and model.startswith(_ALWAYS_XLA)
    )
    try:
        stack = load_gpu_stack(framework + "+XLA" if xla and "tf2" not in framework else framework)
        board = load_gpu(printed.gpu)
    except UnknownNameError as error:
        return {}, f"not modelled: {str(error).split(':')[0]}"
    if printed.n_gpus > board.max_gpus:
        return {}, "several machines"
    return {
        "gpu": board.name,
        "gpus": printed.n_gpus,
        "batch": int(printed.batch_size_per_gpu),
        "mode": "inference" if task.startswith("inference") else "training",
        "precision": _PRECISIONS[precision],
        "framework": stack.name,
        "optimizer": _optimizer(model, task),
    }, ""


def load_gpu_rows() -> tuple[GpuRow, ...]:
    """Return every published GPU row, those without a prediction included.

    Raises
    ------
    DataError
        If the data file is missing or damaged.
    """
    return _rows(read(_Printed, f"published/{GPU_FILE}"))


@lru_cache(maxsize=4)
def _rows(lines: tuple[_Printed, ...]) -> tuple[GpuRow, ...]:
    rows = []
    for printed in lines:
        options, left_out = _options(printed)
        rows.append(
            GpuRow(
                row_id=printed.row_id,
                model=printed.model,
                gpu=printed.gpu,
                framework=printed.framework,
                task=printed.task,
                gpus=printed.n_gpus,
                printed_precision=printed.precision,
                batch=int(printed.batch_size_per_gpu),
                published=printed.value,
                unit=printed.unit,
                flag=printed.flag,
                network=_network(printed.model),
                options=options,
                left_out=left_out,
            )
        )
    return tuple(rows)


def modelled_gpu_rows() -> tuple[GpuRow, ...]:
    """Return the rows that a prediction is made for."""
    return tuple(row for row in load_gpu_rows() if not row.left_out)
