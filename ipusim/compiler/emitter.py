"""What operators are lowered with: an emitter of supersteps, and tensors that lie on tiles.

An operator names what runs on which tensor; the `Emitter` knows the chip and the software stack,
picks the vertex and adds up cycles and bytes of the slowest tile. Which vertex runs, and whether a
broadcast operand is first materialised by a copy, follows poplibs lib/popops/ElementWise.cpp,
Cast.cpp, Fill.cpp and Rearrange.cpp and lib/popnn/NonLinearity.cpp; activations keep the tile
mapping of the operation that made them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import gcd, prod
from typing import NamedTuple, Self

from ipusim.compiler.program import Superstep
from ipusim.compiler.reduction import Reduction, Stage, stages_of
from ipusim.compiler.stacks import Stack
from ipusim.compiler.tiles import (
    CODELET_VERSIONS,
    Tile,
    ceil_div,
    codelet_versions,
    copy_cycles,
    element_bytes,
    rearranged_copy_cycles,
    tile_share,
)
from ipusim.compiler.vertices import elementwise as codelets, tables
from ipusim.compiler.vertices.broadcast import (
    OUTER_VECTOR_FUNCTIONS,
    RepeatedVector,
    vector_outer_cycles,
)
from ipusim.compiler.vertices.training import Expression, generated_cycles
from ipusim.errors import ConfigError
from ipusim.machine import Chip

DEFAULT_GROUPING = 16
"""Channels that sit together in memory where no plan says otherwise (poplibs: what convolutions
produce and read, partialChansPerGroup and weights per conv unit)."""


OFFSET_BYTES = 4
"""A counter, which lies on one tile and is sent to all that slice by it."""


class TensorLayout(NamedTuple):
    """Where a tensor lies.

    It has `grouping` channels together in memory, or neighbours along `rows`. It lies on `tiles`,
    spread linearly over the chip if None, and shares element by element the `mapping` of a tensor,
    empty where it has its own. It is `free` if it is laid out for its consumer (host inputs,
    parameters, gradients of those).
    """

    grouping: int = DEFAULT_GROUPING
    tiles: int | None = None
    free: bool = False
    mapping: str = ""
    rows: bool = False

    def mapped(self, tensor: str) -> Self:
        """Return this layout with the mapping of a tensor; `_replace` takes three times as long."""
        return TensorLayout(self.grouping, self.tiles, self.free, tensor, self.rows)

    def lies_with(self, other: Self) -> bool:
        """Whether two tensors need no exchange to be combined element by element."""
        return self.free or other.free or self.mapping == other.mapping


SPREAD = TensorLayout()
"""Spread linearly over the chip."""


def narrow_bytes(dtype: str) -> int:
    """Return the bytes of an operand's element that is narrower than any result, else 0."""
    return 1 if dtype == "float8" else 0


class Placed(NamedTuple):
    """A tensor on the tiles: its shape in memory order, outermost first, its type, its place."""

    shape: tuple[int, ...]
    dtype: str
    layout: TensorLayout = SPREAD

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def shaped(self, *shape: int) -> Self:
        """Return the same tensor seen in another shape."""
        return self._replace(shape=shape)

    def of(self, dtype: str) -> Self:
        """Return a tensor of another type that lies alike."""
        return self._replace(dtype=dtype)

    def spread(self) -> Self:
        """Return a tensor of this shape and type that is spread linearly over the chip."""
        return self._replace(layout=self.layout._replace(tiles=None))


COUNTER = Placed((1,), "float32", TensorLayout(tiles=1))
"""A number that counts, on one tile."""


@dataclass(slots=True, kw_only=True)
class Emitter:
    """Collects the supersteps of one operation, `steps`, in the order in which they run.

    Tiles, repeats and held bytes are those of the steps that follow: tiles that take part (0: those
    of the result), how often each runs, bytes of a tile that live beside their own.
    `superstep_cycles` are sync and control code of a step with an exchange.
    """

    chip: Chip
    stack: Stack
    steps: list[Superstep] = field(default_factory=list)
    tiles: int = 0
    repeats: int = 1
    held_bytes: int = 0
    superstep_cycles: int = field(init=False)
    library: str = field(init=False)
    tile: Tile = field(init=False)

    def __post_init__(self) -> None:
        self.superstep_cycles = self.stack.superstep_cycles
        self.take_codelets(self.stack.codelets)

    def take_codelets(self, version: str) -> None:
        """Let a version of poplibs decide which vertices run, and what they take."""
        self.library, estimator = codelet_versions(version)
        self.tile = Tile(self.chip, estimator)

    def share(self, x: Placed) -> int:
        """Return the elements on the fullest tile."""
        return tile_share(x.elements, x.dtype, self.chip, x.layout.tiles)

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
        """Within this context steps run `repeats` times as often, on `tiles` tiles."""
        before = self.repeats, self.tiles
        self.repeats, self.tiles = self.repeats * repeats, tiles
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
        received: int = 0,
        copy: int = 0,
    ) -> None:
        """Add one superstep: what it does, and the codelet that runs.

        Compute and copy are cycles of the slowest tile, exchange and temp bytes that the fullest
        tile receives, and that live during this step only; what is `received` does both.
        """
        exchange, temp = exchange + received, temp + received
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

    def copy(self, name: str, exchange: int = 0, *, cycles: int = 0, **moved: int) -> None:
        """Move data by exchange, as `emit` has it, then by `cycles` of copies within the tile."""
        self.emit(name, "copy", exchange=exchange, copy=cycles, **moved)

    def slice(
        self, name: str, elements: int, dtype: str, *, write: bool = False, copy: int = 0
    ) -> None:
        """Read, or write, the part of a tensor that a counter says, so many elements on a tile.

        `copy` are the cycles to bring together what is written.
        """
        cycles = codelets.dynamic_slice_cycles(self.tile, elements, dtype)
        vertex = "popops::DynamicUpdateSlice1D" if write else "popops::DynamicSlice1D"
        self.emit(name, vertex, cycles, exchange=OFFSET_BYTES, copy=copy)

    def count(self, name: str, **moved: int) -> None:
        """Make one float32 from two, one of which may come from another tile."""
        self.binary("add", COUNTER, name, in_place=True, **moved)

    def _loop(self, name: str, vertex: str, function: str, x: Placed, **moved: int) -> None:
        """Add a step in which a vertex applies a function to every element, as `emit` has it."""
        cycles = codelets.loop_cycles(self.tile, vertex, function, self.share(x), x.dtype)
        self.emit(name or function, f"popops::{vertex}", cycles, **moved)

    def unary_cycles(self, function: str, x: Placed, *, in_place: bool) -> int:
        """Return the cycles of a function of one operand.

        Non-linearities have no later estimate of their own, and their first one follows the
        assembly.
        """
        tile, work = self.tile, (function, self.share(x), x.dtype)
        if function in tables.NON_LINEARITY[self.library]:
            tile = Tile(self.chip, self.library)
        if function in tables.NON_LINEARITY[tile.version]:
            return codelets.non_linearity_cycles(tile, *work)
        return codelets.loop_cycles(tile, "UnaryOp1D" + _suffix(in_place), *work)

    def unary(self, function: str, x: Placed, name: str = "", *, in_place: bool = False) -> None:
        """Apply a function to every element.

        `popnn::nonLinearity` of 2020-01 copies its input to the output first, if they differ
        (lib/popnn/NonLinearity.cpp, tag 1.0.136).
        """
        cycles = self.unary_cycles(function, x, in_place=in_place)
        vertex, copied = "popops::UnaryOp1D", 0
        if function in tables.NON_LINEARITY[self.library]:
            vertex = "popnn::NonLinearity1D"
            if self.library == "2020-01":
                vertex = "popnn::NonLinearitySupervisor"
                copied = 0 if in_place else copy_cycles(self.tile_bytes(x), self.chip)
                in_place = False
        self.emit(name or function, vertex + _suffix(in_place), cycles, copy=copied)

    def binary(
        self, function: str, x: Placed, name: str = "", *, in_place: bool = False, **moved: int
    ) -> None:
        """Combine tensors of one shape, two or as many as the function has.

        What has to arrive and be put into place for it, `emit` has.
        """
        vertex = codelets.vertex_of(function, self.tile.version) + _suffix(in_place)
        self._loop(name, vertex, function, x, **moved)

    def scalar(self, function: str, x: Placed, name: str = "", *, in_place: bool = False) -> None:
        """Combine a tensor with a single number."""
        self.by_channel(function, x, 1, name, in_place=in_place)

    def by_channel(
        self, function: str, x: Placed, channels: int, name: str = "", *, in_place: bool = False
    ) -> None:
        """Combine a tensor with one value per channel, which must divide the elements."""
        if channels < 1 or x.elements % channels:
            raise ConfigError(
                f"{channels} broadcast values do not divide {x.elements} elements: "
                "give the number of channels of the tensor."
            )
        vertices = tables.LOOPS["BroadcastScalar1D"]
        known = function in vertices[self.library] and function in vertices[self.tile.version]
        if channels == 1 and known:
            vertex, size = "BroadcastScalar1D" + _suffix(in_place), element_bytes(x.dtype)
            self._loop(name, vertex, function, x, exchange=size)
            return
        if x.layout.rows:
            # A run of neighbours along rows meets one value of a channel.
            run = min(x.layout.grouping, x.elements // channels)
            self._repeat_along(function, name, x, run, channels, in_place=in_place)
            return
        block = min(x.layout.grouping, channels)
        # Groups that one tile touches; a producer's partition does not cut a group unless it must.
        regions = ceil_div(self.share(x) * channels, x.elements * block)
        regions = max(1, min(channels // block, regions))
        self._repeat_block(function, name, x, block, regions, in_place=in_place)

    def by_row(self, function: str, x: Placed, name: str = "", *, in_place: bool = False) -> None:
        """Combine a matrix with one value per row."""
        rows, columns = prod(x.shape[:-1]), x.shape[-1]
        if x.layout.rows:
            block = min(x.layout.grouping, rows)
            regions = ceil_div(self.share(x), block * columns)
            self._repeat_block(function, name, x, block, regions, in_place=in_place)
        else:
            self._repeat_along(function, name, x, columns, rows, in_place=in_place)

    def _repeat_block(
        self, function: str, name: str, x: Placed, block: int, regions: int, *, in_place: bool
    ) -> None:
        """Combine blocks of neighbours with the same values; each region has values of its own.

        One region has a vertex of all workers, from SDK 2.1 on two have one each, in turn; more are
        shared by workers (poplibs lib/popops/ElementWise.cpp, binaryOpBroadcastInnerVector).
        """
        share = self.share(x)
        received = regions * block * element_bytes(x.dtype)
        vector = RepeatedVector(self.tile, function, block, x.dtype, in_place)
        if not vector.known(self.library):
            self._write_out(function, name, x, block, received, in_place=in_place)
            return
        blocks = ceil_div(share, regions * block)
        if regions <= (2 if self.library == CODELET_VERSIONS[-1] else 1):
            vertex, cycles = "popops::BroadcastVectorInner1D", regions * vector.cycles(blocks)
        else:
            vertex, cycles = "popops::BroadcastVectorInner2D", vector.cycles_2d(blocks, regions)
        self.emit(name or function, vertex + _suffix(in_place), cycles, exchange=received)

    def _repeat_along(
        self, function: str, name: str, x: Placed, run: int, values: int, *, in_place: bool
    ) -> None:
        """Combine runs of neighbours with a value each, of so many values in all.

        Sources: poplibs lib/popops/ElementWise.cpp, binaryOpBroadcastOuterVector.
        """
        share = self.share(x)
        runs = ceil_div(share, run)
        received = min(runs, values) * element_bytes(x.dtype)
        if function not in OUTER_VECTOR_FUNCTIONS:
            self._write_out(function, name, x, 1, received, in_place=in_place)
            return
        cycles = vector_outer_cycles(self.tile, runs, min(run, share), x.dtype)
        self.emit(name or function, "popops::BroadcastVectorOuter", cycles, exchange=received)

    def _write_out(
        self, function: str, name: str, x: Placed, block: int, received: int, *, in_place: bool
    ) -> None:
        """Combine with an operand that is written out to full size first, a block at a time.

        So poplibs does where no vertex repeats the operand (lib/popops/ElementWise.cpp,
        binaryOpGeneral).
        """
        written = self.tile_bytes(x)
        copied = copy_cycles(written, self.chip, atom_bytes=block * element_bytes(x.dtype))
        moved = {"temp": written, "exchange": received, "copy": copied}
        self.binary(function, x, name, in_place=in_place, **moved)

    def scaled_add(
        self, x: Placed, addend: str = "", *, constrained: bool = False, **moved: int
    ) -> None:
        """Add: ``a += scale * b`` (popops::scaledAddTo, plain weight update).

        The `addend` b may have another type, and arrive (`emit`). `constrained` says that the
        operands lie in different memory elements.
        """
        work = self.tile, self.share(x), x.dtype, addend
        cycles = codelets.scaled_add_cycles(*work, constrained=constrained)
        self.emit("scaled add", "popops::ScaledAddSupervisor", cycles, **moved)

    def generated(self, name: str, x: Placed, expression: Expression, **moved: int) -> None:
        """Compute an expression that popops::map turns into one vertex, as `emit` has it."""
        cycles = generated_cycles(self.tile, expression, self.share(x), x.dtype)
        self.emit(name, "popops::map (generated)", cycles, **moved)

    def gradient_cycles(self, function: str, x: Placed) -> int:
        """Return the cycles of the gradient of a non-linearity."""
        work = function, self.share(x), x.dtype
        return codelets.non_linearity_cycles(self.tile, *work, gradient=True)

    def reduction(self, function: str, x: Placed, *dims: int, out: str = "") -> tuple[Stage, ...]:
        """Return the stages of a reduction without adding them (see `reduce`)."""
        per_tile = None if x.layout.tiles is None else self.share(x)
        shape, group = x.shape, x.layout.grouping
        if not dims and x.layout.rows and prod(shape[:-1]) % group == 0:
            # Neighbours along rows sit together, and are sums of their own.
            shape, dims = (prod(shape[:-1]) // group, shape[-1], group), (1,)
        types, dims = (x.dtype, out or x.dtype), dims or (len(shape) - 1,)
        asked = Reduction(shape, dims, function, *types, per_tile)
        return stages_of(asked, self.tile, self.library)

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
        cycles = codelets.cast_cycles(self.tile, self.share(x), x.dtype, to)
        self.emit("cast", "popops::Cast1D", cycles)

    def fill(self, x: Placed) -> None:
        """Write one value to every element (popops::zero, popops::fill)."""
        cycles = codelets.fill_cycles(self.tile, self.share(x), x.dtype)
        self.emit("fill", "popops::Fill", cycles)

    def bring(
        self, name: str, x: Placed, layout: TensorLayout, rows: int = 0, columns: int = 0
    ) -> int:
        """Regroup what comes to x from where it has a `layout`; return the copies its pieces take.

        Blocks are transposed where rows sit together in one and columns in the other, in groups
        that are multiples of a grain (poplibs lib/popops/Rearrange.cpp, regroupIfBeneficial). Only
        whole groups of so many rows or columns are found, any of an unknown number.
        """
        came, wanted = (
            codelets.found_group(of.grouping, (rows if of.rows else columns) or of.grouping)
            for of in (layout, x.layout)
        )
        turned = layout.rows != x.layout.rows
        return 0 if turned and self.regroup(name, x, came, wanted) else self.piece_copies(x, layout)

    def piece_copies(self, x: Placed, layout: TensorLayout) -> int:
        """Return the cycles to put into place, like `x`, what comes from where it has a `layout`.

        Pieces are what sits together in both: the smaller groups of two, or single elements where
        rows sit together in one and channels in the other.
        """
        group, wanted = layout.grouping, x.layout.grouping
        turned = layout.rows != x.layout.rows
        if group == wanted and not turned:
            return 0
        piece = (1 if turned else gcd(group, wanted)) * element_bytes(x.dtype)
        return rearranged_copy_cycles(self.tile_bytes(x), piece, self.chip)

    def regroup(self, name: str, x: Placed, group: int, wanted: int, *, piece: int = 0) -> bool:
        """Send blocks of two groupings to all tiles and transpose them there, if they can be.

        They come in pieces of so many bytes, if any, which are put into place (regroupTensor).
        """
        blocks = codelets.regrouping(x.elements, group, wanted, x.dtype, self.chip)
        if blocks:
            copied = rearranged_copy_cycles(blocks.received, piece, self.chip) if piece else 0
            moved = {"received": blocks.received, "copy": copied}
            self.emit(name, codelets.TRANSPOSE, blocks.cycles, **moved)
        return bool(blocks)


def _suffix(in_place: bool) -> str:
    return "InPlace" if in_place else ""
