"""Assembling graphs operator by operator, for the zoo and for imports alike."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from ipusim.errors import WorkloadError
from ipusim.workload.graph import (
    Conv,
    Elementwise,
    Graph,
    Layout,
    MatMul,
    Norm,
    Op,
    Payload,
    Pool,
    Tensor,
)


class GraphBuilder:
    """Collects tensors and operators; `finish` makes the immutable graph.

    Methods that add a layer take the name of their input tensor and return the name of their
    output tensor. Layers are named as PyTorch names them, parameters ``<layer>.weight`` and
    ``<layer>.bias``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tensors: dict[str, Tensor] = {}
        self.ops: list[Op] = []
        self.inputs: list[str] = []
        self._op_names: set[str] = set()

    def add_tensor(self, tensor: Tensor) -> str:
        """Add a tensor whose name must be new; return its name."""
        if tensor.name in self.tensors:
            raise WorkloadError(f"Graph {self.name!r} already has a tensor {tensor.name!r}.")
        self.tensors[tensor.name] = tensor
        return tensor.name

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> str:
        """Add a tensor that the host sends."""
        self.inputs.append(name)
        return self.add_tensor(Tensor(name=name, shape=shape, dtype=dtype, role="input"))

    def parameter(self, name: str, shape: tuple[int, ...], role: str = "parameter") -> str:
        """Add learnt weights, or with role "constant" stored statistics."""
        return self.add_tensor(Tensor(name=name, shape=shape, role=role))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor added before."""
        return self.tensors[name].shape

    def add_op(self, name: str, params: Payload, inputs: tuple[str, ...], *outputs: str) -> None:
        """Add an operator whose tensors exist; a name already taken gets a numeric suffix."""
        unique, count = name, 2
        while unique in self._op_names:
            unique, count = f"{name}_{count}", count + 1
        self._op_names.add(unique)
        self.ops.append(Op(name=unique, params=params, inputs=inputs, outputs=outputs))

    def apply(
        self, name: str, params: Payload, inputs: tuple[str, ...], shape: tuple[int, ...]
    ) -> str:
        """Add an operator and its only output, named ``<name>.out``; return the output."""
        dtype = self.tensors[inputs[0]].dtype
        output = self.add_tensor(Tensor(name=f"{name}.out", shape=shape, dtype=dtype))
        self.add_op(name, params, inputs, output)
        return output

    def elementwise(self, name: str, function: str, *inputs: str) -> str:
        """Add an elementwise function of equally shaped tensors."""
        shape = self.shape(inputs[0])
        params = Elementwise(
            function=function,
            n_inputs=len(inputs),
            elements=prod(shape),
            in_place_ok=self.tensors[inputs[0]].role not in ("parameter", "constant"),
        )
        return self.apply(name, params, inputs, shape)

    def bias(self, name: str, x: str, channels: int) -> str:
        """Add a per-channel bias, as operator ``<name>.bias_add``."""
        shape = self.shape(x)
        params = Elementwise(
            function="bias_add",
            n_inputs=2,
            elements=prod(shape),
            broadcast=True,
            in_place_ok=True,
        )
        bias = self.parameter(f"{name}.bias", (channels,))
        return self.apply(f"{name}.bias_add", params, (x, bias), shape)

    def conv(
        self,
        name: str,
        x: str,
        out_channels: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: bool = False,
    ) -> str:
        """Add a square 2-D convolution of an NCHW tensor."""
        batch, in_channels, *field = self.shape(x)
        params = Conv(
            batch=batch,
            in_channels=in_channels,
            out_channels=out_channels,
            groups=groups,
            field=tuple(field),
            kernel=(kernel, kernel),
            stride=(stride, stride),
            padding_lower=(padding, padding),
            padding_upper=(padding, padding),
            dilation=(1, 1),
        )
        weight = self.parameter(
            f"{name}.weight", (out_channels, in_channels // groups, kernel, kernel)
        )
        y = self.apply(name, params, (x, weight), (batch, out_channels, *params.out_field))
        return self.bias(name, y, out_channels) if bias else y

    def batch_norm(self, name: str, x: str) -> str:
        """Add an inference batch norm of an NCHW tensor, with its statistics as constants."""
        batch, channels, *field = self.shape(x)
        params = Norm(kind="batch", batch=batch, channels=channels, spatial_elements=prod(field))
        vectors = (
            self.parameter(f"{name}.weight", (channels,)),
            self.parameter(f"{name}.bias", (channels,)),
            self.parameter(f"{name}.running_mean", (channels,), role="constant"),
            self.parameter(f"{name}.running_var", (channels,), role="constant"),
        )
        return self.apply(name, params, (x, *vectors), self.shape(x))

    def max_pool(self, name: str, x: str, kernel: int, *, stride: int, padding: int = 0) -> str:
        """Add a square 2-D maximum pool of an NCHW tensor."""
        batch, channels, *field = self.shape(x)
        params = Pool(
            kind="max",
            batch=batch,
            channels=channels,
            field=tuple(field),
            kernel=(kernel, kernel),
            stride=(stride, stride),
            padding_lower=(padding, padding),
            padding_upper=(padding, padding),
        )
        return self.apply(name, params, (x,), (batch, channels, *params.out_field))

    def global_average_pool(self, name: str, x: str) -> str:
        """Add the average over all positions of an NCHW tensor; the result is (N, C, 1, 1)."""
        batch, channels, *field = self.shape(x)
        rank = len(field)
        params = Pool(
            kind="average",
            batch=batch,
            channels=channels,
            field=tuple(field),
            kernel=tuple(field),
            stride=(1,) * rank,
            padding_lower=(0,) * rank,
            padding_upper=(0,) * rank,
        )
        return self.apply(name, params, (x,), (batch, channels, *(1,) * rank))

    def flatten(self, name: str, x: str) -> str:
        """Flatten everything after the batch."""
        batch, *rest = self.shape(x)
        size = prod(rest)
        params = Layout(function="flatten", elements=batch * size, moves_data=False)
        return self.apply(name, params, (x,), (batch, size))

    def linear(self, name: str, x: str, out_features: int) -> str:
        """Add a fully connected layer with bias to a (batch, features) tensor."""
        batch, in_features = self.shape(x)
        params = MatMul(
            m=batch, k=in_features, n=out_features, weights_operand=True, transpose_b=True
        )
        weight = self.parameter(f"{name}.weight", (out_features, in_features))
        y = self.apply(name, params, (x, weight), (batch, out_features))
        return self.bias(name, y, out_features)

    def finish(self, *outputs: str) -> Graph:
        """Return the validated graph; computed outputs get the role "output"."""
        tensors = dict(self.tensors)
        for name in outputs:
            tensor = tensors[name]
            if tensor.role == "activation":
                tensors[name] = Tensor(
                    name=name, shape=tensor.shape, dtype=tensor.dtype, role="output"
                )
        available = [
            t.name for t in tensors.values() if t.role in ("input", "parameter", "constant")
        ]
        return Graph(
            name=self.name,
            tensors=tensors,
            ops=topological_order(self.ops, available),
            inputs=tuple(self.inputs),
            outputs=tuple(outputs),
        ).validate()


def topological_order(ops: Iterable[Op], available: Iterable[str]) -> tuple[Op, ...]:
    """Order operators so that each runs after those it reads from, keeping ties as given.

    Parameters
    ----------
    ops : iterable of Op
    available : iterable of str
        Tensors that exist before the first operator: inputs, parameters and constants.

    Raises
    ------
    WorkloadError
        If operators wait for each other or for a tensor that nothing provides.
    """
    ready = set(available)
    waiting = list(ops)
    ordered: list[Op] = []
    while waiting:
        blocked: list[Op] = []
        for op in waiting:
            if ready.issuperset(op.inputs):
                ready.update(op.outputs)
                ordered.append(op)
            else:
                blocked.append(op)
        if len(blocked) == len(waiting):
            missing = next(name for name in blocked[0].inputs if name not in ready)
            raise WorkloadError(
                f"Operator {blocked[0].name!r} reads {missing!r}, which no operator can provide "
                "first."
            )
        waiting = blocked
    return tuple(ordered)
