"""Reading ONNX files into the few facts that building a graph needs, without the weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, inliner, numpy_helper

from ipusim.errors import WorkloadError

KEPT_ELEMENTS = 4096
"""Constants up to this size keep their values (shapes, axes, scalars); larger ones are weights."""

ELEMENT_TYPES = frozenset(onnx.TensorProto.DataType.values())
"""Numbers that ONNX knows as element types."""

MINIMUM_OPSET = 7
"""Before it, Add and Gemm broadcast by attributes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An initializer: its type, its shape, and its values if they are few."""

    elem_type: int
    shape: tuple[int, ...]
    array: np.ndarray | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInput:
    """A graph input that the host must send; a leading ``None`` is a symbolic batch."""

    name: str
    elem_type: int
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxContents:
    """What `read_onnx` keeps of a file."""

    name: str
    source: str
    ir_version: int
    opsets: tuple[onnx.OperatorSetIdProto, ...]
    inputs: tuple[DataInput, ...]
    initializers: dict[str, Stored]
    nodes: tuple[onnx.NodeProto, ...]
    outputs: tuple[str, ...]

    @property
    def opset(self) -> int:
        """Version of the standard operator set."""
        return next(entry.version for entry in self.opsets if entry.domain in ("", "ai.onnx"))


def read_onnx(source: str | PathLike[str] | onnx.ModelProto) -> OnnxContents:
    """Read a file or a model in memory.

    Raises
    ------
    WorkloadError
        If there is no such file, if it is not an ONNX model, or if it uses a feature that has
        no place in a fixed operator graph.
    """
    if isinstance(source, onnx.ModelProto):
        model, folder = source, Path()
        name = source.graph.name or "onnx_model"
        label = f"the ONNX model {name!r}"
    else:
        path = Path(source)
        model, folder, name = _load(path), path.parent, path.stem
        label = f"the ONNX file {path.name!r}"
    _check_model(model, label)
    if model.functions:
        model = inliner.inline_local_functions(model)
    _check_names(model, label)
    initializers = {
        tensor.name: _stored(tensor, folder, label) for tensor in model.graph.initializer
    }
    return OnnxContents(
        name=name,
        source=label,
        ir_version=model.ir_version,
        opsets=tuple(copy.deepcopy(entry) for entry in model.opset_import),
        inputs=tuple(
            _data_input(value, label)
            for value in model.graph.input
            if value.name not in initializers
        ),
        initializers=initializers,
        # Copies: a node would otherwise keep the whole file with its weights alive.
        nodes=tuple(copy.deepcopy(node) for node in model.graph.node),
        outputs=tuple(value.name for value in model.graph.output),
    )


def _load(path: Path) -> onnx.ModelProto:
    try:
        return onnx.load(path, load_external_data=False)
    except FileNotFoundError:
        raise WorkloadError(f"There is no ONNX file {str(path)!r}; check the path.") from None
    except OSError as error:
        raise WorkloadError(
            f"The ONNX file {str(path)!r} cannot be read ({error.strerror})."
        ) from error
    except (DecodeError, UnicodeDecodeError) as error:
        raise WorkloadError(
            f"The file {path.name!r} is not an ONNX model; export it again."
        ) from error


def _check_model(model: onnx.ModelProto, label: str) -> None:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not model.ir_version or not model.graph.node or not versions:
        raise WorkloadError(
            f"{_capital(label)} holds no operator graph, so it is not an ONNX model or it was cut "
            "short; export it again."
        )
    if versions[0] < MINIMUM_OPSET:
        raise WorkloadError(
            f"{_capital(label)} uses operator set {versions[0]}, which must be {MINIMUM_OPSET} or "
            "newer; export it again."
        )
    if model.graph.sparse_initializer:
        raise WorkloadError(
            f"{_capital(label)} stores sparse weights, which are not supported; export them dense."
        )


def _check_names(model: onnx.ModelProto, label: str) -> None:
    """Refuse names that are no text: protobuf hands them over as bytes."""
    for node in model.graph.node:
        texts = [node.name, node.op_type, node.domain, *node.input, *node.output]
        texts += [attribute.name for attribute in node.attribute]
        if not all(isinstance(text, str) for text in texts):
            raise WorkloadError(
                f"{_capital(label)} is damaged: a {node.op_type!r} node has a name that is no "
                "text; export it again."
            )


def _check_type(elem_type: int, name: str, label: str) -> int:
    if elem_type == onnx.TensorProto.UNDEFINED or elem_type not in ELEMENT_TYPES:
        raise WorkloadError(
            f"{_capital(label)} gives {name!r} an element type {elem_type} that does not exist; "
            "export it again."
        )
    return elem_type


def _capital(label: str) -> str:
    return label[0].upper() + label[1:]


def _stored(tensor: onnx.TensorProto, folder: Path, label: str) -> Stored:
    shape = tuple(tensor.dims)
    _check_type(tensor.data_type, tensor.name, label)
    array = None
    if int(np.prod(shape, dtype=np.int64)) <= KEPT_ELEMENTS:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor = copy.deepcopy(tensor)
            try:
                external_data_helper.load_external_data_for_tensor(tensor, str(folder))
            except (OSError, onnx.checker.ValidationError) as error:
                raise WorkloadError(
                    f"{_capital(label)} keeps {tensor.name!r} in an external data file that "
                    "cannot be read; put that file beside the model."
                ) from error
        try:
            array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise WorkloadError(
                f"{_capital(label)} has a damaged initializer {tensor.name!r}; export it again."
            ) from error
    return Stored(elem_type=tensor.data_type, shape=shape, array=array)


def _data_input(value: onnx.ValueInfoProto, label: str) -> DataInput:
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        raise WorkloadError(
            f"Input {value.name!r} of {label} has no tensor shape; export the model with fixed "
            "input shapes."
        )
    sizes: list[int | None] = []
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.dim_value > 0:
            sizes.append(dim.dim_value)
        elif axis == 0:
            sizes.append(None)
        else:
            raise WorkloadError(
                f"Input {value.name!r} of {label} has a dynamic dimension "
                f"{dim.dim_param or '?'!r} at position {axis}, where only the leading one, the "
                "batch, may be dynamic; export the model with the others fixed."
            )
    return DataInput(
        name=value.name,
        elem_type=_check_type(value.type.tensor_type.elem_type, value.name, label),
        shape=tuple(sizes),
    )
