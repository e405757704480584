# ruff: noqa: RUF009 - the defaults of the table are fields, made by functions of this file
"""The options of a run, each declared once: what it means, what it may be, what it is by default.

The fields of `RunConfig` are the table. `ipusim.simulate`, `sweep` and `roofline` with their
docstrings, the command line, the columns of data/runs/configurations.csv and the refusals all read
it, and docs/refresh.py writes `hints.pyi` for editors; `ipusim.runtime.options.config` checks what
depends on several options at once.
"""

from __future__ import annotations

import math
import operator
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from ipusim.errors import ConfigError, resolve_name
from ipusim.runtime.options.frameworks import DEFAULT_FRAMEWORK, FRAMEWORKS, Framework
from ipusim.workload.graph import OPERAND_DTYPES, PRECISIONS
from ipusim.workload.operators.loss import LOSSES
from ipusim.workload.optimizers import OPTIMIZERS, WHOLE, Sharding
from ipusim.workload.serialization import SerialProduct
from ipusim.workload.training import RECOMPUTE_MODES

if TYPE_CHECKING:
    from ipusim.compiler.stacks import Stack
    from ipusim.machine import System

MODES = ("inference", "training")
HOST_DTYPES = ("uint8", "float16", "float32")
PARTIALS = ("half", "float")
ACCUMULATOR_DTYPES = ("float16", "float32")
PLACES = ("on_chip", "off_chip")
LIVENESS = {
    "always_live": 1,
    "off_chip_after_forward": 1,
    "off_chip_after_forward_no_overlap": 2,
    "off_chip_after_each_phase": 4,
}
"""PopTorch's `Liveness` (python/enums.py): how long tensors stay on the chip between phases, with
the distance between the numbers of two phases (graphcore/poptorch@sdk/poptorch/3.3.0:
popart_compiler/source/Compiler.cpp, setActiveIpu): a gap empties the chip in between."""
SCHEDULES = ("grouped", "sequential", "interleaved")
LOAD_SCHEDULES = ("preload", "on_demand")
"""PopART's `ExecutionPhaseIOSchedule`: load in the phase before, or just before the use."""
STREAMED = ("weights", "activations", "accumulators")
"""What phases keep on or off the chip, besides the state of the optimiser."""
DECODING = {
    "imagenet_jpeg": "decoded_images_per_s_per_core",
    "imagenet_pillow": "pillow_images_per_s_per_core",
    "imagenet_ten_crops": "ten_crop_images_per_s_per_core",
}
"""The rate of a `Host` at which a core decodes the images of a data set."""

DATASETS = (*DECODING, "generated", "tokens", "memory", "prepared")
"""JPEG images of which the crop alone is decoded, then resized to uint8 (TensorFlow; PyTorch's CNNs
from SDK 2.5 on, graphcore/examples@v2.5.0:applications/pytorch/cnns/datasets/optimised_jpeg.py);
the same decoded whole by Pillow and then cropped (CNNs before, makefile of v2.4.0, and what else
reads images in PyTorch); by Pillow with ten crops of each, whose colours are changed (DINO, arXiv
2104.14294); data made once on the host or the chip; token ids read as they are; ready items copied
from host memory; items that a worker prepares in a time that the caller states."""

WORKERS_PER_INSTANCE = 14
"""Worker processes of the vendor script: one NUMA node of 16 cores less 2 service processes
(graphcore/examples applications/pytorch/cnns/train/rn50_pod16.sh)."""

OF_STACK = ("partials", "available_memory_proportion")
"""Options that take the place of properties of the stack."""
MAX_IO_TILES = 192

PHASES = "phases"
STAGES = "stages"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: what reads it (or fails), where it lies, and how a refusal asks for it."""

    read: Callable[[Any], Any]
    asks: str
    type: str
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf

    @property
    def hint(self) -> str:
        """What may be given, as a type hint."""
        given = re.sub(r"list of (\w+)", r"Sequence[\1]", self.type)
        return f"{given.replace(' or ', ' | ')} | None"

    def check(self, name: str, value: Any) -> Any:
        """Return a value as it is kept, or raise the `ConfigError` of an option of this name."""
        try:
            read = self.read(value)
            within = not isinstance(read, float | int) or (
                math.isfinite(read) and self.above < read <= self.most and read >= self.least
            )
        except (TypeError, ValueError, KeyError, OverflowError):
            within = False
        if not within:
            raise ConfigError(f"The option {name} is {value!r}: give {self.asks}.")
        return read


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return int(value) if isinstance(value, str) else operator.index(value)


def _real(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    return float(value)


def _depth(value: Any) -> float:
    number = _real(value)
    return int(number) if number.is_integer() else number


def _names(value: Any) -> tuple[str, ...]:
    return tuple(value.split()) if isinstance(value, str) else tuple(map(str, value))


def _chips(value: Any) -> tuple[int, ...]:
    return tuple(map(_whole, _names(value) if isinstance(value, str) else value))


_TRUTH = {"true": True, "false": False, True: True, False: False}


def counts(least: int = 1, most: float = math.inf) -> Kind:
    """Return the kind of whole numbers within bounds."""
    span = f", {least} or more" if most == math.inf else f" from {least} to {most:,}"
    return Kind(_whole, f"a whole number{span}", "int", least=least, most=most)


COUNT = counts()
SIZE = counts(least=0)
_FEW_TILES = f"1 to {MAX_IO_TILES} (poptorch allows 32 to {MAX_IO_TILES})"
TILES = Kind(_whole, _FEW_TILES, "int", least=1, most=MAX_IO_TILES)
_MEAN = "a number, 1 or more; a mean over the iterations of a call need not be whole"
DEPTH = Kind(_depth, _MEAN, "float", least=1)
SECONDS = Kind(_real, "seconds, 0 or more", "float", least=0)
SHARE = Kind(_real, "a share above 0 and up to 1", "float", above=0, most=1)
NAME = Kind(str, "a name", "str")
KINDS = {
    "bool": Kind(_TRUTH.__getitem__, "true or false", "bool"),
    "int": COUNT,
    "tuple[str, ...]": Kind(_names, "a list of names", "list of str"),
    "tuple[int, ...]": Kind(
        _chips, "the number of a chip for each stage, such as 0 1 0", "list of int"
    ),
    "tuple[SerialProduct, ...]": Kind(_names, "products in parts, such as head=4", "list of str"),
    "str | tuple[str, ...]": Kind(_names, "a name or a list of names", "str or list of str"),
}
"""What the type of a field of `RunConfig` says of its values; others are names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of a run; `meaning` is what it is, as a sentence.

    The default is None where another option, the stack or the system decides, as `by_default` says.
    `choices` are the names it may have, if not any. `mode` is the only one that it has a meaning
    in; `group` is `PHASES` for what has one with phases alone, `STAGES` for what has none with
    them. It has none without an option that it `needs`.
    """

    name: str
    kind: Kind
    meaning: str
    default: Any = None
    by_default: str = ""
    unit: str = ""
    choices: tuple[str, ...] = ()
    mode: str = ""
    group: str = ""
    needs: str = ""

    @property
    def is_list(self) -> bool:
        """Whether a value of it is a list."""
        return "list" in self.kind.type

    def check(self, value: Any) -> Any:
        """Return a value as it is kept, or raise `ConfigError` or `UnknownNameError`."""
        if self.choices and not self.is_list:
            return resolve_name(self.name, str(value), self.choices)
        read = self.kind.check(self.name, value)
        if self.is_list and len(read) == 1 and read[0] in self.choices:
            return read[0]
        return read

    def axis(self, value: Any) -> list[Any] | None:
        """Return the values that `ipusim.sweep` takes one after the other; None for a single one.

        Where a value is a list itself, several are a list of lists, of None, or of choices.
        """
        if isinstance(value, str) or not isinstance(value, Iterable):
            return None
        values = list(value)
        if not self.is_list:
            return values
        several = all(
            one is None or one in self.choices or not isinstance(one, str | int) for one in values
        )
        return values if values and several else None

    @property
    def summary(self) -> str:
        """Meaning, choices and default in one line."""
        choices = f"One of {', '.join(self.choices)}" if self.choices else ""
        default = "" if self.default is None else f"default {self.default}"
        facts = "; ".join(text for text in (choices, self.by_default or default) if text)
        return f"{self.meaning} {facts[:1].upper()}{facts[1:]}." if facts else self.meaning


def _option(meaning: str, default: Any = None, **facts: Any) -> Any:
    """Declare an option, of the kind that its type says or of another.

    Where it has no meaning the field holds None.
    """
    return field(default=None, metadata=facts | {"meaning": meaning, "default": default})


def _training(meaning: str, default: Any = None, **facts: Any) -> Any:
    return _option(meaning, default, mode="training", **facts)


def _place(what: str) -> Any:
    meaning = f"Where the {what} of phases lie."
    return _option(meaning, "off_chip", choices=PLACES, group=PHASES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """One run with every option checked and every default taken; each field is an option.

    What has no meaning in a run is None: the options of training in inference, those of phases
    without phases. Phases are PopART's `ExecutionPhaseSettings` and `TensorLocationSettings`
    (graphcore/popart@sdk/poplar/3.3.0:willow/include/popart/sessionoptions.hpp), PopTorch's
    `SerialPhasedExecution` (one chip) and `ParallelPhasedExecution` (two chips that take turns;
    graphcore/poptorch@sdk/poptorch/3.3.0:python/options.py, docs/user_guide/overview.rst).
    """

    system: System = _option("Machine to run on.", "IPU-M2000")
    stack: Stack = _option("Software stack.", by_default="by default that of the system")
    framework: Framework = _option(
        "What calls the chips: sets what a call from the host costs, and the rules of pipelines.",
        DEFAULT_FRAMEWORK,
        choices=FRAMEWORKS,
    )
    adopted: bool = _option(
        "Whether decisions count that were taken after seeing residuals (data/adopted.csv).",
        True,
    )
    mode: str = _option("What to run.", "inference", choices=MODES)
    micro_batch: int | None = _option(
        "Items per replica and step, in training per replica and micro-batch.",
        unit="items",
        by_default="by default what the model fixes, or 1",
    )
    replicas: int = _option(
        "Copies of the model.", by_default="by default as many as the system holds"
    )
    ipus_per_replica: int = _option("Chips of a copy; above 1 the model is cut into stages.", 1)
    precision: str = _option("Storage of activations.weights.", "16.16", choices=tuple(PRECISIONS))
    partials: str = _option(
        "Type of partial sums.",
        by_default="by default that of the stack",
        choices=PARTIALS,
    )
    convolution_partials: str | None = _option(
        "Type of partial sums of convolutions, where products have another.",
        by_default="by default that of all, partials",
        choices=PARTIALS,
    )
    available_memory_proportion: float = _option(
        "Share of tile memory that the temporaries of one operation may take.",
        by_default="by default that of the stack",
        kind=SHARE,
    )
    stable_norm: bool = _option(
        "Whether norms subtract the mean before they sum squares, which is slower (PopTorch's "
        "enableStableNorm, TensorFlow's use_stable_statistics).",
        False,
    )
    serial_products: tuple[SerialProduct, ...] = _option(
        "Products that are computed in parts, one after the other, such as head=4 "
        "(`ipusim.workload.serialization`).",
    )
    host_dtype: str | None = _option(
        "Type of the data on the host.",
        by_default="by default the type of the activations",
        choices=HOST_DTYPES,
    )
    overlap_io: bool = _option(
        "Whether transfers run beside compute, on tiles of their own.", False
    )
    io_tiles: int = _option(
        "Tiles for overlapped transfers.",
        by_default="by default that of the stack",
        needs="overlap_io",
        kind=TILES,
    )
    rearrange_on_host: bool = _option(
        "Whether the host puts what is streamed into the order in which it lies on the chip "
        "(TensorFlow's always_rearrange_copies_on_the_host), not the chip.",
        False,
    )
    batches_in_flight: float = _option(
        "Batches between request and result, on average; with more than one the host runs ahead.",
        by_default="default 1, and 2 in training or with overlap_io",
        kind=DEPTH,
    )
    device_iterations: int = _option(
        "Batches of inference, or weight updates, that the chips run after one call from the host.",
        by_default="default 1 in training, else as the framework's recipes have it",
    )
    instances: int | None = _option(
        "Host processes that feed the replicas (``poprun --num-instances``).",
        by_default="by default one per replica up to the NUMA nodes in training; left out of "
        "account in inference",
    )
    loader_item_s: float = _option(
        "Time of a worker of the loader per item, beside the device: one worker per host process "
        "in inference, those of the dataset 'prepared' in training.",
        0.0,
        unit="s",
        kind=SECONDS,
    )
    serial_item_s: float = _option(
        "Time per item that each host process spends between two runs of the device, to make, "
        "convert or collect data, while its replicas wait.",
        0.0,
        unit="s",
        kind=SECONDS,
    )
    pipeline_splits: tuple[str, ...] = _option(
        "Forward operators that end a stage.",
        by_default="by default the largest stage is as small as possible",
        group=STAGES,
    )
    stage_ipus: tuple[int, ...] = _option(
        "Chip of each stage.", by_default="by default a stage per chip", group=STAGES
    )
    schedule: str = _option(
        "How stages follow each other: grouped is a pipeline in which all work at once, sequential "
        "one after another (PopTorch's sharded execution), interleaved for training alone.",
        "grouped",
        choices=SCHEDULES,
        group=STAGES,
    )
    phases: int = _option(
        "Parts of the model that 1 or 2 chips load in turn from Streaming Memory.", 1
    )
    phase_splits: tuple[str, ...] = _option(
        "Forward operators that end a phase.",
        by_default="by default the weights are shared out",
    )
    phase_liveness: str | None = _option(
        "How long tensors stay on the chip.",
        "always_live",
        choices=tuple(LIVENESS),
        group=PHASES,
    )
    load_schedule: str | None = _option(
        "When a phase is loaded: in the phase before, or just before its use.",
        LOAD_SCHEDULES[0],
        choices=LOAD_SCHEDULES,
        group=PHASES,
    )
    weights: str | None = _place("weights")
    activations: str | None = _place("activations")
    accumulators: str | None = _place("accumulators")
    micro_batches_per_phase: int | None = _option(
        "Micro-batches that a phase computes while it holds its weights; PopART calls them the "
        "compute batches of one micro-batch (`BatchSerializationSettings.factor`).",
        1,
        unit="micro-batches",
        group=PHASES,
    )
    gradient_accumulation: int | None = _training(
        "Micro-batches per weight update.", 1, unit="micro-batches"
    )
    accumulator_dtype: str | None = _training(
        "Type in which the gradients of several micro-batches are added up (PopTorch's "
        "accum_type).",
        by_default="by default that of the weights",
        choices=ACCUMULATOR_DTYPES,
    )
    running_mean: bool | None = _training(
        "Whether float16 accumulators keep the mean of the gradients so far instead of their sum.",
        by_default="by default as the framework does, but a sum with plain or momentum SGD",
    )
    loss: str | None = _training(
        "What training minimises.", by_default="by default the model's own", choices=LOSSES
    )
    optimizer: str | None = _training(
        "Rule of the weight update.", "sgd_momentum", choices=tuple(OPTIMIZERS)
    )
    optimizer_state: str | None = _training(
        "Where the state of the optimiser lies.",
        by_default="default on_chip, and off_chip with phases",
        choices=PLACES,
    )
    replicated_tensor_sharding: bool | None = _training(
        "Whether each replica updates a part of every weight and keeps the state of that part "
        "only.",
        False,
    )
    least_sharded_elements: int | None = _training(
        "Weights of fewer elements are updated whole by every replica (PopART's "
        "minElementsForReplicatedTensorSharding).",
        by_default="by default as the framework does",
        unit="elements",
        needs="replicated_tensor_sharding",
    )
    sharding_domain: int | None = _training(
        "Neighbouring replicas that share the parts of a weight among them, while every such group "
        "holds the same parts (PopART's shardingDomain).",
        by_default="by default all replicas",
        unit="replicas",
        needs="replicated_tensor_sharding",
    )
    recompute: str | tuple[str, ...] | None = _training(
        "What backward passes compute again: none, auto, or all but the operators that are named.",
        "none",
        choices=RECOMPUTE_MODES,
    )
    batch_norm_span: int | None = _training("Replicas that share batch-norm statistics.", 1)
    merge_gradients_bytes: int | None = _training(
        "All-reduces of gradients are joined up to so many bytes; 0 reduces each on its own.",
        0,
        unit="bytes",
        kind=SIZE,
    )
    host_servers: int | None = _training(
        "Servers that the host processes run on.",
        by_default="by default as few as give each a NUMA node, within the numbers that the system "
        "is sold with",
    )
    loader_workers: int | None = _training(
        "Worker processes of each, where the framework loads data with processes.",
        WORKERS_PER_INSTANCE,
    )
    dataset: str | None = _training("What the host must prepare.", "generated", choices=DATASETS)

    @property
    def training(self) -> bool:
        """Whether it is a training run."""
        return self.mode == "training"

    @property
    def phased(self) -> bool:
        """Whether a copy shares its chips in time."""
        return self.phases > 1

    @property
    def off_chip(self) -> frozenset[str]:
        """Those of `STREAMED` that phases keep in Streaming Memory."""
        return frozenset(kind for kind in STREAMED if getattr(self, kind) == "off_chip")

    @property
    def active_ipus(self) -> int:
        """Chips that work."""
        return self.replicas * self.ipus_per_replica

    @property
    def items(self) -> int:
        """Items of a micro-batch."""
        return self.micro_batch or 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a replica and step."""
        if self.training:
            return self.gradient_accumulation
        return self.micro_batches_per_phase if self.phased else 1

    @property
    def product_dtypes(self) -> tuple[str, str]:
        """Types of what convolutions and products read, and of their partial sums."""
        dtype = OPERAND_DTYPES.get(self.precision, "float16")
        wide = dtype == "float32" or self.partials == "float"
        return dtype, "float32" if wide else "float16"

    @property
    def sharding(self) -> Sharding:
        """How the replicas share the update of weights."""
        if not self.replicated_tensor_sharding:
            return WHOLE
        return Sharding(self.sharding_domain, self.least_sharded_elements)


OPTIONS: dict[str, Option] = {
    one.name: Option(
        name=one.name, **{"kind": KINDS.get(one.type.removesuffix(" | None"), NAME)} | one.metadata
    )
    for one in fields(RunConfig)
}
"""Every option of a run by its name."""


@cache
def option_docs() -> str:
    """Return all options as entries of a numpydoc section, those of training last."""
    lines = []
    for option in OPTIONS.values():
        unit = f" [{option.unit}]" if option.unit else ""
        only = "Training only. " if option.mode else ""
        only += "With phases only. " if option.group == PHASES else ""
        text = textwrap.wrap(only + option.summary, 88)
        lines += [f"{option.name} : {option.kind.type}{unit}", *(f"    {line}" for line in text)]
    return "\n".join(lines)
