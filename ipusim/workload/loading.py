"""A model by its name in the zoo or by the path of an ONNX file."""

from typing import Any

from ipusim.errors import ConfigError
from ipusim.workload import zoo
from ipusim.workload.model import Model

ONNX_OPTIONS = ("shapes", "dims", "values", "allow_unknown")
"""Options that say what an ONNX file leaves open; those of `from_onnx`."""


def load_model(model: str | Model, **given: Any) -> Model:
    """Return a model from a zoo name, a path ending in .onnx, or a `Model` as it is.

    `given` are options of `from_onnx` (`ONNX_OPTIONS`), for a path only.

    Raises
    ------
    UnknownNameError
        If the zoo has no such model; the message gives the nearest name.
    WorkloadError
        If the file cannot be read or holds an operator that is not supported.
    ConfigError
        If something is given for a model that is no file.
    """
    if not isinstance(model, Model) and str(model).lower().endswith(".onnx"):
        from ipusim.workload.onnx.importer import from_onnx

        return from_onnx(model, **given)
    for name in given:
        named = model.name if isinstance(model, Model) else model
        raise ConfigError(
            f"The option {name} is for a path that ends in .onnx, which {named!r} does not: leave "
            "it out."
        )
    return model if isinstance(model, Model) else zoo.load(str(model))
