"""Products computed in parts, one after the other, to bound what they need beside their operands.

PopTorch's `serializedMatMul` and PopART's `setSerializeMatMul` replace a product and its gradients
by as many products of slices as a factor says (graphcore/popart@sdk/poplar/3.3.0:willow/src/
transforms/serializematmuls.cpp). Each is planned by itself, under the bound that
`available_memory_proportion` sets: the planner, which splits serially too where the bound makes it,
finds less to split in a part, or nothing. Where every part is accumulated as soon as it is there,
only one part of the weights' gradient ever exists, which no plan of a whole product gives.

A lookup is a product of rows of ones and zeros with a table: its table is cut. TensorFlow's
`embedding_lookup` with a `serialization_factor` (graphcore/tensorflow:tensorflow/python/ipu/ops/
embedding_ops.py) looks every index up in every part of the table, masks the rows that lie in other
parts, and adds the results up. The gradient stays one addition into a whole table.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ipusim.errors import ConfigError, resolve_name, unknown_name
from ipusim.workload.graph import Cast, Elementwise, Gather, Graph, Layout, MatMul
from ipusim.workload.operators.base import Attributes, Op, Tensor

DIMENSIONS = ("input_channels", "reducing_dim", "output_channels")
"""What a product of m x k by k x n is cut along: m, k or n (PopTorch's MatMulSerializationMode)."""

_CUT = {
    "forward": ("m", "k", "n"),
    "data_gradient": ("m", "n", "k"),
    "weight_gradient": ("k", "m", "n"),
}
"""The same cuts, in the sizes of each pass of the layer: what is cut along k is added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialProduct:
    """A product to compute in parts along one of `DIMENSIONS`, or a lookup by rows of its table."""

    op: str
    factor: int
    dimension: str = "output_channels"


def parse_serial_products(texts: Iterable[str]) -> tuple[SerialProduct, ...]:
    """Return the products that texts such as "head=4" or "head=4:reducing_dim" name."""
    result = []
    for text in texts:
        op, _, parts = str(text).rpartition("=")
        factor, _, dimension = parts.partition(":")
        if not op or not factor.isdecimal() or int(factor) < 2:
            raise ConfigError(
                f"The serial product {str(text)!r} is not understood: give operator=parts, 2 or "
                "more, such as head=4, and after a colon what to cut if not output_channels."
            )
        dimension = resolve_name(
            "dimension of a serial product", dimension or DIMENSIONS[-1], DIMENSIONS
        )
        result.append(SerialProduct(op=op, factor=int(factor), dimension=dimension))
    return tuple(result)


def serialise(graph: Graph, products: Sequence[SerialProduct]) -> Graph:
    """Compute products of inference or of a micro-batch of training in parts.

    Results and multiply-accumulates stay the same. The gradients of a product and its recomputation
    are cut like it. A part of the weights' gradient is added to its part of the accumulator at once
    where nothing else contributes to it; other parts are put together as a view. Where the factor
    does not divide what is cut, the last parts are smaller by one; PopART refuses that, and recipes
    pad or trim the vocabulary. Its `keep_precision` is left out: it acts on float partials alone.
    """
    for product in products:
        graph = _serialised(graph, product)
    return graph


def _serialised(graph: Graph, product: SerialProduct) -> Graph:
    forward = next((op for op in graph.ops if op.name == product.op), None)
    if forward is None:
        raise unknown_name("operator", product.op, [op.name for op in graph.ops])
    _check(forward, product, graph)
    consumers = graph.consumers()
    tensors, ops, done = dict(graph.tensors), [], set()
    for op in graph.ops:
        if op.name in done:
            continue
        looks_up = isinstance(op.params, Gather) and op.params.function == "lookup"
        own = op is forward or op.source == product.op
        if not own or not (looks_up or isinstance(op.params, MatMul)):
            ops.append(op)
            continue
        along = DIMENSIONS.index(product.dimension)
        cut = "rows" if looks_up else _CUT[op.params.pass_kind][along]
        parts = _Parts(op, product.factor, cut, tensors, ops)
        if looks_up or cut == "k":
            parts.add_up(parts.lookups() if looks_up else parts.products())
        elif sums := _accumulation(op, consumers[op.outputs[0]], graph):
            parts.accumulate(sums)
            done.add(sums.name)
        else:
            parts.put_together()
    return replace(graph, tensors=tensors, ops=tuple(ops)).validate()


def _check(op: Op, product: SerialProduct, graph: Graph) -> None:
    plain = isinstance(op.params, MatMul | Gather) and op.params.groups == 1
    if plain and isinstance(op.params, Gather):
        plain = op.function == "" and graph.tensors[op.inputs[0]].role == "parameter"
    if not plain:
        raise ConfigError(
            f"The operator {op.name!r} cannot be computed in parts: name a product of two matrices "
            "or a lookup in a stored table."
        )
    along = product.dimension
    if isinstance(op.params, Gather):
        size, along = op.params.rows, "the rows of its table"
    else:
        size = (op.params.m, op.params.k, op.params.n)[DIMENSIONS.index(along)]
    if size < product.factor:
        raise ConfigError(
            f"{op.name!r} cannot be cut into {product.factor} parts along {along}, of which there "
            f"are {size}: use 2 to {size}."
        )


def _accumulation(op: Op, readers: tuple[Op, ...], graph: Graph) -> Op | None:
    """Return the operator that adds a result to an accumulator, if nothing else reads it."""
    alone = len(readers) == 1 and op.outputs[0] not in graph.kept
    if op.params.pass_kind != "weight_gradient" or not alone:
        return None
    (reader,) = readers
    return reader if graph.tensors[reader.outputs[0]].alias_of == reader.inputs[0] else None


@dataclass(slots=True)
class _Parts:
    """Writes the parts of one product or lookup after what there is of a graph."""

    op: Op
    factor: int
    cut: str
    tensors: dict[str, Tensor]
    ops: list[Op]

    def add_up(self, parts: Iterator[str]) -> None:
        """Add each part, as soon as it is there, to the sum of those before it."""
        like = self.tensors[self.op.outputs[0]]
        total = next(parts)
        params = Elementwise.in_place("add")
        for part, addend in enumerate(parts, start=1):
            if part == self.factor - 1:
                self._emit(self.op.name, params, (total, addend), like.name)
            else:
                total = self._step(f"sum{part}", params, (total, addend), like.shape)

    def put_together(self) -> None:
        """Compute all parts; their result is a view of them."""
        made = tuple(self.products())
        self._emit(self.op.name, Layout.view("concat"), made, self.op.outputs[0])

    def accumulate(self, sums: Op) -> None:
        """Add each part of a gradient to its part of an accumulator."""
        accumulator, result = sums.inputs[0], sums.outputs[0]
        for part, made in enumerate(self.products()):
            elements = self.tensors[made].elements
            last = part == self.factor - 1
            name = result if last else f"{result}.part{part}"
            self.tensors[name] = replace(self.tensors[result], name=name, shape=(elements,))
            label, inputs = sums.name if last else name, (accumulator, made)
            self.ops.append(replace(sums, name=label, inputs=inputs, outputs=(name,)))
        del self.tensors[self.op.outputs[0]]

    def lookups(self) -> Iterator[str]:
        """Look every index up in each part of a table; a mask clears what lies in others."""
        table, indices = self.op.inputs
        ids, like = self.tensors[indices], self.tensors[self.op.outputs[0]]
        compare = Elementwise(function="less", broadcast=True)
        above = replace(compare, function="greater_or_equal")
        both = replace(compare, function="and", broadcast=False)
        masked = Elementwise.in_place("mul", broadcast=True)
        first = 0
        for part in range(self.factor):
            stop = first + self._share(self.op.params.rows, part)
            start, end = self._number("first", first), self._number("stop", stop)
            own = self._slice(table, part)
            shift = replace(compare, function="sub")
            moved = self._step(f"index{part}", shift, (indices, start), ids.shape, ids.dtype)
            rows = replace(self.op.params, rows=stop - first)
            found = self._step(f"part{part}", rows, (own, moved), like.shape)
            low = self._step(f"below{part}", compare, (indices, end), ids.shape, "bool")
            high = self._step(f"above{part}", above, (indices, start), ids.shape, "bool")
            inside = self._step(f"in{part}", both, (low, high), ids.shape, "bool")
            mask = self._step(f"mask{part}", Cast(), (inside,), ids.shape)
            yield self._step(f"masked{part}", masked, (found, mask), like.shape)
            first = stop

    def _number(self, label: str, value: int) -> str:
        """Add a constant row number and return its name."""
        name = f"{self.op.name}.{label}{value}"
        self.tensors[name] = Tensor(name=name, shape=(), dtype="int32", role="constant")
        return name

    def _share(self, size: int, part: int) -> int:
        """Return how much of what is cut one part has; the last may have one row less."""
        whole = getattr(self.op.params, self.cut)
        least, over = divmod(whole, self.factor)
        return size // whole * (least + (part < over))

    def products(self) -> Iterator[str]:
        """Add the product of each part and return its result."""
        for part in range(self.factor):
            size = self._share(getattr(self.op.params, self.cut), part)
            params = replace(self.op.params, **{self.cut: size})
            inputs = [
                self._slice(name, part) if self.cut in operand else name
                for name, operand in zip(self.op.inputs[:2], ("mk", "kn"), strict=True)
            ]
            yield self._step(f"part{part}", params, tuple(inputs), (params.m * params.n,))

    def _slice(self, name: str, part: int) -> str:
        """Return a part of an operand, which is a view: of parameters without an operator."""
        whole = self.tensors[name]
        elements = self._share(whole.elements, part)
        if whole.role == "parameter":
            # The same side of the weights is cut in all passes of the layer.
            backward = self.op.function == "data_gradient"
            side = {"k": "n", "n": "k"}[self.cut] if backward else self.cut
            own = f"{name}.{side}{self.factor}.{part}"
            root = whole.alias_of or name
            self.tensors[own] = replace(whole, name=own, shape=(elements,), alias_of=root)
            return own
        suffix = f"slice{self.op.inputs.index(name)}.{part}"
        return self._step(suffix, Layout.view("slice"), (name,), (elements,), dtype=whole.dtype)

    def _step(
        self,
        suffix: str,
        params: Attributes,
        inputs: tuple[str, ...],
        shape: tuple[int, ...],
        dtype: str | None = None,
    ) -> str:
        name = f"{self.op.name}.{suffix}"
        dtype = dtype or self.tensors[self.op.outputs[0]].dtype
        self.tensors[name] = Tensor(name=name, shape=shape, dtype=dtype)
        self._emit(name, params, inputs, name)
        return name

    def _emit(self, name: str, params: Attributes, inputs: tuple[str, ...], output: str) -> None:
        part = replace(self.op, name=name, params=params, inputs=inputs, outputs=(output,))
        self.ops.append(part)
