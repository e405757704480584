"""Memory per tile over a program: always-live, live activations, temporaries, code."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from ipusim.compiler.code_size import BYTES, Code, code_size
from ipusim.compiler.overwriting import overwritten
from ipusim.compiler.program import Program, all_temp_bytes
from ipusim.compiler.tiles import ceil_div
from ipusim.errors import ConfigError
from ipusim.machine import Chip
from ipusim.workload.graph import Graph

BEYOND = 2
"""How many times the memory of a chip one operation may need at the least before it is refused.

What merely does not fit is profiled: runs of data/runs exceed a tile by up to 22 %, with operations
that take a third of a chip. Beyond, planning takes minutes, and no plan would help.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePoint:
    """Bytes that live while one operation runs, on `tiles` tiles, besides those that always live.

    ``chip_bytes`` are those of all tiles together, the others of the fullest tile.
    """

    op: str
    tiles: int
    activation_bytes: int
    temp_bytes: int
    interleaved_bytes: int
    chip_bytes: int


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of one chip for one program.

    Always live are parameters, gradient accumulators and optimiser state, `resident_bytes` on the
    chip, of which a tile has `parameter_bytes`, and the code, by category. `points` has an entry
    for every operation, in execution order.
    """

    tiles: int
    tile_bytes: int
    interleaved_offset_bytes: int
    parameter_bytes: int
    resident_bytes: int
    code: Code
    points: tuple[LivePoint, ...]

    @cached_property
    def _peak(self) -> LivePoint | None:
        """The first point with the most bytes in use; gaps do not matter where these do not fit."""
        return max(self.points, key=self.used_at, default=None)

    @property
    def peak_op(self) -> str:
        """Operation in which the fullest tile is fullest; empty where there is none."""
        return self._peak.op if self._peak else ""

    @property
    def peak_tiles(self) -> int:
        """Tiles that take part in `peak_op`."""
        return self._peak.tiles if self._peak else 0

    @property
    def code_bytes(self) -> int:
        """Code and stacks of the fullest tile."""
        return self.code.fullest_tile.total + BYTES["stacks"]

    @property
    def always_live_bytes(self) -> int:
        """Bytes of a tile that stay for the whole program."""
        return self.parameter_bytes + self.code_bytes

    @property
    def variable_bytes(self) -> int:
        """Resident bytes and the most that live besides, of all tiles together, without code."""
        return self.resident_bytes + max((point.chip_bytes for point in self.points), default=0)

    @property
    def total_bytes(self) -> int:
        """Variables, code and stacks of all tiles together."""
        return (
            self.total_bytes_uncompiled + self.code.chip.vertex_code + BYTES["stacks"] * self.tiles
        )

    @property
    def total_bytes_uncompiled(self) -> int:
        """The same without vertex code and stacks, as IPUModel counts if it compiles no code."""
        return self.variable_bytes + self.code.chip.total - self.code.chip.vertex_code

    @cached_property
    def peak_tile_bytes(self) -> int:
        """Highest address in use on the fullest tile, so that gaps between regions count.

        Partials of the AMP vertices lie in interleaved memory even where the ordinary region
        below is not full (worst tiles of IPUModel, data/evidence/ipumodel_layers_dev.csv).
        """
        return max((self.bytes_at(point) for point in self.points), default=self.always_live_bytes)

    def used_at(self, point: LivePoint) -> int:
        """Return the bytes in use while one operation runs, without gaps between regions."""
        return self.always_live_bytes + point.activation_bytes + point.temp_bytes

    @property
    def used_tile_bytes(self) -> int:
        """Most bytes in use on the fullest tile."""
        return max(map(self.used_at, self.points), default=self.always_live_bytes)

    def bytes_at(self, point: LivePoint) -> int:
        """Return the highest address in use while one operation runs."""
        live = self.used_at(point)
        if not point.interleaved_bytes:
            return live
        return max(live, self.interleaved_offset_bytes + point.interleaved_bytes)

    @property
    def fits(self) -> bool:
        """Whether the fullest tile holds everything."""
        return self.peak_tile_bytes <= self.tile_bytes

    @property
    def over_bytes(self) -> int:
        """Bytes by which the fullest tile is too small, 0 where it fits."""
        return max(0, self.peak_tile_bytes - self.tile_bytes)


def require_room(graph: Graph, chip: Chip) -> None:
    """Raise a ConfigError, before planning, if an operation needs far more memory than a chip has.

    All operands of an operation, or all its results, must be on the chip at once; of a convolution
    or a product both. The limit is `BEYOND` times the memory of all tiles.
    """
    streamed = set(graph.streamed)

    def needed(names: tuple[str, ...]) -> int:
        return sum(graph.tensors[name].bytes for name in set(names) - streamed)

    room = chip.tiles * chip.bytes_per_tile
    # Most graphs are small: one bound for all operations then spares looking at each.
    largest = max((tensor.bytes for tensor in graph.tensors.values()), default=0)
    at_once = max((len(op.inputs) + len(op.outputs) for op in graph.ops), default=0)
    if largest * at_once <= BEYOND * room:
        return
    for op in graph.ops:
        together = [op.inputs, op.outputs]
        if op.kind in ("conv", "matmul"):
            together = [op.inputs + op.outputs]
        least = max(map(needed, together))
        if least > BEYOND * room:
            raise ConfigError(
                f"The operation {op.name!r} needs at least {least / 1e9:,.4g} GB at once and a "
                f"{chip.name} has {room / 1e9:.3g} GB: choose a smaller micro-batch or model."
            )


class _Life(NamedTuple):
    """A tensor with memory of its own: how much on how many tiles, and in which operations."""

    name: str
    bytes: int
    tiles: int
    first: int
    last: int

    @property
    def tile_bytes(self) -> int:
        """Bytes on the fullest tile."""
        return ceil_div(self.bytes, self.tiles)


def _lives(graph: Graph, tiles_of: Mapping[str, int], chip_tiles: int) -> list[_Life]:
    """Follow every tensor from the operation that makes it to the last that reads it.

    Results share the memory of the input that they overwrite, views that of all inputs.
    """
    tiles = dict.fromkeys(graph.inputs, chip_tiles)
    born = dict.fromkeys(graph.inputs, 0)
    owners: dict[str, tuple[str, ...]] = {name: (name,) for name in graph.inputs}
    reused = overwritten(graph)
    last_use = dict.fromkeys(graph.inputs, len(graph.ops))
    for index, op in enumerate(graph.ops):
        shared: tuple[str, ...] = ()
        if op.kind == "layout" and op.params.viewed_on_ipu:
            shared = op.inputs
        elif op.name in reused:
            shared = (op.inputs[reused[op.name]],)
        for name in op.outputs:
            if graph.tensors[name].alias_of is not None:
                continue
            places = (place for part in shared for place in owners.get(part, ()))
            owners[name] = tuple(dict.fromkeys(places)) or (name,)
            if owners[name] == (name,):
                born[name], tiles[name] = index, tiles_of[op.name]
        for name in (*op.inputs, *op.outputs):
            last_use.update(dict.fromkeys(owners.get(name, ()), index))
    for name in (*graph.outputs, *graph.kept):
        last_use.update(dict.fromkeys(owners.get(name, ()), len(graph.ops)))
    return [
        _Life(name, graph.tensors[name].bytes, tiles[name], first, last_use[name])
        for name, first in born.items()
    ]


def _living(lives: Iterable[_Life], size: Callable[[_Life], int], ops: int) -> list[int]:
    """Return the sum of sizes of the tensors that live during each of so many operations."""
    changes = [0] * (ops + 2)
    for life in lives:
        changes[life.first] += size(life)
        changes[life.last + 1] -= size(life)
    return list(accumulate(changes))


def live_tensors(graph: Graph, program: Program, chip: Chip, op: str) -> dict[str, int]:
    """Return the bytes on the fullest tile of each activation that lives while `op` runs."""
    now = [one.name for one in graph.ops].index(op)
    lives = _lives(graph, {low.name: low.tiles for low in program.ops}, chip.tiles)
    return {life.name: life.tile_bytes for life in lives if life.first <= now <= life.last}


def least_bytes(graph: Graph) -> int:
    """Return the bytes that a graph needs at the least, of all tiles together, without code."""
    lives = _lives(graph, {op.name: 1 for op in graph.ops}, 1)
    return _stored_bytes(graph) + max(_living(lives, attrgetter("bytes"), len(graph.ops)))


def _stored_bytes(graph: Graph) -> int:
    """Return the bytes of parameters and states."""
    return graph.parameter_bytes + sum(tensor.bytes for tensor in graph.with_role("state"))


def measure(
    graph: Graph,
    program: Program,
    chip: Chip,
    *,
    update: Program | None = None,
    resident_bytes: int = 0,
) -> Memory:
    """Measure a program, whose code lies beside that of the weight update.

    `resident_bytes` are of tensors that stay on the chip but are not in the graph: the state of an
    optimiser, micro-batches that wait in a pipeline. Parameters and states are spread evenly over
    the chip, an activation over the tiles of the operation that made it. Updated parameters and
    states share the memory of what they update.
    """
    lowered = {op.name: op for op in program.ops}
    lives = _lives(graph, {low.name: low.tiles for low in program.ops}, chip.tiles)
    tile_bytes = _living(lives, attrgetter("tile_bytes"), len(graph.ops))
    chip_bytes = _living(lives, attrgetter("bytes"), len(graph.ops))
    points = [
        LivePoint(
            op=low.name,
            tiles=low.tiles,
            activation_bytes=on_tile,
            temp_bytes=low.temp_bytes,
            interleaved_bytes=low.interleaved_bytes,
            chip_bytes=on_chip + all_temp_bytes(low),
        )
        for low, on_tile, on_chip in zip(
            (lowered[op.name] for op in graph.ops), tile_bytes, chip_bytes, strict=False
        )
    ]
    resident = _stored_bytes(graph) + resident_bytes
    return Memory(
        tiles=chip.tiles,
        tile_bytes=chip.bytes_per_tile,
        interleaved_offset_bytes=chip.interleaved_offset_bytes,
        parameter_bytes=ceil_div(resident, chip.tiles),
        resident_bytes=resident,
        code=code_size(graph, program, chip.tiles, update=update),
        points=tuple(points),
    )
