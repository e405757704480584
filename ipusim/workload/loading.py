"""Models by the name of a network, by the path of a file, or as they are."""

from os import PathLike
from pathlib import Path
from typing import Any

from ipusim.errors import ConfigError, WorkloadError
from ipusim.workload import zoo
from ipusim.workload.model import Model
from ipusim.workload.onnx import from_onnx

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
    in_memory = type(model).__name__ == "ModelProto"
    is_path = isinstance(model, str | PathLike) and str(model).lower().endswith(".onnx")
    if in_memory or is_path:
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
