"""Reading ONNX files into the few facts that building a graph needs, without the weights."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from ipusim.errors import WorkloadError, why
from ipusim.files import check_file

_MOST_BYTES = 2**31 - 1
"""Of a file, as protobuf has it; larger models keep their weights in files beside it."""

_KEPT_ELEMENTS = 4096
"""Constants up to this size keep their values (shapes, axes, scalars); larger ones are weights."""

_KEPT_INTEGERS = 16 * _KEPT_ELEMENTS
"""Masks and positions may be larger than other constants: sizes are counted from them."""

LARGEST_SIZE = 2**40
"""No dimension of a tensor is as long as this."""

ELEMENT_TYPES = frozenset(onnx.TensorProto.DataType.values())
"""Numbers that ONNX knows as element types."""

_HIDING = -1e4
"""What masks of attention hold, or lower numbers: no score is as low."""

_FEW, _NONE = 64, np.zeros(0)

INTEGERS = tuple(map(onnx.TensorProto.DataType.Value, ("INT32", "INT64", "BOOL")))

FLOATS = tuple(map(onnx.TensorProto.DataType.Value, ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE")))

MINIMUM_OPSET = 7
"""Before it, Add and Gemm broadcast by attributes."""

MAXIMUM_OPSET = 99
"""Newer ones than onnx knows are read as its newest; numbers beyond this one are damage."""

_NAMELESS = dict.fromkeys(("?", "None", "-1", "unknown"), "")
"""What exporters write for a free size without a name, for several in one file."""

_LFS_POINTER = b"version https://git-lfs"
"""What a file begins with that a clone without Git LFS has in the place of a large one."""

STANDARD_DOMAINS = ("", "ai.onnx")


def file_error(label: str, what: str, advice: str = "export it again") -> WorkloadError:
    """Return the error of a file: what is wrong with it, and what to do."""
    end = "" if advice.endswith("?") else "."
    return WorkloadError(f"{label[0].upper()}{label[1:]} {what}; {advice}{end}")


@dataclass(slots=True, kw_only=True)
class Value:
    """One ONNX value.

    ``learnable`` says that it comes from an initializer, or that an import rule made it, so that it
    is no parameter (False); of other constants, and of states of zeros, neither is known.
    """

    shape: tuple[int, ...]
    elem_type: int
    static: bool
    array: np.ndarray | None = None
    learnable: bool | None = None
    root: str | None = None  # the initializer whose memory it shares, in another shape
    alike: bool = False  # whether along the first axis all is the same, of one without its values
    counted: bool = False  # whether it follows from the round of a loop: the chip computes it
    computed: bool = False  # whether it is a product of weights, or follows from one: it runs

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def trained(self) -> bool:
        """Whether it is a parameter wherever it is read: learnable and several numbers."""
        return bool(self.learnable) and self.elements > 1 and self.elem_type not in INTEGERS

    @property
    def content(self) -> bytes:
        """The bytes of its array without zeros at the end; of zeros, however many, none."""
        if any(self.array.strides) or self.array.flat[:1].any():
            return self.array.tobytes().rstrip(b"\0")
        return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInput:
    """A graph input that the host must send; free sizes are their names, or "" without one."""

    name: str
    elem_type: int
    shape: tuple[int | str, ...] | None  # None if the file does not say how many sizes
    states: bool = False  # whether recurrent layers start from it

    def place(self, axis: int | None) -> int | None:
        """Return where the batch is that inputs have at an axis, None if nowhere."""
        # In states it stands behind the directions and layers.
        place = 1 if self.states and axis == 0 else axis
        return None if place is None or len(self.shape or ()) <= place else place


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxContents:
    """What `read_onnx` keeps of a file."""

    name: str
    source: str
    opset: int  # version of the standard operator set
    opsets: dict[str, int]  # versions by domain
    inputs: tuple[DataInput, ...]
    initializers: dict[str, Value]
    nodes: tuple[onnx.NodeProto, ...]
    functions: dict[tuple[str, str], onnx.FunctionProto]  # the file's own, by domain and name
    outputs: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]  # as stated for results, where every size is fixed

    @property
    def weights_are_constants(self) -> bool:
        """Whether no initializer may be a weight, so that nodes of constants are."""
        kept = self.initializers.values()
        return all(value.elements < 2 for value in kept if value.elem_type in FLOATS)

    def error(self, what: str, advice: str = "export it again") -> WorkloadError:
        """Return the error that says what is wrong with the file, and what to do."""
        return file_error(self.source, what, advice)


def read_onnx(source: str | PathLike[str] | onnx.ModelProto) -> OnnxContents:
    """Read a file or a model in memory; `WorkloadError` says what is wrong with it."""
    if isinstance(source, onnx.ModelProto):
        model, folder = source, Path()
        name = source.graph.name or "onnx_model"
        label = f"the ONNX model {name!r}"
    elif not isinstance(source, str | PathLike):
        raise WorkloadError(
            f"{source!r} is no ONNX model: give the path of a file, or an onnx.ModelProto."
        )
    else:
        path = Path(source)
        model, folder, name = _load(path), path.parent, path.stem
        label = f"the ONNX file {path.name!r}"
    opset = _opset(model, label)
    graph, states = model.graph, _initial_states(model.graph.node)
    initializers = {tensor.name: stored(tensor, label, folder) for tensor in graph.initializer}
    inputs = [one for one in graph.input if one.name not in initializers]
    return OnnxContents(
        name=name,
        source=label,
        opset=opset,
        opsets={entry.domain: entry.version for entry in model.opset_import},
        inputs=tuple(_data_input(one, label, states) for one in inputs),
        initializers=initializers,
        # Copies: a node would otherwise keep the whole file with its weights alive.
        nodes=tuple(map(copy.deepcopy, graph.node)),
        functions={(item.domain, item.name): copy.deepcopy(item) for item in model.functions},
        outputs=tuple(one.name for one in graph.output),
        shapes={
            one.name: shape
            for one in (*graph.value_info, *graph.output)
            if (shape := _shape(one)) is not None and all(isinstance(n, int) for n in shape)
        },
    )


def _load(path: Path) -> onnx.ModelProto:
    try:
        check_file(path, _MOST_BYTES)
        return onnx.load(path, load_external_data=False)
    except FileNotFoundError:
        raise WorkloadError(f"There is no ONNX file {str(path)!r}; check the path.") from None
    except (DecodeError, UnicodeDecodeError) as error:
        if path.read_bytes().startswith(_LFS_POINTER):
            raise WorkloadError(
                f"The file {path.name!r} only says where Git LFS keeps a model; run 'git lfs pull'."
            ) from error
        raise WorkloadError(
            f"The file {path.name!r} is not an ONNX model; export it again."
        ) from error
    except (OSError, ValueError) as error:  # a null in the path
        raise WorkloadError(
            f"The ONNX file {str(path)!r} cannot be read ({why(error)})."
        ) from error


def _opset(model: onnx.ModelProto, label: str) -> int:
    """Return the standard operator set of a model that can be read at all."""
    versions = [entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS]
    if not model.ir_version or not model.graph.node or not model.opset_import:
        raise file_error(
            label, "holds no operator graph, so it is not an ONNX model or it was cut short"
        )
    if versions and not MINIMUM_OPSET <= versions[0] <= MAXIMUM_OPSET:
        raise file_error(
            label,
            f"uses operator set {versions[0]}, which must be {MINIMUM_OPSET} or newer and at most "
            f"{MAXIMUM_OPSET}",
        )
    if model.graph.sparse_initializer:
        raise file_error(
            label, "stores sparse weights, which are not supported", "export them dense"
        )
    return versions[0] if versions else onnx.defs.onnx_opset_version()


def _check_type(elem_type: int, name: str, label: str) -> int:
    if elem_type == onnx.TensorProto.UNDEFINED or elem_type not in ELEMENT_TYPES:
        raise file_error(label, f"gives {name!r} an element type {elem_type} that does not exist")
    return elem_type


def is_kept(shape: tuple[int, ...], elem_type: int) -> bool:
    """Whether a constant keeps its values."""
    return prod(shape) <= (_KEPT_INTEGERS if elem_type in INTEGERS else _KEPT_ELEMENTS)


def stored(tensor: onnx.TensorProto, label: str, folder: Path = Path()) -> Value:
    """Return what is kept of an initializer: its values if they are few or all zero."""
    shape = tuple(tensor.dims)
    _check_type(tensor.data_type, tensor.name, label)
    if any(not 0 <= size < LARGEST_SIZE for size in shape):
        raise file_error(
            label,
            f"has an initializer {tensor.name!r} of shape {shape}, where every size must be from 0 "
            f"to {LARGEST_SIZE}",
        )
    # Every reading of the bytes copies them.
    array, raw = None, tensor.raw_data
    if raw and not raw.strip(b"\0"):
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        array = np.broadcast_to(np.zeros((), kind), shape)
    elif is_kept(shape, tensor.data_type):
        try:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                array = _external(tensor, shape, folder)
            else:
                array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError) as error:
            raise file_error(label, f"has a damaged initializer {tensor.name!r}") from error
    # Of zeros in several dimensions it is not known whether they are weights.
    state = array is not None and sum(size > 1 for size in shape) > 1 and not array.any()
    kind = tensor.data_type
    learnable = None if state or (kind in FLOATS and _hides(tensor, raw, array)) else True
    return Value(
        shape=shape,
        elem_type=kind,
        static=True,
        array=array,
        learnable=learnable,
        alike=array is None and shape[:1] > (1,) and _repeats(tensor, raw, folder),
    )


def _repeats(tensor: onnx.TensorProto, raw: bytes, folder: Path) -> bool:
    """Whether all items along the first axis are alike: exporters write tables for every item."""
    for count in (2, tensor.dims[0]):
        # The first two tell of most weights that they differ.
        shape = (count, *tensor.dims[1:])
        try:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                items = _external(tensor, shape, folder)
            else:
                kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
                items = np.frombuffer(raw, kind, prod(shape)).reshape(shape)
        except (ValueError, KeyError):
            return False
        if items is None or not (items == items[:1]).all():
            return False
    return True


def _hides(tensor: onnx.TensorProto, raw: bytes, array: np.ndarray | None) -> bool:
    """Whether numbers are a mask: each 0, or so low that it hides the score it is added to."""
    if array is None:
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        array = np.frombuffer(raw, kind, len(raw) // kind.itemsize) if raw else _NONE
    flat = array.reshape(-1)
    # The first few tell of most weights that they are none.
    parts = (flat[:_FEW], flat)
    return all(((part == 0) | (part <= _HIDING)).all() for part in parts) and bool(flat.any())


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
        check_file(path, LARGEST_SIZE)
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(wanted)
    except (OSError, OverflowError):
        return None
    return np.frombuffer(content, kind).reshape(shape) if len(content) == wanted else None


def _shape(value: onnx.ValueInfoProto) -> tuple[int | str, ...] | None:
    """Return the shape of an input or result, free sizes by name; None if the file has none."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return tuple(dim.dim_value if dim.dim_value > 0 else _name(dim) for dim in kind.shape.dim)


def _name(dim: onnx.TensorShapeProto.Dimension) -> str:
    """Return the name of a free size in one line; protobuf hands over bytes if it is no UTF-8."""
    name = dim.dim_param
    text = name.decode(errors="replace") if isinstance(name, bytes) else name
    return _NAMELESS.get(text, " ".join(text.split()))


_PARTS = ("Identity", "Slice", "Split", "Gather", "Cast", "Squeeze", "Unsqueeze")
"""What cuts the states of one layer or direction out of those of all."""


def _initial_states(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Return what recurrent layers start from, and what that is cut out of."""
    found: set[str] = set()
    for node in reversed(list(nodes)):
        if node.op_type in ("LSTM", "GRU", "RNN"):
            first = any(item.name == "layout" and item.i for item in node.attribute)
            found.update(() if first else node.input[5:7])
        elif node.op_type in _PARTS and found.intersection(node.output):
            found.update(node.input[:1])
    return found


def _data_input(value: onnx.ValueInfoProto, label: str, states: set[str]) -> DataInput:
    if not value.type.HasField("tensor_type"):
        raise WorkloadError(
            f"Input {value.name!r} of {label} is no tensor but a sequence, a map or an optional; "
            "export the model with tensors as inputs."
        )
    return DataInput(
        name=value.name,
        elem_type=_check_type(value.type.tensor_type.elem_type, value.name, label),
        shape=_shape(value),
        states=value.name in states,
    )
