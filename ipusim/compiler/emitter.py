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

from ipusim.compiler.eras import ERA_1_0, ERA_2_4, estimator_era
from ipusim.compiler.program import Superstep
from ipusim.compiler.reduction import Reduction, Stage, stages_of
from ipusim.compiler.stacks import Stack
from ipusim.compiler.tiles import (
    Tile,
    ceil_div,
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
"""Channels that are adjacent in memory where no plan says otherwise (poplibs: the groups in which
convolutions write and read, partialChansPerGroup and weights per conv unit)."""


OFFSET_BYTES = 4
"""Bytes of a loop counter, which lies on one tile and is sent to all that slice by it."""


class TensorLayout(NamedTuple):
    """Where a tensor lies.

    `grouping` elements are adjacent in memory: channels or, if `rows`, elements of one column in
    successive rows. It lies on `tiles` tiles, spread linearly over the chip if None. Tensors of one
    `mapping`, a number, lie on the same tiles element by element; None is one of its own. A tensor
    is `free` if it is laid out for its consumer (host inputs, parameters, gradients of those).
    """

    grouping: int = DEFAULT_GROUPING
    tiles: int | None = None
    free: bool = False
    mapping: int | None = None
    rows: bool = False

    def mapped(self, mapping: int | None) -> Self:
        """Return this layout with another mapping; `_replace` takes three times as long."""
        return TensorLayout(self.grouping, self.tiles, self.free, mapping, self.rows)

    def lies_with(self, other: Self) -> bool:
        """Whether two tensors need no exchange to be combined element by element."""
        return self.free or other.free or self.mapping == other.mapping


SPREAD = TensorLayout()
"""Spread linearly over the chip."""


def narrow_bytes(dtype: str) -> int:
    """Return the bytes of an element of a float8 operand, which no result has; 0 for others."""
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
"""A loop counter, one number on one tile."""


@dataclass(slots=True, kw_only=True)
class Emitter:
    """Collects the supersteps of one operation, `steps`, in the order in which they run.

    Of the steps that follow, `tiles` is how many tiles take part (0: those of the result),
    `repeats` how often each runs, `held_bytes` what lives on a tile beside a step's own bytes.
    Vertices are picked by the stack's `era` and timed by that of the estimators, which `tile` has.
    """

    chip: Chip
    stack: Stack
    steps: list[Superstep] = field(default_factory=list)
    tiles: int = 0
    repeats: int = 1
    held_bytes: int = 0
    tile: Tile = field(init=False)

    def __post_init__(self) -> None:
        self.tile = Tile(self.chip, estimator_era(self.stack.codelets))

    @property
    def era(self) -> int:
        """The version of poplibs whose plans and vertices the stack has (`eras`)."""
        return self.stack.planner_era

    def share(self, x: Placed) -> int:
        """Return the elements on the fullest tile."""
        return tile_share(x.elements, x.dtype, self.chip, x.layout.tiles)

    def tiles_of(self, x: Placed) -> int:
        """Return how many tiles have a part."""
        return ceil_div(x.elements, self.share(x))

    def tile_bytes(self, x: Placed) -> int:
        """Return the bytes on the fullest tile."""
        return self.share(x) * element_bytes(x.dtype)

    @contextmanager
    def holding(self, temp_bytes: int) -> Iterator[None]:
        """Within this context so many bytes more of a tile live during every step."""
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
        paired: int = 0,
        copy: int = 0,
        chip_temp: int = 0,
    ) -> None:
        """Add one superstep, of a name that says what it does, in which a vertex runs.

        `compute` and `copy` are cycles of the slowest tile, `exchange` bytes that the fullest tile
        receives, `temp` bytes of it that live during this step only; `received` bytes are both.
        Neighbours on one bus receive `paired` bytes more together, each cycle as many as tiles
        (poplibs lib/poplin/ExchangeEstimator.hpp). `chip_temp` are the bytes of `temp` on all tiles
        together where not each of them holds as many.
        """
        exchange, temp = exchange + received, temp + received
        rate = self.chip.exchange_bytes_per_cycle
        exchange_cycles = ceil_div(exchange, rate)
        exchange_cycles += ceil_div(paired, rate * self.chip.tiles_per_exchange_bus)
        exchange += paired
        overhead = self.stack.superstep_cycles if exchange else self.stack.compute_set_cycles
        if chip_temp:
            chip_temp += self.held_bytes * (self.tiles or self.chip.tiles)
        self.steps.append(
            Superstep(
                name=name,
                vertex=vertex,
                sync_cycles=overhead,
                exchange_cycles=exchange_cycles,
                copy_cycles=copy,
                compute_cycles=compute,
                exchange_bytes=exchange,
                tiles=self.tiles,
                repeats=self.repeats,
                temp_bytes=temp + self.held_bytes,
                chip_temp_bytes=chip_temp,
            )
        )

    def copy(self, name: str, exchange: int = 0, *, cycles: int = 0, **moved: int) -> None:
        """Move data by exchange, as `emit` has it, then by `cycles` of copies within the tile."""
        self.emit(name, "copy", exchange=exchange, copy=cycles, **moved)

    def slice(
        self, name: str, elements: int, dtype: str, *, write: bool = False, copy: int = 0
    ) -> None:
        """Read, or write, a slice of a tensor at the index in a counter: `elements` on a tile.

        `copy` are the cycles in which a tile first brings the elements together that it writes.
        """
        cycles = codelets.dynamic_slice_cycles(self.tile, elements, dtype)
        vertex = "popops::DynamicUpdateSlice1D" if write else "popops::DynamicSlice1D"
        self.emit(name, vertex, cycles, exchange=OFFSET_BYTES, copy=copy)

    def count(self, name: str, **moved: int) -> None:
        """Advance a counter: one float32 from two, of which one may arrive (`emit`)."""
        self.binary("add", COUNTER, name, in_place=True, **moved)

    def _loop(self, name: str, vertex: str, function: str, x: Placed, **moved: int) -> None:
        """Add a step in which a vertex applies a function to every element, as `emit` has it."""
        cycles = codelets.loop_cycles(self.tile, vertex, function, self.share(x), x.dtype)
        self.emit(name or function, f"popops::{vertex}", cycles, **moved)

    def unary_cycles(self, function: str, x: Placed, *, in_place: bool) -> int:
        """Return the cycles of a function of one operand.

        Non-linearities of an era are timed by its estimators too: later ones have no estimate of
        their vertex, and the first follows the assembly.
        """
        tile, work = self.tile, (function, self.share(x), x.dtype)
        if function in tables.NON_LINEARITY[self.era]:
            tile = Tile(self.chip, self.era)
        if function in tables.NON_LINEARITY[tile.era]:
            return codelets.non_linearity_cycles(tile, *work)
        return codelets.loop_cycles(tile, "UnaryOp1D" + "InPlace" * in_place, *work)

    def unary(self, function: str, x: Placed, name: str = "", *, in_place: bool = False) -> None:
        """Apply a function to every element.

        Where a non-linearity has only the vertex in place, as all of era 0, its input is first
        copied to another output (lib/popnn/NonLinearity.cpp, nonLinearity, in all eras).
        """
        cycles = self.unary_cycles(function, x, in_place=in_place)
        vertex, copied = "popops::UnaryOp1D" + "InPlace" * in_place, 0
        if function in tables.NON_LINEARITY[self.era]:
            early = self.era == ERA_1_0
            copies = not in_place and (early or function != "swish")
            copied = copy_cycles(self.tile_bytes(x), self.chip) if copies else 0
            vertex = "Supervisor" if early else "1D" + "InPlace" * (in_place or copies)
            vertex = f"popnn::NonLinearity{vertex}"
        self.emit(name or function, vertex, cycles, copy=copied)

    def binary(
        self, function: str, x: Placed, name: str = "", *, in_place: bool = False, **moved: int
    ) -> None:
        """Combine tensors of x's shape element by element, as many as the function takes.

        `moved` are the bytes of operands that arrive and the copies into place, as `emit` has them.
        """
        vertex = codelets.vertex_of(function, self.tile.era) + "InPlace" * in_place
        self._loop(name, vertex, function, x, **moved)

    def integers(
        self, function: str, x: Placed, name: str, *, scalar: bool = False, **moved: int
    ) -> None:
        """Combine 32-bit integers with as many, or with a `scalar`, as `emit` has it.

        In era 0 the scalar is written out first.
        """
        repeated = f"BroadcastScalar1D {function}"
        known = all(repeated in tables.INTEGERS[era] for era in (self.era, self.tile.era))
        vertex = "BroadcastScalar1D" if scalar and known else "BinaryOp1D"
        if scalar and not known:
            moved["copy"] = copy_cycles(self.tile_bytes(x), self.chip, atom_bytes=OFFSET_BYTES)
        cycles = codelets.integer_cycles(self.tile, vertex, function, self.share(x))
        self.emit(name, f"popops::{vertex}", cycles, **moved)

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
        known = function in vertices[self.era] and function in vertices[self.tile.era]
        if channels == 1 and known:
            vertex, size = "BroadcastScalar1D" + "InPlace" * in_place, element_bytes(x.dtype)
            self._loop(name, vertex, function, x, exchange=size)
            return
        if x.layout.rows:
            # A run of neighbours along rows meets one value of a channel.
            run = min(x.layout.grouping, x.elements // channels)
            self._repeat_along(function, name, x, run, channels, in_place=in_place)
            return
        block = min(x.layout.grouping, channels)
        # Channel groups that a tile has part of; a producer's partition cuts none unless it must.
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
        """Combine all blocks of a region, of `block` adjacent elements each, with one vector.

        A tile has so many `regions`, each with a vector of its own. For one region a vertex of all
        workers runs, from SDK 2.1 on for each of two, one after the other; more are shared out to
        vertices of one worker (poplibs lib/popops/ElementWise.cpp, binaryOpBroadcastInnerVector).
        """
        share = self.share(x)
        received = regions * block * element_bytes(x.dtype)
        vector = RepeatedVector(self.tile, function, block, x.dtype, in_place)
        if not vector.known(self.era):
            self._write_out(function, name, x, block, received, in_place=in_place)
            return
        blocks = ceil_div(share, regions * block)
        if regions <= (2 if self.era >= ERA_2_4 else 1):
            vertex, cycles = "popops::BroadcastVectorInner1D", regions * vector.cycles(blocks)
        else:
            vertex, cycles = "popops::BroadcastVectorInner2D", vector.cycles_2d(blocks, regions)
        self.emit(name or function, vertex + "InPlace" * in_place, cycles, exchange=received)

    def _repeat_along(
        self, function: str, name: str, x: Placed, run: int, values: int, *, in_place: bool
    ) -> None:
        """Combine runs with one value each (ElementWise.cpp, binaryOpBroadcastOuterVector)."""
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
        """Combine with a smaller operand that each tile first copies to the size of x, by blocks.

        `block` are the elements of a block, `received` the bytes of the operand that a tile needs.
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

        `addend` is the type of b where it is not a's; b may have to arrive (`moved`, as `emit` has
        it). `constrained` says that the operands lie in different memory elements.
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
            # Adjacent elements are of different rows, each of which is reduced by itself.
            shape, dims = (prod(shape[:-1]) // group, shape[-1], group), (1,)
        types, dims = (x.dtype, out or x.dtype), dims or (len(shape) - 1,)
        asked = Reduction(shape, dims, function, *types, per_tile)
        return stages_of(asked, self.tile, self.era)

    def reduce(self, function: str, x: Placed, *dims: int, out: str = "", name: str = "") -> None:
        """Reduce some dimensions, the last by default, into type `out`, x's by default.

        The function is "add", "square_add", "max", "min" or "mul"; `name`, of the tensor that is
        reduced, is put before the names of the steps.
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
            chip_temp=stage.chip_temp,
        )

    def cast(self, x: Placed, to: str) -> None:
        """Convert the type where it differs; the output keeps the tile mapping (popops::cast)."""
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
        """Regroup an operand from its `layout` to that of x; return the cycles to copy its pieces.

        Blocks are transposed, and no pieces copied, if rows are adjacent in one layout and columns
        in the other, in groups that are multiples of a grain (poplibs lib/popops/Rearrange.cpp,
        regroupIfBeneficial). poplibs finds only groups that divide the number of `rows` or
        `columns`; where that is not known (0), any group.
        """
        came, wanted = (
            codelets.found_group(of.grouping, (rows if of.rows else columns) or of.grouping)
            for of in (layout, x.layout)
        )
        turned = layout.rows != x.layout.rows
        return 0 if turned and self.regroup(name, x, came, wanted) else self.piece_copies(x, layout)

    def piece_copies(self, x: Placed, layout: TensorLayout) -> int:
        """Return the cycles of on-tile copies that turn the `layout` of an operand into that of x.

        Pieces are what is adjacent in both: as many elements as divide both groups, or one where
        rows are adjacent in one layout and channels in the other.
        """
        group, wanted = layout.grouping, x.layout.grouping
        turned = layout.rows != x.layout.rows
        if group == wanted and not turned:
            return 0
        piece = (1 if turned else gcd(group, wanted)) * element_bytes(x.dtype)
        return rearranged_copy_cycles(self.tile_bytes(x), piece, self.chip)

    def regroup(self, name: str, x: Placed, group: int, wanted: int, *, piece: int = 0) -> bool:
        """Transpose blocks of ``group x wanted`` on all tiles; return whether `regrouping` can.

        A `piece`, in bytes, is what the blocks arrive in if it has to be copied into place first
        (regroupTensor).
        """
        blocks = codelets.regrouping(x.elements, group, wanted, x.dtype, self.chip)
        if blocks:
            copied = rearranged_copy_cycles(blocks.received, piece, self.chip) if piece else 0
            moved = {"received": blocks.received, "copy": copied}
            self.emit(name, codelets.TRANSPOSE, blocks.cycles, **moved)
        return bool(blocks)
