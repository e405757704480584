"""Which sizes and values the data inputs of a file have: the file's own, and what the user gives.

An ONNX file may leave sizes free, by a name or without one. The batch is found here, takes the
micro-batch and needs no answer; every other free size, and the value of an input on which shapes or
branches depend, has to come from the user.
"""

import ast
import re
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from operator import add, floordiv, mul, sub
from typing import Any

import numpy as np
import onnx

from ipusim.errors import WorkloadError, nearest_name
from ipusim.workload.builder import sized
from ipusim.workload.onnx.reader import LARGEST_SIZE, DataInput, file_error

_BATCH_NAMES = tuple(
    re.compile(pattern, re.IGNORECASE) for pattern in (r"batch|(^|_)bs($|_)", r"^(n|b)$")
)
"""Words that name a batch, and letters that do where no size has such a word."""
_ANONYMOUS = re.compile(r"^$|^\?$|unk__|dynamic_axes|_dim_\d|^s\d+$|^dyn|^None$", re.IGNORECASE)
_BATCH = "batch without a name"
_SERIES_RANK, _IMAGE_RANK = 2, 4
_IMAGE_SIDE, _SOUND, _LENGTH = 224, 16_000, 128
_LONGEST_SUM = 200
"""Letters of a size that is computed from others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the user says: shapes of inputs, sizes of named dimensions, values of inputs."""

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for item in fields(self):
            if not isinstance(one := getattr(self, item.name), Mapping):
                raise WorkloadError(
                    f"The {item.name} are {one!r}: give each by name, as a mapping."
                )
        for name, shape in self.shapes.items():
            if isinstance(shape, str) or not isinstance(shape, Sized):
                raise WorkloadError(f"The shape of {name!r} is {shape!r}: give a tuple of sizes.")


Size = int | str
"""A size, or the text of a free one: its name, "" without one, a sum or product of names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPlan:
    """Inputs with every size known but those of the batch, and those whose value is known."""

    inputs: tuple[DataInput, ...]
    values: dict[str, np.ndarray]
    filled: dict[str, tuple[Size, ...]]  # shapes to which values of one number are repeated
    batch: frozenset[str]  # the names of the batch
    fixed: int | None  # the batch that the file fixes, 0 if it is free, None if inputs share none
    default: int = 1  # what a free one is if nobody says otherwise
    axis: int | None = 0  # the place of a batch that is not named
    named: bool = False  # whether names in the file tell the batch

    def shapes(self, batch: int) -> list[tuple[int, ...]]:
        """Return the shape of every input at a batch, which may be another than the fixed one."""
        found = [(self._at(item.shape, batch), item.place(self.axis)) for item in self.inputs]
        return [sized(shape, place, batch) if self.fixed else shape for shape, place in found]

    def value(self, name: str, batch: int) -> np.ndarray:
        """Return the value of an input at a batch."""
        array = self.values[name]
        return np.broadcast_to(array, self._at(self.filled.get(name, array.shape), batch))

    def _at(self, shape: Sequence[Size], batch: int) -> tuple[int, ...]:
        return tuple(int(_size(size, dict.fromkeys(self.batch, batch))) for size in shape)


def free_sizes(inputs: Sequence[DataInput]) -> list[str]:
    """Return the names of free sizes."""
    sizes = chain.from_iterable(item.shape or () for item in inputs)
    return list(dict.fromkeys(size for size in sizes if isinstance(size, str) and size))


def plan_inputs(
    inputs: Sequence[DataInput], given: Given, label: str, axis: int | None
) -> InputPlan:
    """Settle the sizes of all inputs, a nameless batch at an axis; `OpenSizes` if one misses."""
    _check_names("input", {**given.shapes, **given.values}, [item.name for item in inputs], label)
    known = [item for item in inputs if item.name in given.values]
    values = {item.name: _value(item, given.values[item.name], label) for item in known}
    filled = [item for item in known if item.shape and not values[item.name].ndim]
    data = [_with_batch(item, axis) for item in inputs if item not in known]
    symbols = dict(given.dims)
    free = free_sizes(inputs)
    parts = (name for size in free for name in _terms(size))
    _check_names("dimension", symbols, list(dict.fromkeys((*free, *parts))), label)
    for name, size in symbols.items():
        _check_size(name, size)
    named, batch = _batch_symbols(data, axis)
    batch = {name for name in batch if isinstance(_at_one(name, batch - {name}), str)}
    defaults = {symbols[name] for name in batch if name in symbols}
    shapes: dict[str, list[Size]] = {}
    for item in data:
        unranked = [""] * len(given.shapes.get(item.name, ()))
        shape = unranked if item.shape is None else list(item.shape)
        if item.name in given.shapes:
            _bind(item, shape, given.shapes[item.name], symbols, batch, defaults)
        shapes[item.name] = shape
    if len(defaults) > 1:
        raise WorkloadError(
            f"The inputs of {label} are given batches of {sorted(defaults)}, which must be one."
        )
    shapes |= {item.name: list(item.shape) for item in filled}
    sizes = {name: size for name, size in symbols.items() if name not in batch}
    for name, shape in shapes.items():
        shapes[name] = [_size(size, sizes) for size in shape]
    _refuse_free([*data, *filled], shapes, batch, label)
    settled = tuple(replace(item, shape=tuple(shapes[item.name])) for item in data)
    # An input without sizes shares no batch with the others, nor do sizes of several names.
    leading = {_at(item, axis) for item in settled}
    names = {size for item in data if isinstance(size := _at(item, axis), str)}
    fixed = leading.pop() if len(leading) == 1 and len(names) < 2 else None
    if any(isinstance(size, str) for item in settled for size in item.shape):
        fixed = 0
    return InputPlan(
        inputs=settled,
        values=values,
        filled={item.name: tuple(shapes[item.name]) for item in filled},
        batch=frozenset(batch),
        fixed=fixed,
        default=defaults.pop() if defaults else 1,
        axis=axis,
        named=named,
    )


def _at(item: DataInput, axis: int | None) -> int | str | None:
    """Return the size of an input at an axis, None if it has none there."""
    place = item.place(axis)
    return None if place is None else item.shape[place]


def _with_batch(item: DataInput, axis: int | None) -> DataInput:
    """Return an input whose nameless size at the axis of the batch is called so."""
    if _at(item, axis) != "":
        return item
    return replace(item, shape=sized(item.shape, item.place(axis), _BATCH))


def _check_names(kind: str, given: Mapping[str, Any], known: list[str], label: str) -> None:
    for name in given:
        if name not in known:
            listed = f" (it has {', '.join(map(repr, known[:12]))})" if known else ""
            advice = f"did you mean {nearest_name(name, known)!r}?" if known else "it has none"
            raise file_error(label, f"has no {kind} {name!r}{listed}", advice)


def _check_size(name: str, size: object) -> None:
    whole = isinstance(size, (int, np.integer)) and not isinstance(size, bool)
    if not whole or not 0 <= size < LARGEST_SIZE:
        raise WorkloadError(
            f"The size {size!r} of {name!r} must be a whole number from 0 to {LARGEST_SIZE}."
        )


def _batch_symbols(inputs: Sequence[DataInput], axis: int | None) -> tuple[bool, set[str]]:
    """Return whether names tell the batch, and the free sizes that are it.

    Those whose names say so, wherever they stand; and ones at its axis that have no name of their
    own. If no name says so, every one at its axis is, unless there are several names or an input
    has only free sizes of its own: nodes and edges of a graph are no items.
    """
    inner = {
        size
        for item in inputs
        for place, size in enumerate(item.shape or ())
        if place != item.place(axis)
    } - {_BATCH}
    single = {size for size in free_sizes(inputs) if len(_terms(size)) == 1} - {_BATCH}
    words, letters = (set(filter(pattern.search, single)) for pattern in _BATCH_NAMES)
    named = words or letters
    leading = {size for item in inputs if isinstance(size := _at(item, axis), str)} - inner
    nameless = {size for size in leading if size == _BATCH or _ANONYMOUS.search(size)}
    if named:
        return True, named | nameless
    shapes = [set(free_sizes([item])) for item in inputs]
    linked = set().union(*(sizes for sizes in shapes if sizes & leading))
    apart = any(sizes and not sizes & linked for sizes in shapes)
    return False, set() if apart or len(leading - nameless) > 1 else leading


def _terms(text: str) -> list[str]:
    return re.findall(r"[A-Za-z_][\w.]*", text)


def _bind(
    item: DataInput,
    shape: list[Size],
    given: Sequence[int],
    symbols: dict[str, int],
    batch: set[str],
    defaults: set[int],
) -> None:
    """Take the sizes of one input from a shape that the user gives."""
    if len(given) != len(shape):
        raise WorkloadError(
            f"Input {item.name!r} is given the shape {tuple(given)}, but has {len(shape)} "
            f"dimensions: {shown(shape)}."
        )
    for axis, (own, size) in enumerate(zip(shape, given, strict=True)):
        _check_size(item.name, size)
        if isinstance(own, int):
            if own != size:
                raise WorkloadError(
                    f"Input {item.name!r} is given {size} at position {axis}, where the file fixes "
                    f"{own}: its shape is {shown(shape)}."
                )
        elif own in batch:
            defaults.add(int(size))
        elif own and symbols.setdefault(own, int(size)) != size:
            raise WorkloadError(
                f"Dimension {own!r} is given two sizes, {symbols[own]} and {size}; give one."
            )
        elif not own:
            shape[axis] = int(size)


def _size(size: Size, symbols: Mapping[str, int]) -> Size:
    """Return a size; a sum or product of named ones is computed if all of them are known."""
    if size in symbols or not isinstance(size, str):
        return symbols.get(size, size)
    if not _terms(size) or len(size) > _LONGEST_SUM:
        return size
    try:
        return _arithmetic(ast.parse(size, mode="eval").body, symbols)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return size


def _at_one(size: Size, batch: Collection[str]) -> Size:
    """Return a size at a batch of one; its text where the batch does not tell it."""
    found = _size(size, dict.fromkeys(batch, 1))
    return found if isinstance(found, str) or found >= 0 else size


_OPERATIONS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv, ast.Div: floordiv}


def _arithmetic(node: ast.AST, symbols: Mapping[str, int]) -> int:
    match node:
        case ast.Name(id=name):
            return symbols[name]
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=op, right=right):
            operation = _OPERATIONS[type(op)]
            return operation(_arithmetic(left, symbols), _arithmetic(right, symbols))
    raise ValueError(ast.dump(node))


class OpenSizes(WorkloadError):
    """Sizes are missing; `dims` and `shapes` are those that the message suggests."""

    def __init__(self, message: str, dims: dict[str, int], shapes: dict[str, list[int]]) -> None:
        super().__init__(message)
        self.dims, self.shapes = dims, shapes

    def answered(self, given: Given) -> Given:
        """Return what is given and, where nothing is, what the message suggests."""
        shapes = {**self.shapes, **given.shapes}
        return replace(given, dims={**self.dims, **given.dims}, shapes=shapes)


def _refuse_free(
    inputs: Sequence[DataInput], shapes: dict[str, list[Size]], batch: set[str], label: str
) -> None:
    dims: dict[str, int] = {}
    whole: dict[str, list[int]] = {}
    told = []
    for item in inputs:
        shape = shapes[item.name]
        one = [_at_one(size, batch) for size in shape]
        if item.shape is None and not shape:
            whole[item.name] = [1, 3, _IMAGE_SIDE, _IMAGE_SIDE]
        typical = [_typical(item.name, shape, one, axis) for axis in range(len(shape))]
        pairs = list(zip(one, typical, strict=True))
        for size, guess in pairs:
            if isinstance(size, str) and size:
                dims.update({name: dims.get(name, guess) for name in _terms(size) or [size]})
        if "" in one:
            whole[item.name] = [_size(size, dims) if size else guess for size, guess in pairs]
        if item.name in whole or any(isinstance(size, str) for size in one):
            told.append(f"{item.name!r} is {shown(shape, batch) if shape else 'of any shape'}")
    if not told:
        return
    dims = dict(sorted(dims.items()))
    line = [f"--dim {name}={size}" for name, size in dims.items()]
    line += [f"--shape {name}={','.join(map(str, shape))}" for name, shape in whole.items()]
    both = {"dims": dims, "shapes": whole}
    python = [f"{name}={missing}" for name, missing in both.items() if missing]
    advice = f"add such as '{' '.join(line)}', in Python {', '.join(python)}"
    what = f"leaves sizes open ({'; '.join(told)})"
    raise OpenSizes(str(file_error(label, what, advice)), dims, whole)


def _typical(name: str, shape: Sequence[Size], one: Sequence[Size], axis: int) -> int:
    """Return a size to suggest: the side of an image, a second of sound, a sentence, no past.

    Of the shape at a batch of ``one`` the free sizes are left.
    """
    size = one[axis]
    if isinstance(size, int):
        return size
    # The first free size behind a fixed one is the batch of a state, as in (layers, batch, hidden).
    if not size and shape == one and (axis == 0 or isinstance(shape[0], int)):
        return 1
    free = [place for place, other in enumerate(one) if isinstance(other, str) and place]
    sides = {"past": 0} | dict.fromkeys(("height", "width", "image"), _IMAGE_SIDE)
    sides |= dict.fromkeys(("sample", "audio", "wave"), _SOUND)
    # Of a series of numbers the input's name may say what it is, too.
    told = f"{size} {name}".lower() if len(shape) == _SERIES_RANK else size.lower()
    for part, typical in sides.items():
        if part in told:
            return typical
    is_image = len(shape) == _IMAGE_RANK and free in ([2, 3], [1, 2])
    return _IMAGE_SIDE if is_image else _LENGTH


def shown(shape: Sequence[Size], batch: Collection[str] = ()) -> str:
    """Return a shape as text, free sizes by name."""
    return "[" + ", ".join("batch" if n in batch else str(n or "?") for n in shape) + "]"


def _value(item: DataInput, given: Any, label: str) -> np.ndarray:
    """Return the value of an input as an array of the file's type and shape."""
    try:
        kind = onnx.helper.tensor_dtype_to_np_dtype(item.elem_type)
        array = np.asarray(given).astype(kind)
        shape = tuple(size if isinstance(size, int) else -1 for size in item.shape or ())
        if item.shape is None or array.ndim == 0:
            return array
        free = [axis for axis, size in enumerate(shape) if size < 0]
        if len(free) > 1:
            return array if array.ndim == len(shape) else array.reshape([1] * len(shape))
        return array.reshape(shape)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise WorkloadError(
            f"Input {item.name!r} of {label} cannot have the value {given!r}: it is "
            f"{onnx.TensorProto.DataType.Name(item.elem_type).lower()} of shape "
            f"{shown(item.shape or ())}."
        ) from error
