"""Layers of networks, named and sized as in PyTorch."""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

from ipusim.workload import graph
from ipusim.workload.builder import TensorBuilder

Sizes = int | tuple[int, ...]
"""A number for every axis of a field, or one that holds for all."""

LEARNT = {"weight": "parameter", "bias": "parameter"}
RUNNING = {"running_mean": "constant", "running_var": "constant"}
"""Vectors of a norm, by their roles: what it learns, and the statistics of a batch norm."""


def _along(rank: int, sizes: Sizes) -> tuple[int, ...]:
    return sizes if isinstance(sizes, tuple) else (sizes,) * rank


class GraphBuilder(TensorBuilder):
    """Adds layers with parameters named as PyTorch does, ``<layer>.weight`` and ``.bias``."""

    def bias(self, name: str, x: str, channels: int) -> str:
        """Add a per-channel bias, as operator ``<name>.bias_add``."""
        shape = self.shape(x)
        params = graph.Elementwise.in_place("bias_add", broadcast=True)
        bias = self.parameter(f"{name}.bias", (channels,))
        return self.apply(f"{name}.bias_add", params, (x, bias), shape)

    def conv(
        self,
        name: str,
        x: str,
        out_channels: int,
        kernel: Sizes,
        *,
        stride: Sizes = 1,
        padding: Sizes = 0,
        padding_upper: Sizes | None = None,
        dilation: Sizes = 1,
        spread: Sizes = (),
        groups: int = 1,
        bias: bool = False,
        role: str = "parameter",
    ) -> str:
        """Add a convolution of an (N, C, ...) tensor; one number holds for every axis.

        Upper ends are padded like lower ones unless said otherwise. `spread` puts zeros between the
        elements; the weights of such a convolution have the input channels in front, those of any
        other the output channels.
        """
        batch, in_channels, *field = self.shape(x)
        along = partial(_along, len(field))
        params = graph.Conv(
            batch=batch,
            in_channels=in_channels,
            out_channels=out_channels,
            groups=groups,
            field=tuple(field),
            kernel=along(kernel),
            stride=along(stride),
            padding_lower=along(padding),
            padding_upper=along(padding if padding_upper is None else padding_upper),
            dilation=along(dilation),
            input_dilation=along(spread),
        )
        first, second = (in_channels, out_channels) if spread else (out_channels, in_channels)
        weights = (first, second // groups, *params.kernel)
        weight = self.parameter(f"{name}.weight", weights, role=role)
        y = self.apply(name, params, (x, weight), (batch, out_channels, *params.out_field))
        return self.bias(name, y, out_channels) if bias else y

    def conv_transpose(
        self, name: str, x: str, out_channels: int, kernel: Sizes, *, stride: Sizes, **settings: Any
    ) -> str:
        """Add a transposed convolution whose result is `stride` times as large along each axis.

        As Keras pads "same": a convolution of the input, spread by zeros, with the mirrored
        kernel, which must be at least as large as the stride. Settings are groups, bias and the
        role of the weights.
        """
        rank = len(self.shape(x)) - 2
        pairs = list(zip(_along(rank, kernel), _along(rank, stride), strict=True))
        lower = tuple(size - 1 - (size - step) // 2 for size, step in pairs)
        upper = tuple(
            size + step - 2 - before for (size, step), before in zip(pairs, lower, strict=True)
        )
        around = {"padding": lower, "padding_upper": upper}
        return self.conv(name, x, out_channels, kernel, spread=stride, **around, **settings)

    def batch_norm(self, name: str, x: str) -> str:
        """Add an inference batch norm of an NCHW tensor, with its statistics as constants."""
        return self._normalise(name, x, self.shape(x), LEARNT | RUNNING, kind="batch")

    def group_norm(self, name: str, x: str, groups: int) -> str:
        """Add a group norm of an (N, C, ...) tensor."""
        return self._normalise(name, x, self.shape(x), LEARNT, kind="group", groups=groups)

    def layer_norm(self, name: str, x: str, vectors: Mapping[str, str] = LEARNT) -> str:
        """Add a layer norm over the last axis; `vectors` are scale and shift, and their roles."""
        *rows, channels = self.shape(x)
        return self._normalise(name, x, (prod(rows), channels), vectors, kind="layer")

    def _normalise(
        self, name: str, x: str, shape: tuple[int, ...], roles: Mapping[str, str], **kind: Any
    ) -> str:
        batch, channels, *field = shape
        sizes = {"batch": batch, "channels": channels, "spatial_elements": prod(field)}
        params = graph.Norm(**sizes, **kind)
        vectors = [
            self.parameter(f"{name}.{part}", (channels,), role) for part, role in roles.items()
        ]
        return self.apply(name, params, (x, *vectors), self.shape(x))

    def max_pool(self, name: str, x: str, kernel: int, *, stride: int, padding: int = 0) -> str:
        """Add a square 2-D maximum pool of an NCHW tensor."""
        batch, channels, *field = self.shape(x)
        window = {"kernel": (kernel, kernel), "stride": (stride, stride)}
        around = dict.fromkeys(("padding_lower", "padding_upper"), (padding, padding))
        sizes = {"batch": batch, "channels": channels, "field": tuple(field)}
        params = graph.Pool(kind="max", **sizes, **window, **around)
        return self.apply(name, params, (x,), (batch, channels, *params.out_field))

    def global_average_pool(self, name: str, x: str) -> str:
        """Add the average over all positions of an NCHW tensor; the result is (N, C, 1, 1)."""
        params = graph.Pool.of_all("average", self.shape(x))
        return self.apply(name, params, (x,), (params.batch, params.channels, *params.out_field))

    def gather(self, name: str, table: str, indices: str, *, hottest: int = 0) -> str:
        """Add a lookup of rows of a (rows, width) table; the result is (*indices, width).

        In a table (groups, rows, width) each group of indices (groups, count) has its own rows.
        """
        *groups, rows, width = self.shape(table)
        wanted = self.shape(indices)
        sizes = {"indices": prod(wanted) // prod(groups), "groups": prod(groups)}
        params = graph.Gather(rows=rows, width=width, hottest=hottest, **sizes)
        return self.apply(name, params, (table, indices), (*wanted, width))

    def embedding(self, name: str, indices: str, rows: int, width: int) -> str:
        """Add a lookup in a learnt table; the result is (*indices, width)."""
        return self.gather(name, self.parameter(f"{name}.weight", (rows, width)), indices)

    def scatter_add(
        self, name: str, updates: str, indices: str, rows: int, *, hottest: int = 0
    ) -> str:
        """Add the sum of (count, width) updates by index, (rows, width); with groups in front."""
        *groups, count, width = self.shape(updates)
        sizes = {"rows": rows, "width": width, "indices": count, "groups": prod(groups)}
        params = graph.Gather(function="add", hottest=hottest, **sizes)
        return self.apply(name, params, (updates, indices), (*groups, rows, width))

    def write_slices(
        self, name: str, table: str, updates: str, indices: str, *, axis: int = 0, hottest: int = 0
    ) -> str:
        """Write rows, or slices across another axis, into a stored tensor; the result is that."""
        stored = self.tensors[table]
        rows, count = stored.shape[axis], prod(self.shape(indices))
        width = prod(stored.shape) // rows
        output = self.add_tensor(f"{name}.out", stored.shape, stored.dtype, alias_of=table)
        of_table = {"rows": rows, "width": width, "indices": count}
        params = graph.Gather(function="write", hottest=hottest, **of_table)
        self.add_op(name, params, (table, updates, indices), output)
        return output

    def argmax(self, name: str, x: str) -> str:
        """Add the position of the largest element along the last axis, in 32-bit integers."""
        *rows, length = self.shape(x)
        params = graph.Reduce(function="argmax", outer=prod(rows), reduced=length, inner=1)
        return self.apply(name, params, (x,), tuple(rows), dtype="int32")

    def distance(self, name: str, a: str, b: str) -> str:
        """Add the L1 distances of the rows of (m, width) to those of (n, width): (m, n)."""
        (rows, width), (others, _) = self.shape(a), self.shape(b)
        params = graph.Distance(rows=rows, others=others, width=width)
        return self.apply(name, params, (a, b), (rows, others))

    def softmax(self, name: str, x: str, *, log: bool = False) -> str:
        """Add a softmax over the last axis, or its logarithm."""
        *rows, length = self.shape(x)
        params = graph.Softmax(outer=prod(rows), length=length, log=log)
        return self.apply(name, params, (x,), self.shape(x))

    def matmul(
        self, name: str, a: str, b: str, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> str:
        """Add the product of two activations, or of one and a parameter; leading axes are groups.

        A matrix `b` has no groups: it multiplies all rows of `a`. With `transpose_a` the stored
        operand is (..., k, m) instead of (..., m, k), with `transpose_b` (..., n, k).
        """
        *lead, m, k = self.shape(a)
        m, k = (k, m) if transpose_a else (m, k)
        *groups, rows, columns = self.shape(b)
        n = rows if transpose_b else columns
        params = graph.MatMul(
            groups=prod(groups),
            m=m if groups else m * prod(lead),
            k=k,
            n=n,
            weights_operand=self.tensors[b].role == "parameter",
            transpose_a=transpose_a,
            transpose_b=transpose_b,
        )
        return self.apply(name, params, (a, b), (*lead, m, n))

    def reduce(self, name: str, function: str, x: str, *, axis: int, keep: bool = False) -> str:
        """Add a reduction over one axis, which the result has no more, or to `keep` has as 1."""
        shape = self.shape(x)
        before, after = shape[:axis], shape[axis + 1 :]
        sizes = {"outer": prod(before), "reduced": shape[axis], "inner": prod(after)}
        result = (*before, 1, *after) if keep else (*before, *after)
        return self.apply(name, graph.Reduce(function=function, **sizes), (x,), result)

    def recurrent(
        self, name: str, x: str, hidden: int, *, kind: str = "lstm", sequence: bool = True
    ) -> str:
        """Add an LSTM or GRU layer to a (steps, batch, features) tensor.

        The result is (steps, batch, hidden), or (batch, hidden) of the last step where `sequence`
        is False. There is one bias per gate and unit.
        """
        steps, batch, features = self.shape(x)
        sizes = {"steps": steps, "batch": batch, "features": features, "hidden": hidden}
        params = graph.Recurrent(kind=kind, sequence=sequence, **sizes)
        columns = params.gates * hidden
        weights = (
            self.parameter(f"{name}.weight_ih", (features, columns)),
            self.parameter(f"{name}.weight_hh", (hidden, columns)),
            self.parameter(f"{name}.bias", (columns,)),
        )
        shape = (steps, batch, hidden) if sequence else (batch, hidden)
        return self.apply(name, params, (x, *weights), shape)

    def alignment_loss(self, name: str, x: str, labels: str, *, kind: str, steps: int) -> str:
        """Add a loss over alignments of log probabilities with labels (N, L): (N,)."""
        batch, length = self.shape(labels)
        params = graph.AlignmentLoss(
            kind=kind, batch=batch, steps=steps, labels=length, classes=self.shape(x)[-1]
        )
        tensor = self.tensors[x]
        loss = self.add_tensor(f"{name}.out", (batch,), tensor.dtype)
        gradient = self.add_tensor(f"{name}.out_gradient", tensor.shape, tensor.dtype)
        self.add_op(name, params, (x, labels), loss, gradient)
        return loss

    def linear(self, name: str, x: str, out_features: int, *, bias: bool = True) -> str:
        """Add a fully connected layer along the last axis."""
        *lead, in_features = self.shape(x)
        rows = prod(lead)
        params = graph.MatMul(
            m=rows, k=in_features, n=out_features, weights_operand=True, transpose_b=True
        )
        weight = self.parameter(f"{name}.weight", (out_features, in_features))
        y = self.apply(name, params, (x, weight), (*lead, out_features))
        return self.bias(name, y, out_features) if bias else y
