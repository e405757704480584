"""Recurrent layers: a loop over time steps around planned products.

Forward, each step multiplies input and state by all weights at once, in the plan of a fully
connected layer. Backward, a loop in the other direction multiplies the gradients of the gates by
the transposed weights, which are transposed once before it. The weight gradient is added up step by
step: in a loop of its own, within the backward loop, or (from SDK 2.4 on, LSTM) over as many steps
at a time as a tenth of the memory allowed for temporaries holds.

Sources: poplibs lib/popnn/Lstm.cpp, Gru.cpp and Rnn.cpp, tags sdk/poplar/2.0.0 and 2.4.0.  The
loop runs with the step repeated, so a layer of any length is a few dozen supersteps.
"""

from dataclasses import dataclass, field, replace

from ipusim.compiler.convolution import planner
from ipusim.compiler.emitter import Placed, TensorLayout
from ipusim.compiler.operators.matmul import (
    PlannedProduct,
    multiply,
    plan_product,
    transpose_product,
)
from ipusim.compiler.operators.recurrent_cell import GRAIN, Cell, StateLayout
from ipusim.compiler.state import Lowering, Task, lowers
from ipusim.compiler.tiles import ceil_div, copy_cycles, element_bytes, vector_width
from ipusim.workload.graph import MatMul, Recurrent

GATHERING_ERA = 2
"""Planner era from which an LSTM adds up weight gradients over several steps at a time."""

OPERAND_SHARE = 0.1
"""Share of tile memory that sequences may take before they are spread over more tiles
(Lstm.cpp, getNumShards)."""

GATHER_MEMORY_PROPORTION = 0.2
GATHERED_SHARE = 0.1
"""Temporary memory of an LSTM without an option of its own, and the share of it that gradients of
the gates may take until they are used (Lstm.cpp, interleaveWUCadence)."""


@dataclass(slots=True)
class _Layer:
    """One recurrent operator while it is lowered: its cell, and what its products need."""

    m: Lowering
    params: Recurrent
    cell: Cell
    plans: list[str] = field(default_factory=list)
    temp_bytes: int = 0

    def product(self, params: MatMul) -> PlannedProduct:
        """Add a product to every round of the loop; return it as planned.

        Its weights stay in the layout of the plan, and what a gradient does to them once is done
        before the loop.
        """
        m = self.m
        alone = _alone(m, params, self.cell.dtype)
        a, b = alone.task.inputs
        planned = plan_product(alone, params)
        transpose_product(alone, planned, b)
        once = len(alone.steps)
        lowered = alone.finish(multiply(alone, planned, a, b))
        m.steps += [
            replace(step, repeats=step.repeats * (m.repeats if index >= once else 1), temp_bytes=0)
            for index, step in enumerate(lowered.steps)
        ]
        self.plans.append(lowered.plan)
        # Code is told apart by the first product alone.
        m.codelet = m.codelet or lowered.codelet
        self.temp_bytes = max(self.temp_bytes, lowered.temp_bytes)
        m.interleaved_bytes = max(m.interleaved_bytes, lowered.interleaved_bytes)
        return planned

    def units(self, params: MatMul) -> None:
        """Add a product of every step and the regrouping of its rows into groups of units."""
        plan = self.product(params).chosen
        self.cell.regroup(params.m * params.n, plan.out_chans_per_group, plan.tiles_used)


def _alone(m: Lowering, params: MatMul, dtype: str) -> Lowering:
    """Start the lowering of one product alone, from the weights and what a step computes."""
    weights = TensorLayout(free=params.pass_kind != "weight_gradient", mapping="b")
    inputs = (
        Placed((params.m, params.k), dtype, TensorLayout(mapping="a")),
        Placed((params.k, params.n), dtype, weights),
    )
    return Lowering(
        chip=m.chip,
        stack=replace(m.stack, regroup_fully_connected=False),
        rules=m.rules,
        training=m.training,
        task=Task(params, inputs=inputs, results=(Placed((params.m, params.n), dtype),)),
    )


@lowers(Recurrent)
def recurrent(m: Lowering, op: Recurrent, *_: Placed) -> tuple[TensorLayout, ...]:
    """Lower a recurrent layer or its gradient; gradients of weights are laid out like weights."""
    # What follows runs in a loop, but for a few copies around it.
    m.stack = m.stack.in_loop()
    m.superstep_cycles = m.stack.superstep_cycles
    cell = Cell(
        m=m,
        state=StateLayout.of(op.batch, op.hidden, m.chip),
        data=StateLayout.of(op.batch, op.features, m.chip),
        dtype=m.made.dtype,
    )
    m.tiles = cell.state.tiles
    layer = _Layer(m, op, cell)
    (_backward if op.backward else _forward)(layer)
    m.plan = "; ".join(layer.plans)
    m.temp_bytes = max(layer.temp_bytes, *(step.temp_bytes for step in m.steps))
    tiles = cell.state.tiles * (_shards(layer) if op.sequence or op.backward else 1)
    m.result = TensorLayout(grouping=GRAIN, tiles=tiles)
    if op.backward:
        free = TensorLayout(free=True)
        return (m.result, free) if op.input_gradient else (free,)
    return (m.result,)


def _shards(layer: _Layer) -> int:
    """Return how many sets of tiles share the sequence (Rnn.cpp, getMaxShards; getNumShards)."""
    params, cell, chip = layer.params, layer.cell, layer.m.chip
    steps = params.steps
    most = chip.tiles // max(cell.state.tiles, cell.data.tiles)
    most = ceil_div(steps, ceil_div(steps, most))
    per_step = cell.bytes(cell.data) + cell.bytes(cell.state, 1 + params.saved)
    wanted = ceil_div(per_step * steps, int(chip.bytes_per_tile * OPERAND_SHARE))
    return min(wanted, most)


def _forward(layer: _Layer) -> None:
    m, params, cell = layer.m, layer.params, layer.cell
    # Single-operation plans of the products: m rows, k summed over, n columns.
    rows, features = params.steps * params.batch, params.features
    _copy_sequence("lay out sequence", layer, cell.data)
    if params.input_product_first:
        layer.product(_stored(rows, features, params.gates * params.hidden))
    with m.loop(params.steps, tiles=m.tiles):
        if params.input_product_first:
            cell.slice("slice input products", cell.state, params.gates)
        else:
            cell.slice("slice input", cell.data)
        if params.kind == "lstm":
            _lstm_units(layer)
            cell.lstm_state(training=params.training, saved=params.saved)
        else:
            (_gru_units_reset_after if params.reset_after else _gru_units)(layer)
            cell.gru_state(training=params.training, saved=params.saved)
        if params.training:
            cell.slice("write kept", cell.state, params.saved)
        if params.sequence:
            cell.slice("write output", cell.state)
        cell.m.count("count steps")


def _lstm_units(layer: _Layer) -> None:
    params, cell = layer.params, layer.cell
    columns = params.gates * params.hidden
    if params.input_product_first:
        layer.units(_stored(params.batch, params.hidden, columns))
        cell.combine_many("add input products", "add", params.gates, in_place=True, elsewhere=True)
    else:
        layer.units(_stored(params.batch, params.features + params.hidden, columns))
    cell.gates(("sigmoid", 3), ("tanh", 1))


def _gru_units(layer: _Layer) -> None:
    params, cell = layer.params, layer.cell
    read = params.features + params.hidden
    layer.units(_stored(params.batch, read, 2 * params.hidden))
    cell.gates(("sigmoid", 2))
    if params.training:
        cell.keep("keep reset", 1)
    cell.combine("reset state", "mul", in_place=True)
    layer.units(_stored(params.batch, read, params.hidden))
    cell.gates(("tanh", 1))


def _gru_units_reset_after(layer: _Layer) -> None:
    params, cell = layer.params, layer.cell
    columns = params.gates * params.hidden
    layer.product(_stored(params.batch, params.features, columns))
    layer.units(_stored(params.batch, params.hidden, columns))
    cell.receive("units to states", cell.state, 2 * params.gates)
    cell.combine_many("add biases", "add", 2 * params.gates, in_place=True, elsewhere=True)
    if params.training:
        cell.keep("keep candidate product", 1)
    cell.combine_many("add state products", "add", 2, in_place=True)
    cell.apply("update and reset", "sigmoid", 2, in_place=True)
    cell.combine("reset product", "mul", in_place=True)
    cell.combine("add reset product", "add", in_place=True)
    cell.apply("candidate", "tanh", in_place=True)


def _backward(layer: _Layer) -> None:
    m, params, cell = layer.m, layer.params, layer.cell
    interval = _steps_per_weight_gradient(layer)
    if params.sequence:
        _copy_sequence("lay out incoming gradient", layer, cell.state)
    weights = params.gates * params.hidden * (params.features + params.hidden + params.batch)
    m.fill(Placed((weights,), cell.dtype))
    _copy_sequence("lay out sequence", layer, cell.data)
    cell.keep("shift outputs", 1)
    with m.loop(params.steps, tiles=m.tiles):
        if params.sequence:
            cell.slice("slice incoming gradient", cell.state)
        cell.slice("slice kept", cell.state, params.saved)
        if params.kind == "gru":
            cell.slice("slice previous output", cell.state)
        (_lstm_gradient if params.kind == "lstm" else _gru_gradient)(layer)
        _receive_gradients(layer, kept=params.gates if interval != 1 else 0)
        if interval != 1:
            cell.slice("write gate gradients", cell.state, params.gates)
        if params.input_gradient:
            cell.slice("write input gradient", cell.data)
        cell.m.count("count steps")
    _weight_gradients(layer, interval)


def _lstm_gradient(layer: _Layer) -> None:
    layer.cell.lstm_gradient()
    layer.units(_passed_on(layer, layer.params.gates))


def _gru_gradient(layer: _Layer) -> None:
    params, cell = layer.params, layer.cell
    cell.gru_candidate_gradient()
    if params.reset_after:
        cell.gru_reset_gradient()
        cell.combine("reset candidate gradient", "mul")
        gates = params.gates * params.hidden
        layer.units(_transposed(params.batch, gates, params.hidden))
        if params.input_gradient:
            layer.units(_transposed(params.batch, gates, params.features))
    else:
        layer.units(_passed_on(layer, 1))
        cell.gru_reset_gradient()
        layer.units(_passed_on(layer, 2))
        if params.input_gradient:
            cell.combine("add input gradients", "add")
    cell.gru_state_gradient()


def _weight_gradients(layer: _Layer, interval: int) -> None:
    """Add the weight gradients of every `interval` steps, or with 0 in a loop after the other."""
    m, params, cell = layer.m, layer.params, layer.cell
    runs, rest = divmod(params.steps, max(1, interval))
    if interval == 0:
        _copy_sequence("lay out sequence", layer, cell.data)
        cell.keep("shift outputs", 1)
    for repeats, taken in ((runs, max(1, interval)), (1, rest)):
        if repeats and taken:
            with m.loop(repeats, tiles=m.tiles):
                _weight_gradient(layer, taken, separate=interval == 0)
    if interval == 0:
        with m.loop(params.steps, tiles=m.tiles):
            cell.m.count("count steps")
    m.reduce("add", Placed((params.batch, params.gates * params.hidden), cell.dtype), 0)


def _weight_gradient(layer: _Layer, taken: int, *, separate: bool) -> None:
    """Add the weight gradients of `taken` steps."""
    m, params, cell = layer.m, layer.params, layer.cell
    rows, lstm = taken * params.batch, params.kind == "lstm"
    cell.slice("slice input", cell.data, taken)
    if lstm or separate:
        cell.slice("slice previous output", cell.state, taken)
    if separate:
        cell.slice("slice gate gradients", cell.state, params.gates)
        if not lstm:
            cell.slice("slice kept", cell.state, params.saved)
    if not lstm:
        cell.combine("reset", "mul")
    read, hidden = params.features + params.hidden, params.hidden
    if lstm:
        products = [(read, params.gates * hidden)]
    elif params.reset_after:
        products = [(params.features, 3 * hidden), (hidden, 3 * hidden)]
    else:
        products = [(read, 2 * hidden), (read, hidden)]
    for inputs, outputs in products:
        product = MatMul(
            m=inputs, k=rows, n=outputs, weights_operand=True, pass_kind="weight_gradient"
        )
        joint = layer.product(product).joint
        # The accumulator is laid out like the weights (matMulAcc), where in a joint plan the
        # product lies too; both lie in different memory elements (`operators.elementwise`).
        accumulator = Placed((inputs * outputs,), cell.dtype)
        m.scaled_add(accumulator, constrained=True, exchanged=not joint)
    cell.add_bias_gradients(params.gates * taken)


def _steps_per_weight_gradient(layer: _Layer) -> int:
    """Return over how many steps weight gradients are added up at a time; 0: in a second loop.

    Without gathering, the gradients of the gates are kept for a second loop where they are smaller
    than the transposed weights (interleavedWUIsBeneficial).
    """
    params, cell, chip = layer.params, layer.cell, layer.m.chip
    gates = params.gates * params.hidden
    transposed = (params.features + params.hidden) * gates
    within = int(transposed <= params.batch * gates * params.steps)
    if params.kind == "gru" or layer.m.stack.planner_era < GATHERING_ERA:
        return within
    per_step = params.gates * cell.state.per_tile * element_bytes(cell.dtype)
    memory = int(chip.bytes_per_tile * GATHER_MEMORY_PROPORTION)
    most = min(params.steps, int(GATHERED_SHARE * memory) // per_step)
    if not most:
        return within
    width = vector_width(cell.dtype, chip)
    gathered = most // width * width
    if not gathered:
        return 1
    size = element_bytes(cell.dtype)
    plan = planner.plan(
        planner.ConvPass.of(
            "fc_inference",
            MatMul(m=params.features + params.hidden, k=gathered * params.batch, n=gates),
            size,
        ),
        chip,
        replace(
            layer.m.rules,
            available_memory_proportion=(memory - per_step * most) / chip.bytes_per_tile,
        ),
    )
    parts = plan.split.in_serial
    return max(1, gathered // parts // width * width) if parts < gathered else 1


def _stored(m: int, k: int, n: int) -> MatMul:
    """Return the product of `m` rows with stored weights."""
    return MatMul(m=m, k=k, n=n, weights_operand=True)


def _transposed(m: int, k: int, n: int) -> MatMul:
    """Return the product of `m` rows of gradients with transposed weights."""
    return MatMul(m=m, k=k, n=n, weights_operand=True, pass_kind="data_gradient")


def _passed_on(layer: _Layer, gates: int) -> MatMul:
    """Return the product that hands the gradients of some gates to input and state."""
    params = layer.params
    read = params.hidden + (params.features if params.input_gradient else 0)
    return _transposed(params.batch, gates * params.hidden, read)


def _copy_sequence(name: str, layer: _Layer, layout: StateLayout) -> None:
    """Bring a whole sequence into the layout in which its steps can be sliced."""
    steps = ceil_div(layer.params.steps, _shards(layer))
    layer.m.fetch(name, layer.cell.bytes(layout, steps))


def _receive_gradients(layer: _Layer, *, kept: int) -> None:
    """Bring what was passed on to the states' tiles, and copy `kept` states there.

    Copies that follow each other share one exchange.
    """
    cell = layer.cell
    moved = cell.bytes(cell.state)
    if layer.params.input_gradient:
        moved += cell.bytes(cell.data)
    copied = copy_cycles(cell.bytes(cell.state, kept), layer.m.chip)
    layer.m.fetch("pass on", moved, cycles=copied)
