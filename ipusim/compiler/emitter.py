"""What operators are lowered with: an emitter of supersteps, and tensors that lie on tiles.

An operator names what runs on which tensor; the `Emitter` knows the chip and the software stack,
picks the vertex and adds up cycles and bytes of the slowest tile. Which vertex runs, and whether a
broadcast operand is first materialised by a copy, follows poplibs lib/popops/ElementWise.cpp,
Cast.cpp, Fill.cpp and Rearrange.cpp and lib/popnn/NonLinearity.cpp; activations keep the tile
mapping of the operation that made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from ipusim.compiler.program import Superstep
from ipusim.compiler.reduction import Reduction, Stage
from ipusim.compiler.stacks import Stack
from ipusim.compiler.tiles import (
    ChipLike,
    CodeletVersion,
    ceil_div,
    codelet_version,
    copy_cycles,
    element_bytes,
    tile_share,
    vector_width,
)
from ipusim.compiler.vertices import elementwise as codelets, tables
from ipusim.compiler.vertices.broadcast import (
    INNER_VECTOR_FUNCTIONS,
    vector_inner_2d_cycles,
    vector_inner_cycles,
    vector_outer_cycles,
)
from ipusim.compiler.vertices.training import (
    Expression,
    generated_cycles,
    non_linearity_grad_cycles,
)
from ipusim.errors import ConfigError

DEFAULT_GROUPING = 16
"""Channels that sit together in memory where no plan says otherwise (poplibs: what convolutions
produce and read, partialChansPerGroup and weights per conv unit)."""


OFFSET_BYTES = 4
"""A counter, which lies on one tile and is sent to all that slice by it."""


class TensorLayout(NamedTuple):
    """Where a tensor lies.

    Attributes
    ----------
    grouping : int
        Channels that sit together in memory.
    tiles : int or None
        Tiles that hold it; None for a linear mapping over the chip.
    free : bool
        Whether it is laid out for its consumer (host inputs, parameters, gradients of those).
    mapping : str
        Tensor whose tile mapping it shares, element by element; empty where it has its own.
    rows : bool
        Whether the elements that sit together are neighbours along rows, not along channels.
    """

    grouping: int = DEFAULT_GROUPING
    tiles: int | None = None
    free: bool = False
    mapping: str = ""
    rows: bool = False

    def lies_with(self, other: TensorLayout) -> bool:
        """Whether two tensors need no exchange to be combined element by element."""
        return self.free or other.free or self.mapping == other.mapping


SPREAD = TensorLayout()
"""Spread linearly over the chip."""


class Placed(NamedTuple):
    """A tensor on the tiles: its shape in memory order, outermost first, its type, its place."""

    shape: tuple[int, ...]
    dtype: str
    layout: TensorLayout = SPREAD

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def narrow_bytes(self) -> int:
        """Bytes of an element that is narrower than any result, else 0."""
        return 1 if self.dtype == "float8" else 0

    def shaped(self, *shape: int) -> Placed:
        """Return the same tensor seen in another shape."""
        return self._replace(shape=shape)

    def of(self, dtype: str) -> Placed:
        """Return a tensor of another type that lies alike."""
        return self._replace(dtype=dtype)

    def spread(self) -> Placed:
        """Return a tensor of this shape and type that is spread linearly over the chip."""
        return self._replace(layout=self.layout._replace(tiles=None))


@dataclass(slots=True, kw_only=True)
class Emitter:
    """Collects the supersteps of one operation, `steps`, in the order in which they run.

    Tiles, repeats and held bytes are those of the steps that follow: tiles that take part (0: those
    of the result), how often each runs, bytes of a tile that live beside their own.
    `superstep_cycles` are sync and control code of a step with an exchange.
    """

    chip: ChipLike
    stack: Stack
    steps: list[Superstep] = field(default_factory=list)
    tiles: int = 0
    repeats: int = 1
    held_bytes: int = 0
    superstep_cycles: int = field(init=False)
    codelets: CodeletVersion = field(init=False)

    def __post_init__(self) -> None:
        self.superstep_cycles = self.stack.superstep_cycles
        self.codelets = codelet_version(self.stack.codelets)

    @property
    def library(self) -> str:
        """Version of the library that decides which vertices run."""
        return self.codelets.library

    @property
    def estimator(self) -> str:
        """Version whose cycle formulas are used."""
        return self.codelets.estimator

    def cycles(self, codelet: Callable[..., int], *work: Any, **options: Any) -> int:
        """Return what a codelet takes on a tile of this chip, by the formulas of the stack."""
        return codelet(*work, self.chip, version=self.estimator, **options)

    def share(self, x: Placed) -> int:
        """Return the elements on the fullest tile."""
        return tile_share(x.elements, x.dtype, self.chip, x.layout.tiles).elements

    def tile_bytes(self, x: Placed) -> int:
        """Return the bytes on the fullest tile."""
        return self.share(x) * element_bytes(x.dtype)

    @contextmanager
    def holding(self, temp_bytes: int) -> Iterator[None]:
        """Within this context so many bytes of a tile live beside what steps need themselves."""
        self.held_bytes += temp_bytes
        yield
        self.held_bytes -= temp_bytes

    @contextmanager
    def loop(self, repeats: int, *, tiles: int) -> Iterator[None]:
        """Within this context steps run `repeats` times on `tiles` tiles."""
        before = self.repeats, self.tiles
        self.repeats, self.tiles = repeats, tiles
        yield
        self.repeats, self.tiles = before

    def emit(
        self,
        name: str,
        vertex: str,
        compute: int = 0,
        *,
        exchange: int = 0,
        temp: int = 0,
        copy: int = 0,
    ) -> None:
        """Add one superstep: what it does, and the codelet that runs.

        Compute and copy are cycles of the slowest tile, exchange and temp bytes that the fullest
        tile receives, and that live during this step only.
        """
        overhead = self.superstep_cycles if exchange else self.stack.compute_set_cycles
        self.steps.append(
            Superstep(
                name=name,
                vertex=vertex,
                sync_cycles=overhead,
                exchange_cycles=ceil_div(exchange, self.chip.exchange_bytes_per_cycle),
                copy_cycles=copy,
                compute_cycles=compute,
                exchange_bytes=exchange,
                tiles=self.tiles,
                repeats=self.repeats,
                temp_bytes=temp + self.held_bytes,
            )
        )

    def copy(self, name: str, received: int = 0, *, temp: int = 0, cycles: int = 0) -> None:
        """Move data: `received` bytes by exchange, then `cycles` of copies within the tile."""
        self.emit(name, "copy", exchange=received, temp=temp, copy=cycles)

    def fetch(self, name: str, received: int, *, cycles: int = 0) -> None:
        """Move data into a tensor of its own, which lives while the step runs."""
        self.copy(name, received, temp=received, cycles=cycles)

    def slice(self, name: str, elements: int, dtype: str, *, write: bool = False) -> None:
        """Read, or write, the part of a tensor that a counter says, so many elements on a tile."""
        cycles = self.cycles(codelets.dynamic_slice_cycles, elements, 1, dtype)
        vertex = "popops::DynamicUpdateSlice1D" if write else "popops::DynamicSlice1D"
        self.emit(name, vertex, cycles, exchange=OFFSET_BYTES)

    def count(self, name: str, *, exchanged: bool = False) -> None:
        """Make one float32 from two, one of which may be `exchanged` from another tile."""
        counter = Placed((1,), "float32", TensorLayout(tiles=1))
        self.binary("add", counter, name, in_place=True, exchanged=exchanged)

    def unary_cycles(self, function: str, x: Placed, *, in_place: bool) -> int:
        """Return the cycles of a function of one operand.

        Non-linearities have no later estimate of their own, and their first one follows the
        assembly; those of 2020-01 exist in place only.
        """
        version = self.estimator
        if function in tables.NON_LINEARITY[self.library]:
            version = self.library
            in_place = in_place or version == "2020-01"
        return codelets.unary_cycles(
            function, self.share(x), x.dtype, self.chip, in_place=in_place, version=version
        )

    def unary(self, function: str, x: Placed, name: str = "", *, in_place: bool = False) -> None:
        """Apply a function to every element.

        `popnn::nonLinearity` of 2020-01 copies its input to the output first
        (lib/popnn/NonLinearity.cpp, tag 1.0.136).
        """
        function = codelets.canonical_function(function)
        cycles = self.unary_cycles(function, x, in_place=in_place)
        vertex, copied = "popops::UnaryOp1D" + _suffix(in_place), 0
        if function in tables.NON_LINEARITY[self.library]:
            vertex = "popnn::NonLinearity1D" + _suffix(in_place)
            if self.library == "2020-01":
                vertex = "popnn::NonLinearitySupervisor"
                copied = 0 if in_place else copy_cycles(self.tile_bytes(x), self.chip)
        self.emit(name or function, vertex, cycles, copy=copied)

    def binary(
        self,
        function: str,
        x: Placed,
        name: str = "",
        *,
        in_place: bool = False,
        exchanged: bool = False,
    ) -> None:
        """Combine two tensors of one shape; the second may be `exchanged` from other tiles."""
        function = codelets.canonical_function(function)
        work = function, self.share(x), x.dtype
        cycles = self.cycles(codelets.binary_cycles, *work, in_place=in_place)
        received = self.tile_bytes(x) if exchanged else 0
        vertex = "popops::BinaryOp1D" + _suffix(in_place)
        self.emit(name or function, vertex, cycles, exchange=received, temp=received)

    def scalar(self, function: str, x: Placed, name: str = "", *, in_place: bool = False) -> None:
        """Combine a tensor with a single number."""
        self.by_channel(function, x, 1, name, in_place=in_place)

    def by_channel(
        self, function: str, x: Placed, channels: int, name: str = "", *, in_place: bool = False
    ) -> None:
        """Combine a tensor with one value per channel, which must divide the elements."""
        function = codelets.canonical_function(function)
        if channels < 1 or x.elements % channels:
            raise ConfigError(
                f"{channels} broadcast values do not divide {x.elements} elements: "
                "give the number of channels of the tensor."
            )
        share, size = self.share(x), element_bytes(x.dtype)
        vertices = tables.SCALAR_BROADCAST
        known = function in vertices[self.library] and function in vertices[self.estimator]
        if channels == 1 and known:
            cycles = self.cycles(codelets.scalar_broadcast_cycles, function, share, x.dtype)
            vertex = "popops::BroadcastScalar1D" + _suffix(in_place)
            self.emit(name or function, vertex, cycles, exchange=size)
            return
        if x.layout.rows:
            # A run of neighbours along rows meets one value of a channel.
            run = min(x.layout.grouping, x.elements // channels)
            self._repeat_along(name or function, x, run, channels)
            return
        block = min(x.layout.grouping, channels)
        # Groups that one tile touches; a producer's partition does not cut a group unless it must.
        regions = ceil_div(share * channels, x.elements * block)
        regions = max(1, min(channels // block, regions))
        self._repeat_block(function, name, x, block, regions, in_place=in_place)

    def by_row(self, function: str, name: str, x: Placed, *, in_place: bool = False) -> None:
        """Combine a matrix with one value per row."""
        rows, columns = prod(x.shape[:-1]), x.shape[-1]
        if x.layout.rows:
            block = min(x.layout.grouping, rows)
            regions = ceil_div(self.share(x), block * columns)
            self._repeat_block(function, name, x, block, regions, in_place=in_place)
        else:
            self._repeat_along(name, x, columns, rows)

    def _repeat_block(
        self, function: str, name: str, x: Placed, block: int, regions: int, *, in_place: bool
    ) -> None:
        """Combine blocks of neighbours with the same values; each region has values of its own.

        Sources: poplibs lib/popops/ElementWise.cpp, binaryOpBroadcastInnerVector.
        """
        share, size = self.share(x), element_bytes(x.dtype)
        received = regions * block * size
        inner = function in INNER_VECTOR_FUNCTIONS and x.dtype == "float16"
        if not inner or block % vector_width(x.dtype, self.chip):
            # No vertex for this pattern: the operand is written out to full size, then combined.
            work = function, share, x.dtype
            cycles = self.cycles(codelets.binary_cycles, *work, in_place=in_place)
            copied = copy_cycles(share * size, self.chip, atom_bytes=block * size)
            vertex = "popops::BinaryOp1D" + _suffix(in_place)
            self.emit(
                name or function, vertex, cycles, exchange=received, temp=share * size, copy=copied
            )
            return
        blocks = ceil_div(share, regions * block)
        if regions == 1:
            vertex = "popops::BroadcastVectorInner1D"
            cycles = self.cycles(vector_inner_cycles, function, block, blocks, in_place=in_place)
        else:
            vertex = "popops::BroadcastVectorInner2D"
            work = function, block, blocks, regions
            cycles = self.cycles(vector_inner_2d_cycles, *work, in_place=in_place)
        self.emit(name or function, vertex + _suffix(in_place), cycles, exchange=received)

    def _repeat_along(self, name: str, x: Placed, run: int, values: int) -> None:
        """Combine runs of neighbours with a value each, of so many values in all.

        Sources: poplibs lib/popops/ElementWise.cpp, binaryOpBroadcastOuterVector.
        """
        share, width = self.share(x), vector_width(x.dtype, self.chip)
        runs = ceil_div(share, run)
        cycles = self.cycles(vector_outer_cycles, runs, ceil_div(share, runs), width)
        received = min(runs, values) * element_bytes(x.dtype)
        self.emit(name, "popops::BroadcastVectorOuter", cycles, exchange=received)

    def scaled_add(
        self,
        x: Placed,
        addend_dtype: str = "",
        *,
        constrained: bool = False,
        exchanged: bool = False,
    ) -> None:
        """Add: ``a += scale * b`` (popops::scaledAddTo, plain weight update).

        `constrained` says that the operands lie in different memory elements, `exchanged` that b
        arrives from other tiles.
        """
        share, addend = self.share(x), addend_dtype or x.dtype
        options = {"addend_dtype": addend, "constrained": constrained}
        cycles = self.cycles(codelets.scaled_add_cycles, share, x.dtype, **options)
        received = share * element_bytes(addend) if exchanged else 0
        vertex = "popops::ScaledAddSupervisor"
        self.emit("scaled add", vertex, cycles, exchange=received, temp=received)

    def generated(self, name: str, x: Placed, expression: Expression) -> None:
        """Compute an expression that popops::map turns into one vertex."""
        cycles = self.cycles(generated_cycles, expression, self.share(x), x.dtype)
        self.emit(name, "popops::map (generated)", cycles)

    def gradient_cycles(self, function: str, x: Placed) -> int:
        """Return the cycles of the gradient of a non-linearity."""
        return self.cycles(non_linearity_grad_cycles, function, self.share(x), x.dtype)

    def reduction(self, function: str, x: Placed, *dims: int, out: str = "") -> tuple[Stage, ...]:
        """Return the stages of a reduction without adding them (see `reduce`)."""
        per_tile = None if x.layout.tiles is None else self.share(x)
        shape, group = x.shape, x.layout.grouping
        if not dims and x.layout.rows and prod(shape[:-1]) % group == 0:
            # Neighbours along rows sit together, and are sums of their own.
            shape, dims = (prod(shape[:-1]) // group, shape[-1], group), (1,)
        asked = Reduction.of(shape, dims or (len(shape) - 1,), function, x.dtype, out, per_tile)
        return asked.stages(self.chip, self.codelets)

    def reduce(self, function: str, x: Placed, *dims: int, out: str = "", name: str = "") -> None:
        """Reduce some dimensions, the last by default, into type `out`, x's by default.

        The function is "add", "square_add", "max", "min" or "mul"; the name is what is reduced, set
        before the names of the steps.
        """
        for stage in self.reduction(function, x, *dims, out=out):
            self.run(stage, f"{name}, {stage.name}" if name else stage.name)

    def run(self, stage: Stage, name: str = "") -> None:
        """Add a stage of a reduction."""
        self.emit(
            name or stage.name,
            stage.vertex,
            stage.cycles,
            exchange=stage.received,
            temp=stage.temp,
        )

    def cast(self, x: Placed, to: str) -> None:
        """Convert the type; nothing to do if it is the same.

        The output keeps the tile mapping of the input (popops::cast), so nothing is exchanged.
        """
        if x.dtype == to:
            return
        cycles = self.cycles(codelets.cast_cycles, self.share(x), x.dtype, to)
        self.emit("cast", "popops::Cast1D", cycles)

    def fill(self, x: Placed) -> None:
        """Write one value to every element (popops::zero, popops::fill)."""
        cycles = self.cycles(codelets.fill_cycles, self.share(x), x.dtype)
        self.emit("fill", "popops::Fill", cycles)

    def regroup(self, x: Placed, rows: int, columns: int) -> None:
        """Send blocks of rows and columns to all tiles and transpose them there (regroupTensor)."""
        blocks = codelets.regrouping(x.elements, rows, columns, x.dtype, self.chip)
        received = blocks.received
        self.emit("regroup", codelets.TRANSPOSE, blocks.cycles, exchange=received, temp=received)

    def rearrange(self, x: Placed, from_grouping: int) -> None:
        """Move a tensor to where `x` lies: one exchange of everything.

        Where the groups of channels differ, transpose vertices run first if both are multiples of
        4 float16 elements (poplibs lib/popops/Rearrange.cpp, regroupIfBeneficial); otherwise the
        destination tile copies element by element.
        """
        moved, size = self.tile_bytes(x), element_bytes(x.dtype)
        grouping = x.layout.grouping
        if from_grouping == grouping:
            self.copy("move", moved)
        elif size == 2 and from_grouping % 4 == 0 and grouping % 4 == 0:
            self.regroup(x, from_grouping, grouping)
        else:
            self.fetch("rearrange", moved, cycles=copy_cycles(moved, self.chip, atom_bytes=size))


def _suffix(in_place: bool) -> str:
    return "InPlace" if in_place else ""
