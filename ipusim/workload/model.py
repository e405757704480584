"""A model: a named recipe that builds a graph for any micro-batch; by its name or its file."""

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ipusim.errors import ConfigError, IpuSimError, WorkloadError
from ipusim.workload.graph import Graph


def check_micro_batch(micro_batch: object) -> int:
    """Return the micro-batch as a plain int, a positive whole number."""
    try:
        size = operator.index(micro_batch)  # type: ignore[arg-type]
    except TypeError:
        size = 0
    if size < 1 or isinstance(micro_batch, bool):
        raise ConfigError(
            f"Micro-batch {micro_batch!r} must be a whole number of samples, 1 or more."
        )
    return size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """A network that can be built for any micro-batch.

    Models are told apart by identity: what they build cannot be compared, and results of one are
    remembered under it.

    Attributes
    ----------
    name : str
        Zoo name, or the stem of the ONNX file.
    family : str
        Group that shares an architecture ("resnet", "resnext", "onnx").
    build : callable
        Takes the micro-batch (None for the model's own default) and returns a `Graph` with
        32-bit floating-point storage.
    source : str
        Where the definition comes from.
    note : str
        What a reader of its results must know, for example that the architecture is assumed.
    loss : str
        What it is trained with, one of `operators.LOSSES` ("identity": it computes its own); empty
        if the model does not say.
    folds_batch_norm : bool
        Whether a stack may fold batch norm into convolutions for inference. False where weights
        are variables that the framework keeps (Keras), unknown when the program is compiled.
    repeated_inputs : tuple of str
        Inputs with the values of another, which the host prepares once and sends twice.
    batch : int
        Items of a pass for a micro-batch of None.
    """

    name: str
    family: str
    build: Callable[[int | None], Graph]
    source: str = ""
    note: str = ""
    loss: str = ""
    folds_batch_norm: bool = True
    repeated_inputs: tuple[str, ...] = ()
    batch: int = 1

    def __repr__(self) -> str:
        """Say in three lines what goes in and out, how much work it is, and of what operators."""
        try:
            graph = self.graph()
        except IpuSimError as error:
            return f"{self.name}: {error}"
        ends = (
            ", ".join(f"{name} {graph.tensors[name].shape}" for name in names)
            for names in (graph.inputs, graph.outputs)
        )
        kinds = Counter(op.kind for op in graph.ops).most_common()
        return (
            f"{self.name}: {' -> '.join(ends)}\n"
            f"{graph.parameters:,} parameters, {graph.macs:,} MACs for these shapes\n"
            f"{', '.join(f'{count} {kind}' for kind, count in kinds)}"
        )

    def graph(self, micro_batch: int | None = None, precision: str = "16.16") -> Graph:
        """Build the validated graph.

        Parameters
        ----------
        micro_batch : int, optional
            Samples per pass; None takes the model's default (1, or what an ONNX file fixes).
        precision : {"16.16", "16.32", "32.32", "float8"}
            Storage of activations and weights.

        Raises
        ------
        ConfigError
            If the micro-batch is not a positive whole number.
        UnknownNameError
            If there is no such precision.
        WorkloadError
            If the model cannot be built at this micro-batch.
        """
        size = None if micro_batch is None else check_micro_batch(micro_batch)
        return self.build(size).with_precision(precision).validate()


ONNX_OPTIONS = {
    "shapes": "Mapping[str, Any] | None",
    "dims": "Mapping[str, Any] | None",
    "values": "Mapping[str, Any] | None",
    "allow_unknown": "bool",
}
"""Options that say what an ONNX file leaves open; those of `from_onnx`."""


def _is_file(path: Path) -> bool:
    """Whether there is a file with an ending, of a name that may be too long for one."""
    try:
        return bool(path.suffix) and path.is_file()
    except OSError:
        return False


def load_model(model: str | Model, **given: Any) -> Model:
    """Return a model from a zoo name, a path ending in .onnx, an ONNX model, or a `Model` as it is.

    `given` are options of `from_onnx` (`ONNX_OPTIONS`), for a path only.

    Raises
    ------
    UnknownNameError
        If the zoo has no such model; the message gives the nearest name.
    WorkloadError
        If the file cannot be read, is of another kind or holds an operator that is not supported.
    ConfigError
        If something is given for a model that is no file.

    Examples
    --------
    >>> ipusim.load_model("braggnn")
    braggnn: patches (1, 1, 11, 11) -> dense_layers.out.bias_add.out (1, 2)
    33,172 parameters, 2,094,252 MACs for these shapes
    20 elementwise, 7 conv, 7 matmul, 5 layout, 1 softmax
    """
    from ipusim.workload import zoo

    in_memory = type(model).__name__ == "ModelProto"
    is_path = isinstance(model, str | PathLike) and str(model).lower().endswith(".onnx")
    if in_memory or is_path:
        from ipusim.workload.onnx import from_onnx

        return from_onnx(model, **given)
    if isinstance(model, str | PathLike) and _is_file(Path(model)):
        raise WorkloadError(
            f"The file {str(model)!r} does not end in .onnx, and no other kind is read; export the "
            "network as ONNX."
        )
    for name in given:
        named = model.name if isinstance(model, Model) else model
        raise ConfigError(
            f"The option {name} is for a path that ends in .onnx, which {named!r} does not: leave "
            "it out."
        )
    return model if isinstance(model, Model) else zoo.load(str(model))
