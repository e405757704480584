"""Assembling graphs operator by operator: tensors, elementwise functions, changes of layout."""

from copy import copy
from math import prod
from typing import Self

from ipusim.errors import WorkloadError
from ipusim.workload.graph import Attributes, Cast, Elementwise, Graph, Layout, Op, Sort, Tensor
from ipusim.workload.operators.base import changed


class TensorBuilder:
    """Collects tensors and operators; `finish` makes the immutable graph.

    Methods that add an operator take its name and those of the tensors that it reads, and return
    the name of the tensor that it writes, ``<name>.out``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self.inputs: list[str] = []
        self._op_names: set[str] = set()
        self._shared: dict[str, str] = {}
        self._streamed: list[str] = []
        self._fixed: dict[str, None] = {}
        self._frozen: list[str] = []
        self._prefix = ""

    def at(self, block: str) -> Self:
        """Return this builder for the layers of a block, whose names begin with its and a dot."""
        inside = copy(self)  # shallow: all that is added belongs to both
        inside._prefix = self.full_name(f"{block}.")
        return inside

    def full_name(self, name: str) -> str:
        """Return the name in the whole graph of what a block names: that of its weights, say."""
        return self._prefix + name

    def add_tensor(self, name: str, shape: tuple[int, ...], dtype: str, **more: str | None) -> str:
        """Add a tensor, whose name must be new, as `Tensor` has it; return its name."""
        whole = self.full_name(name)
        if whole in self.tensors:
            raise WorkloadError(f"Graph {self.name!r} already has a tensor {whole!r}.")
        self.tensors[whole] = Tensor(name=whole, shape=shape, dtype=dtype, **more)
        return whole

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> str:
        """Add a tensor that the host sends."""
        self.inputs.append(self.full_name(name))
        return self.add_tensor(name, shape, dtype, role="input")

    def parameter(
        self, name: str, shape: tuple[int, ...], role: str = "parameter", dtype: str = "float32"
    ) -> str:
        """Add learnt weights, or with another role what else is stored.

        "constant": statistics and fixed indices; "state": what one step leaves for the next.
        A name in a shared or frozen part of the network means another tensor or role (`share`,
        `freeze`).
        """
        if role == "parameter":
            whole = self.full_name(name)
            for prefix, source in self._shared.items():
                if whole.startswith(prefix):
                    return source + whole.removeprefix(prefix)
            if whole.startswith(tuple(self._frozen)):
                role = "constant"
        return self.add_tensor(name, shape, dtype, role=role)

    def constant(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> str:
        """Add statistics, fixed indices and the like, which are stored and nothing trains."""
        return self.parameter(name, shape, "constant", dtype)

    def share(self, prefix: str, source: str) -> None:
        """Let layers named from `prefix` on use earlier weights, those named from `source` on."""
        self._shared[self.full_name(prefix)] = self.full_name(source)

    def freeze(self, prefix: str) -> None:
        """Let layers whose names begin with `prefix` have fixed weights, which nothing trains."""
        self._frozen.append(self.full_name(prefix))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor added before."""
        return self.tensors[name].shape

    def add_op(self, name: str, params: Attributes, inputs: tuple[str, ...], *outputs: str) -> None:
        """Add an operator whose tensors exist; a name already taken gets a numeric suffix."""
        unique = whole = self.full_name(name)
        count = 2
        while unique in self._op_names:
            unique, count = f"{whole}_{count}", count + 1
        self._op_names.add(unique)
        self.ops.append(Op(name=unique, params=params, inputs=inputs, outputs=outputs))

    def apply(
        self,
        name: str,
        params: Attributes,
        inputs: tuple[str, ...],
        shape: tuple[int, ...],
        *,
        dtype: str = "",
        fixed: bool = False,
    ) -> str:
        """Add an operator and its only output, named ``<name>.out``; return the output.

        It has the type of the first input, and like that a fixed one or not, or another `dtype`,
        which if `fixed` no precision changes.
        """
        if not dtype:
            dtype, fixed = self.tensors[inputs[0]].dtype, inputs[0] in self._fixed
        output = self.add_tensor(f"{name}.out", shape, dtype)
        if fixed:
            self._fixed[output] = None
        self.add_op(name, params, inputs, output)
        return output

    def apply_several(
        self, name: str, params: Attributes, inputs: tuple[str, ...], shapes: list[tuple[int, ...]]
    ) -> tuple[str, ...]:
        """Add an operator and its outputs, ``<name>.out0`` and so on, of the first input's type."""
        dtype = self.tensors[inputs[0]].dtype
        outputs = tuple(
            self.add_tensor(f"{name}.out{place}", shape, dtype)
            for place, shape in enumerate(shapes)
        )
        if inputs[0] in self._fixed:
            self._fixed |= dict.fromkeys(outputs)
        self.add_op(name, params, inputs, *outputs)
        return outputs

    def elementwise(self, name: str, function: str, *inputs: str) -> str:
        """Add an elementwise function; the first tensor has the shape of the result.

        Further tensors may be smaller: missing leading axes, and axes of size 1, are repeated. A
        function of two operands that is given one tensor takes a constant for the other.
        """
        first, *others = (self.tensors[name] for name in inputs)
        shape = first.shape
        for other in (tensor.shape for tensor in others):
            aligned = zip(reversed(other), reversed(shape), strict=False)
            if len(other) > len(shape) or any(size not in (1, full) for size, full in aligned):
                raise WorkloadError(
                    f"Operator {name!r} cannot repeat a tensor of shape {other} to {shape}; each "
                    "axis must have the same size or 1."
                )
        params = Elementwise.of(function, shape, first.dtype, first, *others)
        return self.apply(name, params, inputs, shape)

    def chain(self, x: str, **steps: str) -> str:
        """Add elementwise functions of one tensor, each of the last: their names and functions."""
        for name, function in steps.items():
            x = self.elementwise(name, function, x)
        return x

    def dropout(self, name: str, x: str) -> str:
        """Add what drops random elements in training."""
        return self.elementwise(name, "dropout", x)

    def flatten(self, name: str, x: str) -> str:
        """Flatten everything after the batch."""
        batch, *rest = self.shape(x)
        return self.apply(name, Layout.view("flatten"), (x,), (batch, prod(rest)))

    def reshape(self, name: str, x: str, shape: tuple[int, ...]) -> str:
        """Add a view of the same elements in another shape."""
        return self.apply(name, Layout.view("reshape"), (x,), shape)

    def column(self, name: str, x: str) -> str:
        """Add a view with one more axis at the end, of size 1."""
        return self.reshape(name, x, (*self.shape(x), 1))

    def transpose(self, name: str, x: str, order: tuple[int, ...]) -> str:
        """Add a change of the order of the axes; a view where only axes of size 1 move."""
        shape = self.shape(x)
        kept = [axis for axis in order if shape[axis] > 1]
        result = tuple(shape[axis] for axis in order)
        params = Layout(function="transpose", moves_data=kept != sorted(kept))
        return self.apply(name, params, (x,), result)

    def narrow(self, name: str, x: str, *, axis: int, size: int) -> str:
        """Add a view of the first `size` elements along one axis."""
        result = sized(self.shape(x), axis, size)
        return self.apply(name, Layout.view("slice"), (x,), result)

    def roll(self, name: str, x: str) -> str:
        """Add a cyclic shift along some axes, copied into new memory."""
        return self.apply(name, Layout.move("roll"), (x,), self.shape(x))

    def copy(self, name: str, x: str) -> str:
        """Add a copy into a tensor spread evenly over the chip."""
        return self.apply(name, Layout.move("copy"), (x,), self.shape(x))

    def pad(self, name: str, x: str, *, axis: int, size: int) -> str:
        """Add zeros after the end of one axis, up to `size` elements."""
        result = sized(self.shape(x), axis, size)
        return self.apply(name, Layout.move("pad"), (x,), result)

    def expand(self, name: str, x: str, shape: tuple[int, ...]) -> str:
        """Add a view that repeats a tensor along axes of size 1."""
        return self.apply(name, Layout.view("expand"), (x,), shape)

    def crop(self, name: str, x: str, field: tuple[int, ...]) -> str:
        """Add a view of the middle of an NCHW tensor's field."""
        result = (*self.shape(x)[:2], *field)
        return self.apply(name, Layout.view("slice"), (x,), result)

    def resize(self, name: str, x: str, factor: int) -> str:
        """Add a view of an NCHW tensor that repeats each position so often along both axes."""
        batch, channels, *field = self.shape(x)
        result = (batch, channels, *(factor * size for size in field))
        # Poplar's upsampling to the nearest element is a view (graphcore/popart
        # willow/src/popx/op/resizex.cpp): what reads it fetches the repeats.
        return self.apply(name, Layout.view("resize"), (x,), result)

    def concat(self, name: str, *inputs: str, axis: int) -> str:
        """Add the concatenation of tensors along one axis."""
        size = sum(self.shape(x)[axis] for x in inputs)
        result = sized(self.shape(inputs[0]), axis, size)
        return self.apply(name, Layout.move("concat"), inputs, result)

    def unstack(self, name: str, x: str, *, axis: int = 0) -> tuple[str, ...]:
        """Add views of the slices of a tensor along an axis, which they no longer have."""
        shape = self.shape(x)
        shapes = [(*shape[:axis], *shape[axis + 1 :])] * shape[axis]
        return self.apply_several(name, Layout.view("split"), (x,), shapes)

    def split(
        self, name: str, x: str, sizes: int | tuple[int, ...], *, axis: int
    ) -> tuple[str, ...]:
        """Add views of the parts of a tensor along one axis: so many, or of these sizes."""
        shape = self.shape(x)
        if isinstance(sizes, int):
            sizes = (shape[axis] // sizes,) * sizes
        if sum(sizes) != shape[axis]:
            raise WorkloadError(
                f"Operator {name!r} cannot split {shape[axis]} elements into parts of {sizes}."
            )
        shapes = [sized(shape, axis, size) for size in sizes]
        return self.apply_several(name, Layout.view("split"), (x,), shapes)

    def streamed(
        self, name: str, shape: tuple[int, ...], *, dtype: str, trained: bool = True
    ) -> str:
        """Add rows of a table in Streaming Memory, of a fixed type; steps read and write them."""
        self._streamed.append(self.full_name(name))
        self._fixed[self.full_name(name)] = None
        return self.parameter(name, shape, "parameter" if trained else "constant", dtype)

    def all_to_all(self, name: str, x: str) -> str:
        """Add an exchange of equal parts of a tensor between every two replicas."""
        return self.apply(name, Layout.move("all_to_all"), (x,), self.shape(x))

    def sort(self, name: str, x: str) -> str:
        """Add a sort of the last axis."""
        *rows, length = self.shape(x)
        return self.apply(name, Sort(outer=prod(rows), length=length), (x,), self.shape(x))

    def top_k(self, name: str, x: str, kept: int) -> tuple[str, str]:
        """Add the search for the first `kept` along the last axis: these, and their places."""
        *rows, length = self.shape(x)
        params, shape = Sort(outer=prod(rows), length=length, kept=kept), (*rows, kept)
        found = self.add_tensor(f"{name}.out", shape, self.tensors[x].dtype)
        places = self.add_tensor(f"{name}.places", shape, "int32")
        self.add_op(name, params, (x,), found, places)
        return found, places

    def cast(self, name: str, x: str, to: str, *, fixed: bool = False) -> str:
        """Add a conversion to another element type, which if `fixed` no precision changes."""
        return self.apply(name, Cast(), (x,), self.shape(x), dtype=to, fixed=fixed)

    def finish(self, *outputs: str) -> Graph:
        """Return the validated graph; computed outputs get the role "output"."""
        tensors = dict(self.tensors)
        for name in outputs:
            tensor = tensors[name]
            if tensor.role == "activation":
                tensors[name] = changed(tensor, role="output", alias_of=None)
        return Graph(
            name=self.name,
            tensors=tensors,
            ops=tuple(self.ops),
            inputs=tuple(self.inputs),
            outputs=tuple(outputs),
            streamed=tuple(self._streamed),
            fixed=tuple(self._fixed),
        ).validate()


def sized(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    """Return a shape with another size along one axis."""
    axis %= len(shape)
    return (*shape[:axis], size, *shape[axis + 1 :])
