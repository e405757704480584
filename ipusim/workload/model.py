"""A model: a named recipe that builds a graph for any micro-batch."""

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ipusim.errors import ConfigError, IpuSimError
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
