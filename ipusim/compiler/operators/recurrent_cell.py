"""The steps that recurrent layers are lowered to: products, slices, gates, copies of states.

Every method adds supersteps of one time step, in the order in which poplibs runs them.
Sources: poplibs lib/popnn/Lstm.cpp, Gru.cpp and Rnn.cpp, tags sdk/poplar/2.0.0 and 2.4.0.  A state
is one (batch, hidden) tensor, spread over tiles in grains of 16 hidden units of one sequence;
whole sequences lie on the same tiles, so a slice along time stays on its tile.
"""

from dataclasses import dataclass, field
from math import gcd
from typing import NamedTuple, Self

from ipusim.compiler.convolution.planner import Plan
from ipusim.compiler.emitter import Placed, TensorLayout
from ipusim.compiler.operators.matmul import matmul
from ipusim.compiler.program import LoweredOp
from ipusim.compiler.state import Lowering, Task
from ipusim.compiler.tiles import ceil_div, copy_cycles, element_bytes
from ipusim.compiler.vertices.elementwise import (
    TRANSPOSE,
    found_group,
    loop_cycles,
    transpose_cycles,
)
from ipusim.machine import Chip
from ipusim.workload.graph import MatMul

GRAIN = 16
"""Hidden units of one sequence that stay together (Rnn.cpp, getNumGrains)."""


class StateLayout(NamedTuple):
    """How a (batch, size) tensor of one time step lies.

    `per_tile` are the elements on the fullest of its tiles, `grain` those of one sequence that
    stay together.
    """

    elements: int
    grain: int
    tiles: int
    per_tile: int

    @classmethod
    def of(cls, batch: int, size: int, chip: Chip) -> Self:
        """Spread a state over a chip (Rnn.cpp, calculateTileUsage)."""
        grain = gcd(GRAIN, size)
        grains = batch * size // grain
        each = ceil_div(grains, chip.tiles)
        return cls(batch * size, grain, tiles=ceil_div(grains, each), per_tile=each * grain)


@dataclass(slots=True, kw_only=True)
class Cell:
    """A recurrent operator while it is lowered: its supersteps go to `m`.

    `state` is the layout of a (batch, hidden) tensor, `data` that of a (batch, features) one.
    """

    m: Lowering
    state: StateLayout
    data: StateLayout
    dtype: str
    products: list[LoweredOp] = field(default_factory=list)

    def placed(self, states: int = 1) -> Placed:
        """Return `states` states as one tensor on their tiles."""
        layout = TensorLayout(tiles=self.state.tiles)
        return Placed((states * self.state.elements,), self.dtype, layout)

    def bytes(self, layout: StateLayout, states: int = 1) -> int:
        """Return the bytes of `states` states on the fullest tile."""
        return states * layout.per_tile * element_bytes(self.dtype)

    def product(self, params: MatMul) -> tuple[Plan, TensorLayout]:
        """Add a product to every round of the loop; return its plan and its result's layout.

        Its weights stay in the layout of the plan; a data gradient transposes them once before the
        loop.
        """
        m = self.m
        stored = TensorLayout(free=params.pass_kind != "weight_gradient", mapping=1)
        a = Placed((params.m, params.k), self.dtype, TensorLayout(mapping=0))
        b = Placed((params.k, params.n), self.dtype, stored)
        result = Placed((params.m, params.n), self.dtype)
        task = Task(params, inputs=(a, b), results=(result,))
        alone = Lowering(chip=m.chip, stack=m.stack, rules=m.rules, training=m.training, task=task)
        made = matmul(alone, params, a, b, rounds=m.repeats)
        lowered = alone.finish(made)
        m.steps += [step._replace(temp_bytes=0) for step in lowered.steps]
        self.products.append(lowered)
        return alone.plan, made

    def units(self, params: MatMul) -> None:
        """Add a product of every step, and transpose blocks of its result: units become adjacent.

        A row that the vertex reads are adjacent elements of several sequences. Where none are
        adjacent, as where the plan swaps the operands, nothing is done (RnnUtil.hpp,
        tryGroupedPartialTranspose).
        """
        _, made = self.product(params)
        units = gcd(self.state.grain, params.n)
        batch = found_group(made.grouping, params.m) if made.rows else 1
        if min(units, batch) > 1:
            tiles = made.tiles or self.m.chip.tiles
            blocks = ceil_div(ceil_div(params.m * params.n, units * batch), tiles)
            cycles = transpose_cycles(units, batch, blocks, self.dtype, self.m.chip)
            self.m.emit("group units", TRANSPOSE, cycles)

    def combine(
        self,
        name: str,
        function: str,
        states: int = 1,
        *,
        in_place: bool = False,
        elsewhere: bool = False,
    ) -> None:
        """Combine states with as many others, sent if they lie `elsewhere`; each is a region."""
        if states == 1:
            received = self.m.tile_bytes(self.placed()) if elsewhere else 0
            self.m.binary(function, self.placed(), name, in_place=in_place, received=received)
            return
        moved = self.bytes(self.state, states) if elsewhere else 0
        vertex = "BinaryOp2D" + "InPlace" * in_place
        self.several(name, vertex, function, states, received=moved)

    def several(self, name: str, vertex: str, function: str, states: int, **moved: int) -> None:
        """Apply a function to states, each a region of its tiles; `moved` is as `emit` has it."""
        self.m.emit(name, f"popops::{vertex}", self._regions(vertex, function, states), **moved)

    def _regions(self, vertex: str, function: str, states: int) -> int:
        elements = states * self.state.per_tile
        return loop_cycles(self.m.tile, vertex, function, elements, self.dtype)

    def gates(self, *functions: tuple[str, int]) -> None:
        """Bring the product to the states' tiles, add biases, apply each function to some gates.

        The functions, with the number of gates of each, share one compute set.
        """
        gates = sum(count for _, count in functions)
        self.receive(gates)
        self.combine("add biases", "add", gates, in_place=True, elsewhere=True)
        cycles = sum(
            self._regions("UnaryOp2DInPlace", function, count)
            if count > 1
            else self.m.unary_cycles(function, self.placed(), in_place=True)
            for function, count in functions
        )
        self.m.emit("gates", "popnn::NonLinearity1DInPlace", cycles)

    def gradients(self, name: str, *functions: str) -> None:
        """Compute gradients of non-linearities, one state each, in one compute set."""
        cycles = sum(self.m.gradient_cycles(function, self.placed()) for function in functions)
        self.m.emit(name, "popnn::NonLinearityGrad1D", cycles)

    def slice(self, name: str, layout: StateLayout, states: int = 1) -> None:
        """Read, or write at the same cost, `states` tensors of one step of a sequence."""
        self.m.slice(name, states * layout.per_tile, self.dtype)

    def receive(self, states: int) -> None:
        """Send the result of a product, of `states` states, to the tiles of the states."""
        self.m.copy("units to states", received=self.bytes(self.state, states))

    def keep(self, name: str, states: int = 1) -> None:
        """Copy states within their tiles."""
        moved = self.bytes(self.state, states)
        self.m.copy(name, temp=moved, cycles=copy_cycles(moved, self.m.chip))
