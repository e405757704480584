"""Published GPU rows: what was run on which board, and what is predicted for it."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ipusim.errors import DataError, UnknownNameError
from ipusim.files import data_dir, read
from ipusim.machine import Gpu, load
from ipusim.runtime.gpu.kernels import GpuStack
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
    options: dict[str, Any] = field(default_factory=dict)  # of `simulate_gpu`, beside the model
    left_out: str = ""  # why nothing is predicted, without options

    @property
    def mode(self) -> str:
        """Mode of the prediction; empty where there is none."""
        return self.options.get("mode", "")

    @property
    def stack(self) -> str:
        """Name of the software stack; empty where the row is left out."""
        return self.options.get("framework", "")

    @property
    def network(self) -> str:
        """Model family that a leave-one-out fit leaves out; empty where none is modelled."""
        if self.model in _IMAGE_MODELS:
            return self.model
        return self.model.split(" ")[0] if self.model.startswith("BERT") else ""

    @property
    def step_s(self) -> float:
        """Seconds per step that the published throughput implies."""
        return self.gpus * self.batch / self.published


@lru_cache(maxsize=32)
def build_network(model: str, task: str) -> Model:
    """Return the network of a row, whose cells are as "BERT-Large" and "pre-training SL128"."""
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


def _optimizer(model: str, task: str) -> str:
    if model.startswith("BERT"):
        return "lamb" if "pre-training" in task else "adam"
    return _OPTIMIZERS.get(model, "sgd")


def _options(row: GpuRow) -> tuple[dict[str, Any], str]:
    """Return the arguments of a prediction, or the reason why there is none."""
    model, task, framework = row.model, row.task, row.framework
    if row.metric != "throughput":
        return {}, "not a throughput"
    if not row.network:
        return {}, "network not among those compared"
    if "PyTorch" in framework and "pre-training" in task:
        return {}, "sequences sorted by length, so tokens per sequence unknown"
    if row.flag:
        return {}, row.flag.split(":")[0].replace("_", " ").lower()
    precision = row.precision.split("+")[0]
    if precision not in _PRECISIONS:
        return {}, f"precision {precision!r} is not modelled"
    xla = "XLA" in row.precision or (
        framework.startswith("TensorFlow1") and model.startswith(_ALWAYS_XLA)
    )
    try:
        stack = load(GpuStack, framework + "+XLA" if xla and "tf2" not in framework else framework)
        board = load(Gpu, row.gpu)
    except UnknownNameError as error:
        return {}, f"not modelled: {str(error).split(':')[0]}"
    if row.gpus > board.max_gpus:
        return {}, "several machines"
    return {
        "gpu": board.name,
        "gpus": row.gpus,
        "batch": row.batch,
        "mode": "inference" if task.startswith("inference") else "training",
        "precision": _PRECISIONS[precision],
        "framework": stack.name,
        "optimizer": _optimizer(model, task),
    }, ""


def load_gpu_rows() -> tuple[GpuRow, ...]:
    """Return every published GPU row, those without a prediction included."""
    return _rows(data_dir())


@lru_cache(maxsize=4)
def _rows(folder: Path) -> tuple[GpuRow, ...]:
    printed = read(GpuRow, f"published/{GPU_FILE}")
    known = ((row, *_options(row)) for row in printed)
    return tuple(replace(row, options=options, left_out=why) for row, options, why in known)


def modelled_gpu_rows() -> tuple[GpuRow, ...]:
    """Return the rows that a prediction is made for."""
    return tuple(row for row in load_gpu_rows() if not row.left_out)
