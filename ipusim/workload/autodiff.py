"""Reverse-mode differentiation of operator graphs: which operators compute the gradients.

Each forward operator is answered by the operators that a framework would run for it: gradients of
convolutions and products are convolutions and products again (`gradients`), everything else has
one gradient operator of its own or a few elementwise ones. `backward_ops` differentiates a run of
forward operators; `training` decides in which order runs are taken and what is computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from ipusim.errors import WorkloadError
from ipusim.workload.graph import (
    AlignmentLoss,
    Cast,
    Conv,
    Distance,
    Elementwise,
    Gather,
    Graph,
    Layout,
    MatMul,
    Norm,
    Op,
    Payload,
    Pool,
    Recurrent,
    Reduce,
    Softmax,
    Sort,
    Tensor,
)
from ipusim.workload.operators.gradients import (
    conv_data_gradient,
    conv_weight_gradient,
    matmul_data_gradient,
    matmul_weight_gradient,
)

FROM_OUTPUT = ("relu", "sigmoid", "tanh", "sqrt", "elu", "leaky_relu")
"""Functions whose gradient is computed from the result, so that the input need not be kept."""

FROM_INPUT = (
    "abs",
    "clip",
    "cos",
    "erf",
    "gelu",
    "hard_sigmoid",
    "hard_swish",
    "log",
    "softplus",
    "mish",
    "swish",
)
"""Functions whose gradient is computed from the input."""

LINEAR = ("dropout", "neg", "scale")
"""Functions of one operand whose gradient is the same function of the incoming gradient."""


@dataclass(slots=True)
class Tape:
    """Operators and tensors of a backward pass while it is written.

    Attributes
    ----------
    graph : Graph
        The forward graph, whose tensors gradients are made for.
    tensors : dict of str to Tensor
        Tensors that the backward pass adds.
    ops : list of Op
        Its operators in order.
    gradients : dict of str to list of str
        Contributions to the gradient of each forward tensor so far.
    """

    graph: Graph
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    gradients: dict[str, list[str]] = field(default_factory=dict)
    wanted: frozenset[str] = frozenset()

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor of either pass."""
        return self._tensor(name).shape

    def _tensor(self, name: str) -> Tensor:
        return self.tensors[name] if name in self.tensors else self.graph.tensors[name]

    def emit(
        self, source: Op, suffix: str, params: Payload, inputs: tuple[str, ...], like: Tensor
    ) -> str:
        """Add one backward operator of a forward one; its result has the shape and type of `like`.

        Returns
        -------
        str
            Name of the result.
        """
        output = self.new_tensor(f"{source.name}.{suffix}", like)
        self.append(source, suffix, params, inputs, (output,))
        return output

    def new_tensor(self, name: str, like: Tensor) -> str:
        """Add an intermediate tensor with the shape and type of another."""
        dtype = like.dtype
        self.tensors[name] = Tensor(name=name, shape=like.shape, dtype=dtype)
        return name

    def append(
        self,
        source: Op,
        suffix: str,
        params: Payload,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
    ) -> None:
        """Add one backward operator whose results exist."""
        self.ops.append(
            Op(
                name=f"{source.name}.{suffix}",
                params=params,
                inputs=inputs,
                outputs=outputs,
                phase="backward",
                source=source.name,
            )
        )

    def contribute(self, name: str, gradient: str) -> None:
        """Record one more contribution to the gradient of a forward tensor."""
        self.gradients.setdefault(name, []).append(gradient)

    def total(self, name: str, source: Op) -> str | None:
        """Return the whole gradient of a forward tensor, adding up contributions; None if none."""
        parts = self.gradients.get(name, [])
        if not parts:
            return None
        if len(parts) == 1:
            return parts[0]
        result, tensor = parts[0], self.graph.tensors[name]
        made = {output: op.source for op in self.ops for output in op.outputs}
        part_of = "" if name == source.outputs[0] else f"{name.rpartition('.')[2]}."
        for count, part in enumerate(parts[1:], start=1):
            result = self.emit(
                source,
                f"{part_of}gradient_sum{count}",
                _binary("add", tensor.elements, in_place=True),
                (result, part),
                tensor,
            )
            # The sum belongs where the last part was made: in a pipeline only it changes chips.
            self.ops[-1] = replace(self.ops[-1], source=made.get(part, source.name))
        self.gradients[name] = [result]
        return result

    def wants(self, name: str) -> bool:
        """Whether anybody needs the gradient of a forward tensor."""
        return name in self.wanted


def tensors_with_gradient(graph: Graph) -> frozenset[str]:
    """Return the floating-point tensors that a parameter influences, parameters included."""
    reached = {t.name for t in graph.with_role("parameter") if t.dtype.startswith("float")}
    for op in graph.ops:
        if not reached.isdisjoint(op.inputs):
            reached.update(
                name for name in op.outputs if graph.tensors[name].dtype.startswith("float")
            )
    return frozenset(reached)


def backward_ops(tape: Tape, ops: Iterable[Op]) -> None:
    """Differentiate forward operators, the last first.

    Parameters
    ----------
    tape : Tape
        Holds the gradients of what the operators write, and receives those of what they read.
    ops : iterable of Op
        Forward operators in the order of the forward pass.

    Raises
    ------
    WorkloadError
        If an operator that a parameter depends on has no gradient.
    """
    for op in reversed(list(ops)):
        incoming = [tape.total(name, op) for name in op.outputs]
        if all(name is None for name in incoming):
            continue
        if not any(tape.wants(name) for name in op.inputs):
            continue
        _RULES[type(op.params)](tape, op, incoming)


def _binary(function: str, elements: int, *, in_place: bool = False) -> Elementwise:
    return Elementwise(function=function, n_inputs=2, elements=elements, in_place_ok=in_place)


def _no_gradient(op: Op) -> WorkloadError:
    return WorkloadError(
        f"Operator {op.name!r} ({op.kind} {op.function}".rstrip()
        + ") has no gradient: train a model without it, or simulate inference."
    )


def _conv(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    params: Conv = op.params
    (gradient,) = incoming
    x, w = op.inputs[:2]
    if tape.wants(w):
        shape = tape.graph.tensors[w]
        computed = replace(shape, dtype=tape.graph.tensors[op.outputs[0]].dtype)
        result = tape.emit(
            op, "weight_gradient", conv_weight_gradient(params), (x, gradient), computed
        )
        tape.contribute(w, result)
    if tape.wants(x):
        result = tape.emit(
            op, "data_gradient", conv_data_gradient(params), (gradient, w), tape.graph.tensors[x]
        )
        tape.contribute(x, result)


def _matmul(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    params: MatMul = op.params
    (gradient,) = incoming
    a, b = op.inputs[:2]
    dtype = tape.graph.tensors[op.outputs[0]].dtype
    if tape.wants(b):
        like = replace(tape.graph.tensors[b], dtype=dtype)
        result = tape.emit(
            op, "weight_gradient", matmul_weight_gradient(params), (a, gradient), like
        )
        tape.contribute(b, result)
    if tape.wants(a):
        like = replace(tape.graph.tensors[a], dtype=dtype)
        result = tape.emit(op, "data_gradient", matmul_data_gradient(params), (gradient, b), like)
        tape.contribute(a, result)


def _elementwise(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    params: Elementwise = op.params
    (gradient,) = incoming
    function, x = params.function, op.inputs[0]
    if function == "bias_add":
        _pass_on(tape, op, x, gradient)
        _reduced(tape, op, op.inputs[1], gradient, "bias_gradient")
    elif function in ("add", "sum", "mean"):
        for index, name in enumerate(op.inputs):
            _reduced(tape, op, name, gradient, f"gradient{index}")
    elif function == "sub":
        _reduced(tape, op, x, gradient, "gradient0")
        if params.n_inputs > 1 and tape.wants(op.inputs[1]):
            negative = _unary(tape, op, "neg", gradient, "negative")
            _reduced(tape, op, op.inputs[1], negative, "gradient1")
    elif function == "mul" and params.n_inputs == 2:
        for index, (name, other) in enumerate(((x, op.inputs[1]), (op.inputs[1], x))):
            if tape.wants(name):
                product = _times(tape, op, gradient, other, f"product{index}")
                _reduced(tape, op, name, product, f"gradient{index}")
    elif function == "div":
        quotient = _times(tape, op, gradient, op.inputs[1], "quotient", function="div")
        _reduced(tape, op, x, quotient, "gradient0")
        if tape.wants(op.inputs[1]):
            product = _times(tape, op, quotient, op.outputs[0], "product")
            negative = _unary(tape, op, "neg", product, "negative")
            _reduced(tape, op, op.inputs[1], negative, "gradient1")
    elif function == "exp":
        tape.contribute(x, _times(tape, op, gradient, op.outputs[0], "gradient"))
    elif function == "square":
        tape.contribute(x, _times(tape, op, gradient, x, "gradient"))
    elif function in LINEAR or (function == "mul" and params.n_inputs == 1):
        tape.contribute(x, _unary(tape, op, function, gradient, "gradient"))
    elif function in FROM_OUTPUT or function in FROM_INPUT:
        kept = op.outputs[0] if function in FROM_OUTPUT else x
        tape.contribute(
            x, _times(tape, op, gradient, kept, "gradient", function=f"{function}_grad")
        )
    else:
        raise _no_gradient(op)


def _unary(tape: Tape, op: Op, function: str, operand: str, suffix: str) -> str:
    like = tape.graph.tensors[op.outputs[0]]
    params = Elementwise(function=function, n_inputs=1, elements=like.elements, in_place_ok=True)
    return tape.emit(op, suffix, params, (operand,), like)


def _times(
    tape: Tape, op: Op, gradient: str, other: str, suffix: str, *, function: str = "mul"
) -> str:
    """Combine the incoming gradient with a tensor of the forward pass."""
    like = tape.graph.tensors[op.outputs[0]]
    params = Elementwise(
        function=function,
        n_inputs=2,
        elements=like.elements,
        broadcast=prod(tape.shape(other)) != like.elements,
        in_place_ok=True,
    )
    return tape.emit(op, suffix, params, (gradient, other), like)


def _pass_on(tape: Tape, op: Op, name: str, gradient: str) -> None:
    """Hand the incoming gradient to an operand of the same size."""
    if tape.wants(name):
        tape.contribute(name, gradient)


def _reduced(tape: Tape, op: Op, name: str, gradient: str, suffix: str) -> None:
    """Hand the incoming gradient to an operand that may have been broadcast: sum what it shares.

    The operand's elements are taken to lie innermost, as channels do in every layout of the IPU.
    """
    if not tape.wants(name):
        return
    tensor = tape.graph.tensors[name]
    elements = prod(tape.shape(gradient))
    if tensor.elements == elements:
        tape.contribute(name, gradient)
        return
    params = Reduce(
        function="sum", outer=1, reduced=elements // tensor.elements, inner=tensor.elements
    )
    like = replace(tensor, dtype=tape.graph.tensors[op.outputs[0]].dtype)
    tape.contribute(name, tape.emit(op, suffix, params, (gradient,), like))


def _pool(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    params: Pool = op.params
    x = op.inputs[0]
    kept = (x, op.outputs[0]) if params.kind == "max" else ()
    result = tape.emit(
        op,
        "gradient",
        replace(params, backward=True),
        (incoming[0], *kept),
        tape.graph.tensors[x],
    )
    tape.contribute(x, result)


def _norm(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    params: Norm = op.params
    names = op.inputs[:3]
    outputs = tuple(
        tape.new_tensor(f"{op.name}.gradient{index}", tape.graph.tensors[name])
        for index, name in enumerate(names)
    )
    inputs = (incoming[0], op.inputs[0], op.inputs[1], op.outputs[1])
    tape.append(op, "gradient", replace(params, backward=True), inputs, outputs)
    for name, output in zip(names, outputs, strict=True):
        if tape.wants(name):
            tape.contribute(name, output)


def _softmax(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    x = op.inputs[0]
    result = tape.emit(
        op,
        "gradient",
        replace(op.params, backward=True),
        (incoming[0], op.outputs[0]),
        tape.graph.tensors[x],
    )
    tape.contribute(x, result)


def _reduce(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    params: Reduce = op.params
    (gradient,) = incoming
    if params.function in ("max", "min"):
        tape.contribute(op.inputs[0], _shared_by_equals(tape, op, gradient))
        return
    if params.function not in ("sum", "mean"):
        raise _no_gradient(op)
    if params.function == "mean":
        gradient = _unary(tape, op, "scale", gradient, "scaled")
    tensor = tape.graph.tensors[op.inputs[0]]
    spread = Layout(function="expand", elements=tensor.elements, moves_data=False)
    tape.contribute(op.inputs[0], tape.emit(op, "gradient", spread, (gradient,), tensor))


def _shared_by_equals(tape: Tape, op: Op, gradient: str) -> str:
    """Return the gradient of a maximum: elements equal to it share it (TensorFlow's rule)."""
    params: Reduce = op.params
    whole, part = (tape.graph.tensors[name] for name in (op.inputs[0], op.outputs[0]))

    def spread(suffix: str, function: str, inputs: tuple[str, ...]) -> str:
        work = Elementwise(
            function=function, n_inputs=2, elements=whole.elements, broadcast=True, in_place_ok=True
        )
        return tape.emit(op, suffix, work, inputs, whole)

    equal = spread("equal", "equal", (whole.name, part.name))
    count = tape.emit(op, "count", replace(params, function="sum"), (equal,), part)
    share = tape.emit(op, "share", _binary("div", part.elements), (gradient, count), part)
    return spread("gradient", "mul", (equal, share))


VIEWS_BACK = ("concat", "pad")
"""Layouts that need new memory, whose gradient is a view of the incoming one."""

SUMS_BACK = ("expand", "tile")
"""Layouts that repeat elements, whose gradient sums the repeats."""


def _layout(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    params: Layout = op.params
    if params.function in SUMS_BACK:
        _reduced(tape, op, op.inputs[0], incoming[0], "gradient")
        return
    if params.function == "resize":
        raise _no_gradient(op)
    for index, name in enumerate(op.inputs):
        if not tape.wants(name):
            continue
        tensor = tape.graph.tensors[name]
        present = tuple(gradient for gradient in incoming if gradient is not None)
        smaller = sum(prod(tape.shape(gradient)) for gradient in present) < tensor.elements
        if params.function in VIEWS_BACK:
            back = Layout(function="slice", elements=tensor.elements, moves_data=False)
        elif len(op.outputs) > 1 or smaller:
            # Slices and splits: the parts are put together, the rest is zero.
            function = "pad" if smaller else "concat"
            back = Layout(function=function, elements=tensor.elements, moves_data=True)
        else:
            back = replace(params, elements=tensor.elements)
        suffix = f"gradient{index}" if len(op.inputs) > 1 else "gradient"
        tape.contribute(name, tape.emit(op, suffix, back, present, tensor))


_GATHERS_BACK = {"lookup": "add", "add": "lookup"}
"""A lookup sends gradients back by adding them up, a sum by looking them up."""


def _gather(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    params: Gather = op.params
    if params.function not in _GATHERS_BACK:
        raise _no_gradient(op)
    operand, indices = op.inputs
    like = replace(tape.graph.tensors[operand], dtype=tape.graph.tensors[op.outputs[0]].dtype)
    back = replace(params, function=_GATHERS_BACK[params.function])
    tape.contribute(operand, tape.emit(op, "gradient", back, (incoming[0], indices), like))


def _distance(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    params: Distance = op.params
    for index, (own, other) in enumerate((op.inputs, op.inputs[::-1])):
        if tape.wants(own):
            tensor = tape.graph.tensors[own]
            back = Distance(
                rows=params.others if index else params.rows,
                others=params.rows if index else params.others,
                width=params.width,
                backward=True,
            )
            inputs = (own, other, incoming[0])
            tape.contribute(own, tape.emit(op, f"gradient{index}", back, inputs, tensor))


def _sort(_tape: Tape, op: Op, _incoming: list[str | None]) -> None:
    raise _no_gradient(op)


def _recurrent(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    params: Recurrent = op.params
    gradient, *others = incoming
    x, *weights = op.inputs[:4]
    if gradient is None or any(others) or any(tape.wants(name) for name in op.inputs[4:]):
        # Gradients of final cell states and of computed initial states are not passed on.
        raise _no_gradient(op)
    computed = tape.graph.tensors[op.outputs[0]].dtype
    wanted = [x, *weights] if tape.wants(x) else weights
    outputs = tuple(
        tape.new_tensor(
            f"{op.name}.gradient{index}", replace(tape.graph.tensors[name], dtype=computed)
        )
        for index, name in enumerate(wanted)
    )
    back = replace(params, backward=True, input_gradient=tape.wants(x))
    inputs = (gradient, *op.inputs[:3], op.outputs[0], op.outputs[-1])
    tape.append(op, "gradient", back, inputs, outputs)
    for name, output in zip(wanted, outputs, strict=True):
        if tape.wants(name):
            tape.contribute(name, output)


def _alignment_loss(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    """Scale the gradient that the forward operator has computed already."""
    x, like = op.inputs[0], tape.graph.tensors[op.outputs[1]]
    params = Elementwise(function="mul", n_inputs=2, elements=like.elements, broadcast=True)
    tape.contribute(x, tape.emit(op, "gradient", params, (op.outputs[1], incoming[0]), like))


def _cast(tape: Tape, op: Op, incoming: list[str | None]) -> None:
    tensor = tape.graph.tensors[op.inputs[0]]
    params = Cast(to=tensor.dtype, elements=tensor.elements)
    tape.contribute(op.inputs[0], tape.emit(op, "gradient", params, (incoming[0],), tensor))


_RULES: Mapping[type, Callable[[Tape, Op, list[str | None]], None]] = {
    Conv: _conv,
    MatMul: _matmul,
    Elementwise: _elementwise,
    Pool: _pool,
    Norm: _norm,
    Softmax: _softmax,
    Reduce: _reduce,
    Layout: _layout,
    Gather: _gather,
    Recurrent: _recurrent,
    Distance: _distance,
    Sort: _sort,
    AlignmentLoss: _alignment_loss,
    Cast: _cast,
}
