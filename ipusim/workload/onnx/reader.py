"""Reading ONNX files into the few facts that building a graph needs, without the weights.

Calls of functions are replaced by their bodies.
"""

import copy
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from ipusim.errors import WorkloadError

KEPT_ELEMENTS = 4096
"""Constants up to this size keep their values (shapes, axes, scalars); larger ones are weights."""

LARGEST_SIZE = 2**40
"""No dimension of a tensor is as long as this."""

ELEMENT_TYPES = frozenset(onnx.TensorProto.DataType.values())
"""Numbers that ONNX knows as element types."""

MINIMUM_OPSET = 7
"""Before it, Add and Gemm broadcast by attributes."""

MAXIMUM_OPSET = 99
"""Newer ones than onnx knows are read as its newest; numbers beyond this one are damage."""

_NAMELESS = dict.fromkeys(("?", "None", "-1", "unknown"), "")
"""What exporters write for a free size without a name, for several in one file."""

STANDARD_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An initializer: its type, its shape, and its values if they are few."""

    elem_type: int
    shape: tuple[int, ...]
    array: np.ndarray | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInput:
    """A graph input that the host must send.

    Free sizes are their names, or "" without one; None stands for the batch, once it is known which
    that is (`ipusim.workload.onnx.inputs`). The shape is None where the file does not even say how
    many sizes there are.
    """

    name: str
    elem_type: int
    shape: tuple[int | str | None, ...] | None


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
    shapes: dict[str, tuple[int, ...]]
    """Those that the file states for results, where every size is fixed."""

    @property
    def opset(self) -> int:
        """Version of the standard operator set."""
        found = [entry.version for entry in self.opsets if entry.domain in STANDARD_DOMAINS]
        return found[0] if found else onnx.defs.onnx_opset_version()


def read_onnx(source: str | PathLike[str] | onnx.ModelProto) -> OnnxContents:
    """Read a file or a model in memory; `WorkloadError` says what is wrong with it."""
    if isinstance(source, onnx.ModelProto):
        model, folder = source, Path()
        name = source.graph.name or "onnx_model"
        label = f"the ONNX model {name!r}"
    else:
        path = Path(source)
        model, folder, name = _load(path), path.parent, path.stem
        label = f"the ONNX file {path.name!r}"
    _check_model(model, label)
    nodes = inline_functions(model, label)
    _check_names(nodes, label)
    initializers = {
        tensor.name: stored(tensor, label, folder) for tensor in model.graph.initializer
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
        nodes=tuple(copy.deepcopy(node) for node in nodes),
        outputs=tuple(value.name for value in model.graph.output),
        shapes={
            value.name: shape
            for value in (*model.graph.value_info, *model.graph.output)
            if (shape := _stated_shape(value)) is not None
        },
    )


def _stated_shape(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    kind = value.type.tensor_type
    dims = kind.shape.dim
    fixed = kind.HasField("shape") and all(0 < dim.dim_value < LARGEST_SIZE for dim in dims)
    return tuple(dim.dim_value for dim in dims) if fixed else None


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
    versions = [entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS]
    if not model.ir_version or not model.graph.node or not model.opset_import:
        raise WorkloadError(
            f"{capital(label)} holds no operator graph, so it is not an ONNX model or it was cut "
            "short; export it again."
        )
    if versions and not MINIMUM_OPSET <= versions[0] <= MAXIMUM_OPSET:
        raise WorkloadError(
            f"{capital(label)} uses operator set {versions[0]}, which must be {MINIMUM_OPSET} or "
            f"newer and at most {MAXIMUM_OPSET}; export it again."
        )
    if model.graph.sparse_initializer:
        raise WorkloadError(
            f"{capital(label)} stores sparse weights, which are not supported; export them dense."
        )


def _check_names(nodes: list[onnx.NodeProto], label: str) -> None:
    """Refuse names that are no text, which protobuf hands over as bytes, and kinds with breaks."""
    for node in nodes:
        texts = [node.name, node.op_type, node.domain, *node.input, *node.output]
        texts += [attribute.name for attribute in node.attribute]
        if not all(isinstance(text, str) for text in texts) or not node.op_type.isprintable():
            raise WorkloadError(
                f"{capital(label)} is damaged: a {node.op_type!r} node has a name that is no "
                "text; export it again."
            )


def _check_type(elem_type: int, name: str, label: str) -> int:
    if elem_type == onnx.TensorProto.UNDEFINED or elem_type not in ELEMENT_TYPES:
        raise WorkloadError(
            f"{capital(label)} gives {name!r} an element type {elem_type} that does not exist; "
            "export it again."
        )
    return elem_type


def capital(label: str) -> str:
    """Return the label of a file as a sentence begins with it."""
    return label[0].upper() + label[1:]


def stored(tensor: onnx.TensorProto, label: str, folder: Path = Path()) -> Stored:
    """Return what is kept of an initializer."""
    shape = tuple(tensor.dims)
    _check_type(tensor.data_type, tensor.name, label)
    if any(not 0 <= size < LARGEST_SIZE for size in shape):
        raise WorkloadError(
            f"{capital(label)} has an initializer {tensor.name!r} of shape {shape}, where every "
            f"size must be from 0 to {LARGEST_SIZE}; export it again."
        )
    array = None
    if prod(shape) <= KEPT_ELEMENTS:
        try:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                array = _external(tensor, shape, folder)
            else:
                array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError) as error:
            raise WorkloadError(
                f"{capital(label)} has a damaged initializer {tensor.name!r}; export it again."
            ) from error
    return Stored(elem_type=tensor.data_type, shape=shape, array=array)


def _external(tensor: onnx.TensorProto, shape: tuple[int, ...], folder: Path) -> np.ndarray | None:
    """Return the few values outside the file, None if absent; its folder is never left."""
    entry = {item.key: item.value for item in tensor.external_data}
    path = (folder / entry.get("location", "")).resolve()
    offset = int(entry.get("offset") or 0)
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    wanted = prod(shape) * kind.itemsize
    if offset < 0 or not path.is_relative_to(folder.resolve()):
        raise ValueError(offset)
    try:
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(wanted)
    except (OSError, OverflowError):
        return None
    return np.frombuffer(content, kind).reshape(shape) if len(content) == wanted else None


def _size_name(name: str | bytes) -> str:
    """Return the name of a free size; protobuf hands over bytes where it is no UTF-8."""
    text = name.decode(errors="replace") if isinstance(name, bytes) else name
    return _NAMELESS.get(text, text)


def _data_input(value: onnx.ValueInfoProto, label: str) -> DataInput:
    if not value.type.HasField("tensor_type"):
        raise WorkloadError(
            f"Input {value.name!r} of {label} is no tensor but a sequence, a map or an optional; "
            "export the model with tensors as inputs."
        )
    kind = value.type.tensor_type
    shape: tuple[int | str | None, ...] | None = None
    if kind.HasField("shape"):
        shape = tuple(
            dim.dim_value if dim.dim_value > 0 else _size_name(dim.dim_param)
            for dim in kind.shape.dim
        )
    return DataInput(
        name=value.name, elem_type=_check_type(kind.elem_type, value.name, label), shape=shape
    )


LARGEST_BODY = 50_000
"""Nodes of a file with all functions replaced; nested functions can stand for any number."""

DEEPEST = 64
"""Functions within functions, or branches within branches."""


def inline_functions(model: onnx.ModelProto, label: str) -> list[onnx.NodeProto]:
    """Return the nodes of a model, calls of its own functions replaced by what they do."""
    functions = {(item.domain, item.name): item for item in model.functions}
    found: list[onnx.NodeProto] = []
    calls = 0

    def expand(nodes: list[onnx.NodeProto], active: tuple[tuple[str, str], ...]) -> None:
        """Add nodes, calls replaced; `active` are the functions whose bodies they are in."""
        nonlocal calls
        for node in nodes:
            key = (node.domain, node.op_type)
            if key not in functions:
                found.append(node)
            elif key in active or len(active) > DEEPEST:
                raise WorkloadError(
                    f"Function {node.op_type!r} of {label} calls itself, which has no end; "
                    "export the model again."
                )
            else:
                calls += 1
                prefix = f"{node.name or node.op_type}#{calls}/"
                expand(called(node, functions[key], prefix), (*active, key))
            if len(found) + calls > LARGEST_BODY:
                raise WorkloadError(
                    f"{capital(label)} has more than {LARGEST_BODY} operators, its functions "
                    "replaced; export a part of the model."
                )

    expand(model.graph.node, ())
    return found


def called(call: onnx.NodeProto, function: onnx.FunctionProto, prefix: str) -> list[onnx.NodeProto]:
    """Return the body of a function with the names and attributes of one call."""
    names = {"": ""}
    for place, formal in enumerate(function.input):
        names[formal] = call.input[place] if place < len(call.input) else ""
    for place, formal in enumerate(function.output):
        given = place < len(call.output) and call.output[place]
        names[formal] = call.output[place] if given else prefix + formal
    values = {item.name: item for item in function.attribute_proto}
    values.update({item.name: item for item in call.attribute})
    return [renamed(node, names, prefix, values) for node in function.node]


def definition(
    call: onnx.NodeProto, opset: int, types: list[onnx.TypeProto]
) -> onnx.FunctionProto | None:
    """Return how onnx defines an operator by simpler ones; None if it does not."""
    try:
        schema = onnx.defs.get_schema(
            call.op_type, min(opset, onnx.defs.onnx_opset_version()), call.domain
        )
    except onnx.defs.SchemaError:
        return None
    fixed, varying = (
        schema.function_opset_versions,
        schema.context_dependent_function_opset_versions,
    )
    versions = fixed or varying
    if not versions:
        return None
    version = max((v for v in versions if v <= opset), default=min(versions))
    function = onnx.FunctionProto()
    if fixed:
        function.ParseFromString(schema.get_function_with_opset_version(version))
    else:
        function.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                version, call.SerializeToString(), [kind.SerializeToString() for kind in types]
            )
        )
    own = {item.name for item in function.attribute_proto}
    function.attribute_proto.extend(
        item.default_value
        for name, item in schema.attributes.items()
        if item.default_value.name and name not in own
    )
    return function if function.node else None


def renamed(
    node: onnx.NodeProto,
    names: dict[str, str],
    prefix: str,
    values: dict[str, onnx.AttributeProto],
) -> onnx.NodeProto:
    """Return a node with new names of tensors, and `values` where it refers to attributes.

    Results without a new name get the prefix, and are added to the names.
    """
    fresh = copy.deepcopy(node)
    fresh.name = prefix + (node.name or node.op_type)
    fresh.input[:] = [names.get(name, name) for name in node.input]
    fresh.output[:] = [names.setdefault(name, prefix + name) for name in node.output]
    _set_attributes(fresh, values)
    for attribute in fresh.attribute:
        if attribute.HasField("g"):
            _rename_graph(attribute.g, names, prefix, values)
    return fresh


def _set_attributes(node: onnx.NodeProto, values: dict[str, onnx.AttributeProto]) -> None:
    kept = []
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            kept.append(copy.deepcopy(attribute))
        elif attribute.ref_attr_name in values:
            given = copy.deepcopy(values[attribute.ref_attr_name])
            given.name = attribute.name
            kept.append(given)
    del node.attribute[:]
    node.attribute.extend(kept)


def _rename_graph(
    graph: onnx.GraphProto,
    names: dict[str, str],
    prefix: str,
    values: dict[str, onnx.AttributeProto],
) -> None:
    """Rename what a branch or loop body takes from outside; its own names hide those."""
    own = {item.name for item in (*graph.input, *graph.initializer)}
    inner = {key: value for key, value in names.items() if key not in own}
    nodes = []
    for node in graph.node:
        for name in node.output:
            inner.pop(name, None)
            inner[name] = name
        fresh = renamed(node, inner, "", values)
        fresh.name = node.name
        nodes.append(fresh)
    del graph.node[:]
    graph.node.extend(nodes)
    for item in graph.output:
        item.name = inner.get(item.name, item.name)
