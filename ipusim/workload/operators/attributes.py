"""What one operator does, as plain numbers: the typed payloads of `ipusim.workload.graph.Op`.

Every payload knows its own work. ``macs`` counts multiply-accumulates as
``torch.utils.flop_counter`` does (every output element times every kernel tap, padding
included), because the published parameter and MAC counts were made that way. ``flops`` counts
two per MAC, and for everything else a conventional number of arithmetic operations per element,
stated beside each payload; it feeds roofline baselines, never the cycle model.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

from ipusim.errors import WorkloadError

PASSES = ("forward", "data_gradient", "weight_gradient")
"""What a convolution or product computes: the result, or the gradient of one of its operands."""

LAYER_NORM_FLOPS_PER_ELEMENT = 8
"""Mean 1, centred square sum 3, normalise 2, scale and shift 2."""
BATCH_NORM_INFERENCE_FLOPS_PER_ELEMENT = 2
"""Scale and shift; the statistics are constants."""
SOFTMAX_FLOPS_PER_ELEMENT = 5
"""Maximum, subtraction, exponential, sum, division."""


def windowed_field(
    field: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding_lower: tuple[int, ...],
    padding_upper: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[int, ...]:
    """Output size of a sliding window per spatial dimension, rounded down.

    Parameters
    ----------
    field, kernel, stride, padding_lower, padding_upper, dilation
        One entry per spatial dimension, in elements.

    Returns
    -------
    tuple of int
        ``(field + paddings - dilation * (kernel - 1) - 1) // stride + 1``, at least 0.
    """
    return tuple(
        max(0, (size + low + high - step * (taps - 1) - 1) // hop + 1)
        for size, taps, hop, low, high, step in zip(
            field, kernel, stride, padding_lower, padding_upper, dilation, strict=True
        )
    )


def check_positive(payload: object, **values: int) -> None:
    """Raise `WorkloadError` for the first value below 1."""
    for name, value in values.items():
        if value < 1:
            kind = type(payload).__name__
            raise WorkloadError(f"{kind} has {name} = {value}, which must be at least 1.")


def _check_pass(payload: object, pass_kind: str) -> None:
    if pass_kind not in PASSES:
        raise WorkloadError(
            f"{type(payload).__name__} has pass_kind = {pass_kind!r}, which must be one of "
            f"{', '.join(PASSES)}."
        )


def _check_ranks(payload: object, rank: int, **tuples: tuple[int, ...]) -> None:
    for name, value in tuples.items():
        if len(value) != rank:
            raise WorkloadError(
                f"{type(payload).__name__} has {name} = {value}, which must have {rank} entries, "
                "one per spatial dimension."
            )


class Work:
    """Base of all payloads: no work unless a payload says otherwise."""

    __slots__ = ()

    KIND: ClassVar[str] = ""

    @property
    def macs(self) -> int:
        """Multiply-accumulates; element-wise products are not counted as such."""
        return 0

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv(Work):
    """A convolution, or, with ``input_dilation``, a transposed one.

    Channels are totals over all groups. ``input_dilation`` spreads the input by zeros before the
    window slides (poplibs' ``inputTransform.dilation``); it is empty for ordinary convolutions.
    Paddings may be negative only when ``input_dilation`` is set or in a gradient (the input is then
    truncated). ``pass_kind`` tells a forward convolution from the two gradients of one, which are
    convolutions too (`ipusim.workload.operators.gradients`).
    """

    KIND: ClassVar[str] = "conv"

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    field: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding_lower: tuple[int, ...]
    padding_upper: tuple[int, ...]
    dilation: tuple[int, ...]
    input_dilation: tuple[int, ...] = ()
    pass_kind: str = "forward"

    def __post_init__(self) -> None:
        rank = len(self.field)
        _check_pass(self, self.pass_kind)
        check_positive(
            self,
            batch=self.batch,
            in_channels=self.in_channels,
            out_channels=self.out_channels,
            groups=self.groups,
            rank=rank,
        )
        _check_ranks(
            self,
            rank,
            kernel=self.kernel,
            stride=self.stride,
            padding_lower=self.padding_lower,
            padding_upper=self.padding_upper,
            dilation=self.dilation,
        )
        if self.input_dilation:
            _check_ranks(self, rank, input_dilation=self.input_dilation)
        check_positive(self, stride=min(self.stride), dilation=min(self.dilation))
        check_positive(self, kernel=min(self.kernel), field=min(self.field))
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise WorkloadError(
                f"Conv has {self.in_channels} input and {self.out_channels} output channels, "
                f"which must both be multiples of its {self.groups} groups."
            )

    @property
    def is_transposed(self) -> bool:
        """Whether zeros are inserted between input elements."""
        return any(step > 1 for step in self.input_dilation)

    @property
    def out_field(self) -> tuple[int, ...]:
        """Output size per spatial dimension, in elements."""
        field = self.field
        if self.input_dilation:
            field = tuple((n - 1) * s + 1 for n, s in zip(field, self.input_dilation, strict=True))
        return windowed_field(
            field,
            self.kernel,
            self.stride,
            self.padding_lower,
            self.padding_upper,
            self.dilation,
        )

    @property
    def macs(self) -> int:
        """Multiply-accumulates: per output element, or per input element when transposed.

        A gradient counts as much as its forward convolution: kernel taps times the elements of the
        incoming gradient, or of the forward input where the forward convolution is transposed (its
        input dilation is the stride of its data gradient).
        """
        channels = self.in_channels * self.out_channels // self.groups
        positions, taps = self.out_field, self.kernel
        if self.pass_kind == "data_gradient":
            positions = self.out_field if max(self.stride) > 1 else self.field
        elif self.is_transposed:
            positions = self.field
            taps = self.out_field if self.pass_kind == "weight_gradient" else self.kernel
        return self.batch * prod(positions) * prod(taps) * channels

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.out_channels * (self.in_channels // self.groups) * prod(self.kernel)

    @property
    def flops(self) -> int:
        """Two per multiply-accumulate."""
        return 2 * self.macs


@dataclass(frozen=True, slots=True, kw_only=True)
class MatMul(Work):
    """``C[g, m, n] = A[g, m, k] @ B[g, k, n]``, A and B being the op's first two inputs.

    ``weights_operand`` says whether B is a parameter. ``transpose_a`` and ``transpose_b`` record
    that the stored operand is the transpose of what the formula reads; ``m``, ``k`` and ``n``
    already account for it. ``pass_kind`` is that of the layer: the product of an incoming gradient
    with the weights is its "data_gradient", with the activations its "weight_gradient".
    """

    KIND: ClassVar[str] = "matmul"

    groups: int = 1
    m: int
    k: int
    n: int
    weights_operand: bool | None = None
    transpose_a: bool = False
    transpose_b: bool = False
    pass_kind: str = "forward"

    def __post_init__(self) -> None:
        _check_pass(self, self.pass_kind)
        check_positive(self, groups=self.groups, m=self.m, k=self.k, n=self.n)

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.groups * self.m * self.k * self.n

    @property
    def flops(self) -> int:
        """Two per multiply-accumulate."""
        return 2 * self.macs


@dataclass(frozen=True, slots=True, kw_only=True)
class Elementwise(Work):
    """One function applied element by element; ``elements`` is the size of the output.

    ``function`` is a lower-case name: "relu", "add", "bias_add" (a per-channel parameter added
    to a convolution or matrix product), "mul", ... ``broadcast`` says that some input is smaller
    than the output. ``in_place_ok`` says that the first input has the output's shape and type and
    is not a parameter, so that its memory may be reused if nobody else reads it.
    """

    KIND: ClassVar[str] = "elementwise"

    function: str
    n_inputs: int
    elements: int
    broadcast: bool = False
    in_place_ok: bool = False

    def __post_init__(self) -> None:
        check_positive(self, n_inputs=self.n_inputs)

    @property
    def flops(self) -> int:
        """One per output element and pair of inputs; one per element for unary functions."""
        return self.elements * max(1, self.n_inputs - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Work):
    """A sliding maximum or average; global pooling has ``kernel == field``.

    When a file rounds its output size up, ``padding_upper`` has been enlarged to say the same
    with rounding down, so ``out_field`` is always exact. With ``backward`` the op reads the
    gradient of the result (and, for a maximum, the input and the result) and writes that of the
    input; the sizes stay those of the forward pool.
    """

    KIND: ClassVar[str] = "pool"

    kind: str
    batch: int
    channels: int
    field: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding_lower: tuple[int, ...]
    padding_upper: tuple[int, ...]
    dilation: tuple[int, ...] = ()
    include_padding: bool = False
    backward: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("max", "average"):
            raise WorkloadError(f"Pool kind {self.kind!r} must be 'max' or 'average'.")
        rank = len(self.field)
        check_positive(self, batch=self.batch, channels=self.channels, rank=rank)
        _check_ranks(
            self,
            rank,
            kernel=self.kernel,
            stride=self.stride,
            padding_lower=self.padding_lower,
            padding_upper=self.padding_upper,
        )
        check_positive(self, stride=min(self.stride), kernel=min(self.kernel))

    @property
    def out_field(self) -> tuple[int, ...]:
        """Output size per spatial dimension, in elements."""
        return windowed_field(
            self.field,
            self.kernel,
            self.stride,
            self.padding_lower,
            self.padding_upper,
            self.dilation or (1,) * len(self.field),
        )

    @property
    def flops(self) -> int:
        """One per kernel tap and output element."""
        return self.batch * self.channels * prod(self.out_field) * prod(self.kernel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm(Work):
    """Normalisation of ``batch x channels x spatial_elements`` elements.

    "batch" at inference is a scale and a shift by four stored vectors; its inputs are
    (data, scale, bias, mean, variance). "layer" normalises each of ``batch`` rows over its
    ``channels`` (``spatial_elements`` is 1); "instance" and "group" normalise each of ``groups``
    groups of channels of each sample. Inputs of those, and of "batch" with ``training``, are
    (data, scale, bias).

    In a training graph a norm writes its mean and deviation as a second output. With ``backward``
    the inputs are (incoming gradient, data, scale, statistics) and the outputs the gradients of
    (data, scale, bias). ``replica_span`` replicas share the statistics of a training batch norm
    (distributed batch norm).
    """

    KIND: ClassVar[str] = "norm"

    kind: str
    batch: int
    channels: int
    spatial_elements: int
    groups: int = 1
    training: bool = False
    backward: bool = False
    replica_span: int = 1

    def __post_init__(self) -> None:
        if self.kind not in ("batch", "layer", "group", "instance"):
            raise WorkloadError(
                f"Norm kind {self.kind!r} must be 'batch', 'layer', 'group' or 'instance'."
            )
        check_positive(self, groups=self.groups, replica_span=self.replica_span)

    @property
    def elements(self) -> int:
        """Number of elements normalised."""
        return self.batch * self.channels * self.spatial_elements

    @property
    def statistics(self) -> int:
        """Number of means: one per channel, row, group of a sample, or channel of a sample."""
        per_kind = {
            "batch": self.channels,
            "layer": self.batch,
            "group": self.batch * self.groups,
            "instance": self.batch * self.channels,
        }
        return per_kind[self.kind]

    @property
    def flops(self) -> int:
        """Two per element for a stored normalisation, eight when statistics are computed."""
        if self.kind == "batch" and not self.training:
            return BATCH_NORM_INFERENCE_FLOPS_PER_ELEMENT * self.elements
        return LAYER_NORM_FLOPS_PER_ELEMENT * self.elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax(Work):
    """Softmax of ``outer`` rows of ``length`` elements; ``log`` for its logarithm.

    With ``backward`` the inputs are (incoming gradient, result of the forward pass).
    """

    KIND: ClassVar[str] = "softmax"

    outer: int
    length: int
    log: bool = False
    backward: bool = False

    @property
    def flops(self) -> int:
        """Five per element."""
        return SOFTMAX_FLOPS_PER_ELEMENT * self.outer * self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Work):
    """Reduction of ``(outer, reduced, inner)`` over the middle; "mean", "sum", "max", ..."""

    KIND: ClassVar[str] = "reduce"

    function: str
    outer: int
    reduced: int
    inner: int

    @property
    def flops(self) -> int:
        """One per input element."""
        return self.outer * self.reduced * self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(Work):
    """A change of shape or order: "reshape", "transpose", "concat", "split", "pad", ...

    ``moves_data`` is False where the result is a mere view of the input (reshapes, slices,
    splits, broadcasts) and True where elements change their order or new memory is needed
    (transposes, concatenations, pads, repeats). ``elements`` is the size of all outputs.
    """

    KIND: ClassVar[str] = "layout"

    function: str
    elements: int
    moves_data: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather(Work):
    """Rows of a table chosen by index: ``indices`` of ``rows`` rows of ``width`` elements.

    Attributes
    ----------
    rows, width, indices : int
        Of the table, of a row in elements, and how many rows are chosen.
    function : {"lookup", "add", "write"}
        "lookup" reads (table, indices); "add" sums (updates, indices) into a table of zeros, which
        is the gradient of a lookup and how a graph network aggregates neighbours; "write" puts
        (table, updates, indices) into a table that stays.
    groups : int
        Tables, each with as many indices of its own (a batch of small graphs). Rows and indices
        are those of one group.
    hottest : int
        How many of a group's indices fall on one and the same row, beyond an even spread: padding
        that points to a spare row, or the hub of a graph. One tile has to serve them all.
    """

    KIND: ClassVar[str] = "gather"

    rows: int
    width: int
    indices: int
    function: str = "lookup"
    groups: int = 1
    hottest: int = 0

    def __post_init__(self) -> None:
        if self.function not in GATHERS:
            raise WorkloadError(
                f"Gather function {self.function!r} must be one of {', '.join(GATHERS)}."
            )
        check_positive(self, groups=self.groups)
        if not 0 <= self.hottest <= self.indices:
            raise WorkloadError(
                f"Gather has hottest = {self.hottest}, which must be 0 to {self.indices}, its "
                "indices."
            )

    @property
    def flops(self) -> int:
        """One addition per element that is added."""
        added = self.groups * self.indices * self.width
        return added if self.function == "add" else 0


GATHERS = ("lookup", "add", "write")
"""What `Gather` does with the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance(Work):
    """L1 distances of each of ``rows`` rows to each of ``others`` rows of ``width`` elements.

    With ``backward`` the inputs are (first matrix, second matrix, gradient of the distances) and
    the result is the gradient of the first matrix.
    """

    KIND: ClassVar[str] = "distance"

    rows: int
    others: int
    width: int
    backward: bool = False

    def __post_init__(self) -> None:
        check_positive(self, rows=self.rows, others=self.others, width=self.width)

    @property
    def flops(self) -> int:
        """Subtraction, absolute value or sign, addition."""
        return 3 * self.rows * self.others * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(Work):
    """Sorting of ``outer`` rows of ``length`` elements, each by itself."""

    KIND: ClassVar[str] = "sort"

    outer: int
    length: int

    def __post_init__(self) -> None:
        check_positive(self, outer=self.outer, length=self.length)

    @property
    def flops(self) -> int:
        """One comparison per element and merge of a sort by merging."""
        return self.outer * self.length * (self.length - 1).bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast(Work):
    """Conversion of ``elements`` elements to the type ``to``."""

    KIND: ClassVar[str] = "cast"

    to: str
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Work):
    """Mean loss of ``rows`` rows of ``classes`` values, and its gradient in the same op.

    Inputs are (predictions, targets), outputs (loss of each row, gradient of the predictions).
    "cross_entropy" takes the softmax of the predictions first and integer targets,
    "cross_entropy_accuracy" also counts the rows whose largest prediction is the target's,
    "binary_cross_entropy" the sigmoid and targets of the predictions' shape, "mean_squared" such
    targets too. "identity" is for networks that compute their loss themselves: the result is the
    loss, its gradient 1, and there are no targets (PopTorch's identity_loss).
    """

    KIND: ClassVar[str] = "loss"

    kind: str
    rows: int
    classes: int

    def __post_init__(self) -> None:
        if self.kind not in LOSSES:
            raise WorkloadError(f"Loss kind {self.kind!r} must be one of {', '.join(LOSSES)}.")
        check_positive(self, rows=self.rows, classes=self.classes)

    @property
    def flops(self) -> int:
        """Softmax or sigmoid and subtraction, or subtraction and square."""
        per_element = {"identity": 1, "mean_squared": 2}.get(
            self.kind, SOFTMAX_FLOPS_PER_ELEMENT + 1
        )
        return per_element * self.rows * self.classes


CLASS_LOSSES = ("cross_entropy", "cross_entropy_accuracy")
"""Those whose target is the number of a class."""

LOSSES = (*CLASS_LOSSES, "binary_cross_entropy", "mean_squared", "identity")
"""Losses that `Loss` knows."""

Payload = (
    Conv
    | MatMul
    | Elementwise
    | Pool
    | Norm
    | Softmax
    | Reduce
    | Layout
    | Gather
    | Distance
    | Sort
    | Cast
    | Loss
)
