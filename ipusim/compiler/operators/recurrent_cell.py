"""Time steps of recurrent layers beside their products: slices, gates, states, gradients.

Every method adds supersteps of one time step, in the order in which poplibs runs them.
Sources: poplibs lib/popnn/Lstm.cpp, Gru.cpp and Rnn.cpp, tags sdk/poplar/2.0.0 and 2.4.0.  A state
is one (batch, hidden) tensor, spread over tiles in grains of 16 hidden units of one sequence;
whole sequences lie on the same tiles, so a slice along time stays on its tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from ipusim.compiler.emitter import Emitter, Placed, TensorLayout
from ipusim.compiler.tiles import ChipLike, ceil_div, copy_cycles, element_bytes
from ipusim.compiler.vertices.elementwise import TRANSPOSE, loop_cycles, transpose_cycles
from ipusim.compiler.vertices.training import Expression

GRAIN = 16
"""Hidden units of one sequence that stay together (Rnn.cpp, getNumGrains)."""

_LSTM_OUTPUT = Expression(operations=2, slow=("tanh",))  # gate * tanh(cell)
_GRU_OUTPUT = Expression(operations=3, tensors=3)  # candidate + update * (state - candidate)
_GRU_STATE_GRADIENT = Expression(operations=4, tensors=5)  # sums of products, d_h_prev


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """How a (batch, size) tensor of one time step lies.

    `per_tile` are the elements on the fullest of its tiles.
    """

    elements: int
    tiles: int
    per_tile: int

    @classmethod
    def of(cls, batch: int, size: int, chip: ChipLike) -> StateLayout:
        """Spread a state over a chip (Rnn.cpp, calculateTileUsage)."""
        grain = gcd(GRAIN, size)
        grains = batch * size // grain
        each = ceil_div(grains, chip.tiles)
        return cls(elements=batch * size, tiles=ceil_div(grains, each), per_tile=each * grain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The elementwise part of a time step, whose supersteps go to `m`.

    `state` is the layout of a (batch, hidden) tensor, `data` that of a (batch, features) one.
    """

    m: Emitter
    state: StateLayout
    data: StateLayout
    dtype: str

    def placed(self, states: int = 1) -> Placed:
        """Return `states` states as one tensor on their tiles."""
        layout = TensorLayout(tiles=self.state.tiles)
        return Placed((states * self.state.elements,), self.dtype, layout)

    def bytes(self, layout: StateLayout, states: int = 1) -> int:
        """Return the bytes of `states` states on the fullest tile."""
        return states * layout.per_tile * element_bytes(self.dtype)

    def combine(
        self, name: str, function: str, *, in_place: bool = False, elsewhere: bool = False
    ) -> None:
        """Combine two states element by element; the second may lie `elsewhere`."""
        self.m.binary(function, self.placed(), name, in_place=in_place, exchanged=elsewhere)

    def combine_many(
        self,
        name: str,
        function: str,
        states: int,
        *,
        in_place: bool = False,
        elsewhere: bool = False,
    ) -> None:
        """Combine `states` states with as many others; on a tile they lie apart."""
        if states == 1:
            self.combine(name, function, in_place=in_place, elsewhere=elsewhere)
            return
        moved = self.bytes(self.state, states) if elsewhere else 0
        vertex = "BinaryOp2D" + ("InPlace" if in_place else "")
        cycles = self._regions(vertex, function, states)
        self.m.emit(name, f"popops::{vertex}", cycles, exchange=moved, temp=moved)

    def _regions(self, vertex: str, function: str, states: int) -> int:
        return loop_cycles(self.m.tile, vertex, function, states * self.state.per_tile, self.dtype)

    def add_bias_gradients(self, states: int) -> None:
        """Add the gradients of the gates to what the biases' are accumulated in."""
        self.m.binary("add", self.placed(states), "add bias gradients", in_place=True)

    def apply(self, name: str, function: str, states: int = 1, *, in_place: bool = False) -> None:
        """Apply a non-linearity to `states` states."""
        if states == 1:
            self.m.unary(function, self.placed(), name, in_place=in_place)
            return
        vertex = "UnaryOp2D" + ("InPlace" if in_place else "")
        self.m.emit(name, f"popops::{vertex}", self._regions(vertex, function, states))

    def mapped(self, name: str, expression: Expression) -> None:
        """Compute one state by an expression that becomes one vertex."""
        self.m.generated(name, self.placed(), expression)

    def gradients(self, name: str, *functions: str) -> None:
        """Compute gradients of non-linearities, one state each, in one compute set."""
        cycles = sum(self.m.gradient_cycles(function, self.placed()) for function in functions)
        self.m.emit(name, "popnn::NonLinearityGrad1D", cycles)

    def slice(self, name: str, layout: StateLayout, states: int = 1) -> None:
        """Read one step of a sequence of `states` tensors per step, or write one."""
        self.m.slice(name, states * layout.per_tile, self.dtype)

    def receive(self, name: str, layout: StateLayout, states: int = 1) -> None:
        """Bring what a product computed to the tiles of a state."""
        self.m.fetch(name, self.bytes(layout, states))

    def keep(self, name: str, states: int) -> None:
        """Copy states within their tiles."""
        moved = self.bytes(self.state, states)
        self.m.copy(name, temp=moved, cycles=copy_cycles(moved, self.m.chip))

    def regroup(self, elements: int, grouping: int, tiles: int) -> None:
        """Transpose blocks of a product whose rows lie in groups, so that units do.

        Source: RnnUtil.hpp, tryGroupedPartialTranspose.
        """
        if grouping > 1:
            blocks = ceil_div(ceil_div(elements, grouping * GRAIN), tiles)
            cycles = transpose_cycles(grouping, GRAIN, blocks, self.dtype, self.m.chip)
            self.m.emit("group units", TRANSPOSE, cycles)

    def gates(self, *functions: tuple[str, int]) -> None:
        """Bring the product to the states' tiles, add biases, apply each function to some gates.

        The functions, with the number of gates of each, share one compute set.
        """
        gates = sum(count for _, count in functions)
        self.receive("units to states", self.state, gates)
        self.combine_many("add biases", "add", gates, in_place=True, elsewhere=True)
        cycles = sum(
            self._regions("UnaryOp2DInPlace", function, count)
            if count > 1
            else self.m.unary_cycles(function, self.placed(), in_place=True)
            for function, count in functions
        )
        self.m.emit("gates", "popnn::NonLinearity1DInPlace", cycles)

    def lstm_state(self, *, training: bool, saved: int) -> None:
        """From the gates of a step to cell state and output.

        Inference overwrites the states (basicLstmCellForwardPassInPlace); training keeps what the
        gradient reads and copies the new states over the old ones.
        """
        self.combine_many("forget and input", "mul", 2, in_place=not training)
        self.combine("add candidate", "add", in_place=True)
        if not training:
            self.mapped("output", _LSTM_OUTPUT)
            return
        self.apply("cell tanh", "tanh")
        self.combine("output", "mul")
        self.keep("keep for the gradient, new state", saved + 2)

    def gru_state(self, *, training: bool, saved: int) -> None:
        """From update gate and candidate of a step to its output (CalcNextOutput)."""
        self.mapped("output", _GRU_OUTPUT)
        if training:
            self.keep("keep for the gradient, new state", saved + 1)

    def lstm_gradient(self) -> None:
        """From the gradient of output and cell state to those of the four gates' products.

        Source: Lstm.cpp, backwardStepImpl up to its product.
        """
        self.combine("add incoming gradient", "add")
        self.combine_many("through output gate", "mul", 2)
        self.gradients("output gate gradient", "tanh", "sigmoid")
        self.combine("add cell gradient", "add", in_place=True)
        self.combine_many("through gates", "mul", 4)
        self.gradients("gate gradients", "sigmoid", "tanh", "sigmoid")

    def gru_candidate_gradient(self) -> None:
        """From the gradient of the output to those of candidate and update gate.

        Source: Gru.cpp, backwardStepImpl up to its first product; a matrix of ones is copied for
        one minus the update gate.
        """
        self.keep("copy output gradient", 1)
        self.combine("add incoming gradient", "add")
        self.keep("ones", 1)
        self.combine("one minus update", "sub")
        self.combine("state minus candidate", "sub")
        self.combine_many("through update gate", "mul", 2)
        self.gradients("candidate and update gradients", "tanh", "sigmoid")

    def gru_reset_gradient(self) -> None:
        """From the gradient of the candidate's product to that of the reset gate."""
        self.combine("through reset gate", "mul")
        self.gradients("reset gradient", "sigmoid")

    def gru_state_gradient(self) -> None:
        """Sum the parts of the gradient of the previous output (d_h_prev)."""
        self.mapped("state gradient", _GRU_STATE_GRADIENT)
