"""How a node that runs becomes operators of the graph."""

from collections.abc import Callable, Sequence

from ipusim.workload.graph import Attributes, Layout
from ipusim.workload.onnx.shapes import Call, Shape


class Emission(Call):
    """A run-time node, whose results are recorded, as its handler sees it."""

    @property
    def out(self) -> Shape:
        """Shape of the first result."""
        return self.context.shape(self.node.output[0])

    def operand(self, place: int | str = 0, *, weight: bool = False, role: str = "") -> str:
        """Return the graph tensor of an input by its place, or of any value by its name."""
        name = self.node.input[place] if isinstance(place, int) else place
        return self.context.operand(name, weight=weight, role=role)

    def operands(self, *places: int) -> tuple[str, ...]:
        """Return the graph tensors of inputs."""
        return tuple(self.operand(place) for place in places)

    def is_fixed(self, place: int) -> bool:
        """Whether an input is constant in every round of a loop; so is one that is not given."""
        if not self.has(place):
            return True
        value = self.context.value(self.node.input[place], self.node)
        return value.static and not value.counted

    def is_parameter(self, tensor: str) -> bool:
        """Whether a graph tensor is learnt."""
        return self.context.graph.tensors[tensor].role == "parameter"

    def dtype(self, name: str) -> str:
        """Return the storage type of a value."""
        return self.context.dtype(name, self.node)

    def emit(
        self, params: Attributes, *inputs: str, suffix: str = "", outputs: Sequence[str] = ()
    ) -> None:
        """Add the operator of the first result, or of others; what has none is an extra."""
        outputs = outputs or [next(filter(None, self.node.output))]
        graph = self.context.graph
        for name in outputs:
            graph.add_tensor(name, self.shape(name), self.dtype(name))
        graph.add_op(self.label + suffix, params, inputs, *outputs)
        self.context.producers.update(dict.fromkeys(outputs, graph.ops[-1]))

    def layout(self, function: str, *inputs: str, moves: bool) -> None:
        """Add the change of shape or order that computes every result."""
        outputs = [name for name in self.node.output if name]
        self.emit(Layout(function=function, moves_data=moves), *inputs, outputs=outputs)

    def step(
        self,
        suffix: str,
        params: Attributes,
        *inputs: str,
        shape: Shape | None = None,
        dtype: str = "",
    ) -> str:
        """Add an operator whose result is like the node's first, but for shape or type given."""
        graph, output = self.context.graph, next(filter(None, self.node.output))
        shape = self.shape(output) if shape is None else shape
        made = graph.add_tensor(output + suffix, shape, dtype or self.dtype(output))
        graph.add_op(self.label + suffix, params, inputs, made)
        return made


Handler = Callable[[Emission], None]
"""Turns one run-time node into operators."""
