"""Time steps of recurrent layers beside their products: slices, gates, states, gradients.

Every function returns the supersteps of one time step, in the order in which poplibs runs them.
Sources: poplibs lib/popnn/Lstm.cpp, Gru.cpp and Rnn.cpp, tags sdk/poplar/2.0.0 and 2.4.0.  A state
is one (batch, hidden) tensor, spread over tiles in grains of 16 hidden units of one sequence;
whole sequences lie on the same tiles, so a slice along time stays on its tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from ipusim.compiler.operators.elementwise import elementwise_step
from ipusim.compiler.operators.elementwise_functions import Expression
from ipusim.compiler.operators.elementwise_gradient import (
    generated_steps,
    non_linearity_gradient_steps,
)
from ipusim.compiler.superstep import (
    ChipLike,
    Era,
    Superstep,
    ceil_div,
    copy_cycles,
    element_bytes,
)
from ipusim.compiler.vertices.elementwise import (
    dynamic_slice_cycles,
    regions_cycles,
    transpose_cycles,
)

GRAIN = 16
"""Hidden units of one sequence that stay together (Rnn.cpp, getNumGrains)."""

OFFSET_BYTES = 4
"""The step counter, which lies on one tile and is sent to all that slice."""

_LSTM_OUTPUT = Expression(operations=2, slow=("tanh",))  # gate * tanh(cell)
_GRU_OUTPUT = Expression(operations=3, tensors=3)  # candidate + update * (state - candidate)
_GRU_STATE_GRADIENT = Expression(operations=4, tensors=5)  # sums of products, d_h_prev


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """How a (batch, size) tensor of one time step lies.

    Attributes
    ----------
    elements : int
        Elements of the tensor.
    tiles : int
        Tiles that hold it.
    per_tile : int
        Elements on the fullest tile.
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
    """What the elementwise part of a time step needs to know.

    Attributes
    ----------
    state, data : StateLayout
        Of a (batch, hidden) and of a (batch, features) tensor.
    dtype : str
        "float16" or "float32".
    chip : Chip
    era : Era
        Generation of poplibs.
    """

    state: StateLayout
    data: StateLayout
    dtype: str
    chip: ChipLike
    era: Era

    def combine(
        self, name: str, function: str, *, in_place: bool, elsewhere: bool = False
    ) -> Superstep:
        """Combine two states element by element; the second may lie `elsewhere`."""
        (step,) = elementwise_step(
            function,
            self.state.elements,
            self.dtype,
            self.chip,
            era=self.era,
            n_inputs=2,
            in_place=in_place,
            exchanged_inputs=int(elsewhere),
            tiles_used=self.state.tiles,
            name=name,
        )
        return step

    def combine_many(
        self, name: str, function: str, states: int, *, in_place: bool, elsewhere: bool = False
    ) -> Superstep:
        """Combine `states` states with as many others; on a tile they lie apart."""
        if states == 1:
            return self.combine(name, function, in_place=in_place, elsewhere=elsewhere)
        moved = states * self.state.per_tile * element_bytes(self.dtype) if elsewhere else 0
        return Superstep(
            name=name,
            vertex="popops::BinaryOp2D" + ("InPlace" if in_place else ""),
            compute_cycles=self._regions(function, states, in_place=in_place),
            exchange_bytes=moved,
            temp_bytes=moved,
        )

    def _regions(self, function: str, states: int, *, in_place: bool) -> int:
        return regions_cycles(
            function,
            states * self.state.per_tile,
            self.dtype,
            self.chip,
            in_place=in_place,
            generation=self.era.estimator,
        )

    def add_bias_gradients(self, states: int) -> Superstep:
        """Add the gradients of the gates to what the biases' are accumulated in."""
        (step,) = elementwise_step(
            "add",
            states * self.state.elements,
            self.dtype,
            self.chip,
            era=self.era,
            n_inputs=2,
            in_place=True,
            tiles_used=self.state.tiles,
            name="add bias gradients",
        )
        return step

    def apply(self, name: str, function: str, states: int = 1, *, in_place: bool) -> Superstep:
        """Apply a non-linearity to `states` states."""
        if states > 1:
            return Superstep(
                name=name,
                vertex="popops::UnaryOp2D" + ("InPlace" if in_place else ""),
                compute_cycles=self._regions(function, states, in_place=in_place),
            )
        (step,) = elementwise_step(
            function,
            self.state.elements,
            self.dtype,
            self.chip,
            era=self.era,
            in_place=in_place,
            tiles_used=self.state.tiles,
            name=name,
        )
        return step

    def mapped(self, name: str, expression: Expression) -> Superstep:
        """Compute one state by an expression that becomes one vertex."""
        (step,) = generated_steps(
            name,
            self.state.elements,
            expression,
            self.dtype,
            self.chip,
            era=self.era,
            tiles_used=self.state.tiles,
        )
        return step

    def gradients(self, name: str, *functions: str) -> Superstep:
        """Compute gradients of non-linearities, one state each, in one compute set."""
        cycles = sum(
            step.compute_cycles
            for function in functions
            for step in non_linearity_gradient_steps(
                function,
                self.state.elements,
                self.dtype,
                self.chip,
                era=self.era,
                tiles_used=self.state.tiles,
            )
        )
        return Superstep(name=name, vertex="popnn::NonLinearityGrad1D", compute_cycles=cycles)

    def slice(self, name: str, layout: StateLayout, states: int = 1) -> Superstep:
        """Read one step of a sequence of `states` tensors per step, or write one."""
        return Superstep(
            name=name,
            vertex="popops::DynamicSlice1D",
            compute_cycles=dynamic_slice_cycles(
                states * layout.per_tile,
                1,
                self.dtype,
                self.chip,
                generation=self.era.estimator,
            ),
            exchange_bytes=OFFSET_BYTES,
        )

    def receive(self, name: str, layout: StateLayout, states: int = 1) -> Superstep:
        """Bring what a product computed to the tiles of a state."""
        moved = states * layout.per_tile * element_bytes(self.dtype)
        return Superstep(
            name=name, vertex="copy", compute_cycles=0, exchange_bytes=moved, temp_bytes=moved
        )

    def keep(self, name: str, states: int) -> Superstep:
        """Copy states within their tiles."""
        moved = states * self.state.per_tile * element_bytes(self.dtype)
        return Superstep(
            name=name,
            vertex="copy",
            compute_cycles=0,
            on_tile_copy_cycles=copy_cycles(moved, self.chip),
            temp_bytes=moved,
        )

    def count(self) -> Superstep:
        """Advance the step counter."""
        (step,) = elementwise_step(
            "add",
            1,
            "float32",
            self.chip,
            era=self.era,
            n_inputs=2,
            in_place=True,
            tiles_used=1,
            name="count steps",
        )
        return step

    def regroup(self, elements: int, grouping: int, tiles: int) -> list[Superstep]:
        """Transpose blocks of a product whose rows lie in groups, so that units do.

        Source: RnnUtil.hpp, tryGroupedPartialTranspose.
        """
        if grouping == 1:
            return []
        blocks = ceil_div(ceil_div(elements, grouping * GRAIN), tiles)
        return [
            Superstep(
                name="group units",
                vertex="popops::Transpose1D",
                compute_cycles=transpose_cycles(grouping, GRAIN, blocks, self.dtype, self.chip),
            )
        ]


def gates_forward(cell: Cell, *functions: tuple[str, int]) -> list[Superstep]:
    """Bring the product to the states' tiles, add biases, apply each function to some gates.

    The functions, with the number of gates of each, share one compute set.
    """
    gates = sum(count for _, count in functions)
    cycles = sum(
        cell.apply("gates", function, count, in_place=True).compute_cycles
        for function, count in functions
    )
    return [
        cell.receive("units to states", cell.state, gates),
        cell.combine_many("add biases", "add", gates, in_place=True, elsewhere=True),
        Superstep(name="gates", vertex="popnn::NonLinearity1DInPlace", compute_cycles=cycles),
    ]


def lstm_state(cell: Cell, *, training: bool, saved: int) -> list[Superstep]:
    """From the gates of a step to cell state and output.

    Inference overwrites the states (basicLstmCellForwardPassInPlace); training keeps what the
    gradient reads and copies the new states over the old ones.
    """
    if not training:
        return [
            cell.combine_many("forget and input", "mul", 2, in_place=True),
            cell.combine("add candidate", "add", in_place=True),
            cell.mapped("output", _LSTM_OUTPUT),
        ]
    return [
        cell.combine_many("forget and input", "mul", 2, in_place=False),
        cell.combine("add candidate", "add", in_place=True),
        cell.apply("cell tanh", "tanh", in_place=False),
        cell.combine("output", "mul", in_place=False),
        cell.keep("keep for the gradient, new state", saved + 2),
    ]


def gru_state(cell: Cell, *, training: bool, saved: int) -> list[Superstep]:
    """From update gate and candidate of a step to its output (CalcNextOutput)."""
    steps = [cell.mapped("output", _GRU_OUTPUT)]
    if training:
        steps.append(cell.keep("keep for the gradient, new state", saved + 1))
    return steps


def lstm_gradient(cell: Cell) -> list[Superstep]:
    """From the gradient of output and cell state to those of the four gates' products.

    Source: Lstm.cpp, backwardStepImpl up to its product.
    """
    return [
        cell.combine("add incoming gradient", "add", in_place=False),
        cell.combine_many("through output gate", "mul", 2, in_place=False),
        cell.gradients("output gate gradient", "tanh", "sigmoid"),
        cell.combine("add cell gradient", "add", in_place=True),
        cell.combine_many("through gates", "mul", 4, in_place=False),
        cell.gradients("gate gradients", "sigmoid", "tanh", "sigmoid"),
    ]


def gru_candidate_gradient(cell: Cell) -> list[Superstep]:
    """From the gradient of the output to those of candidate and update gate.

    Source: Gru.cpp, backwardStepImpl up to its first product; a matrix of ones is copied for one
    minus the update gate.
    """
    return [
        cell.keep("copy output gradient", 1),
        cell.combine("add incoming gradient", "add", in_place=False),
        cell.keep("ones", 1),
        cell.combine("one minus update", "sub", in_place=False),
        cell.combine("state minus candidate", "sub", in_place=False),
        cell.combine_many("through update gate", "mul", 2, in_place=False),
        cell.gradients("candidate and update gradients", "tanh", "sigmoid"),
    ]


def gru_reset_gradient(cell: Cell) -> list[Superstep]:
    """From the gradient of the candidate's product to that of the reset gate."""
    return [
        cell.combine("through reset gate", "mul", in_place=False),
        cell.gradients("reset gradient", "sigmoid"),
    ]


def gru_state_gradient(cell: Cell) -> Superstep:
    """Sum the parts of the gradient of the previous output (d_h_prev)."""
    return cell.mapped("state gradient", _GRU_STATE_GRADIENT)
