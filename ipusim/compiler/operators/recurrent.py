"""Recurrent layers: a loop over time steps around planned products.

Forward, each step multiplies input and state by all weights at once, in the plan of a fully
connected layer. Backward, a loop in the other direction multiplies the gradients of the gates by
the transposed weights, which are transposed once before it. The weight gradient is added up step by
step: in a loop of its own, within the backward loop, or (from SDK 2.4 on, LSTM) over as many steps
at a time as a tenth of the memory allowed for temporaries holds.

Sources: poplibs lib/popnn/Lstm.cpp, Gru.cpp and Rnn.cpp, tags sdk/poplar/2.0.0 and 2.4.0.  The
loop runs with the step repeated, so a layer of any length is a few dozen supersteps.
"""

from dataclasses import replace

from ipusim.compiler.convolution import planner
from ipusim.compiler.emitter import Placed, TensorLayout
from ipusim.compiler.eras import ERA_2_4
from ipusim.compiler.operators.recurrent_cell import GRAIN, Cell, StateLayout
from ipusim.compiler.state import Lowering, lowers
from ipusim.compiler.tiles import ceil_div, copy_cycles, element_bytes
from ipusim.compiler.vertices.training import Expression
from ipusim.workload.graph import MatMul, Recurrent

OPERAND_SHARE = 0.1
"""Share of tile memory that sequences may take before they are spread over more tiles
(Lstm.cpp, getNumShards)."""

GATHER_MEMORY_PROPORTION = 0.2
GATHERED_SHARE = 0.1
"""Temporary memory of an LSTM without an option of its own, and the share of it that gradients of
the gates may take until they are used (Lstm.cpp, interleaveWUCadence)."""

_LSTM_OUTPUT = Expression(operations=2, slow=("tanh",))  # gate * tanh(cell)
_GRU_OUTPUT = Expression(operations=3, tensors=3)  # candidate + update * (state - candidate)
_GRU_STATE_GRADIENT = Expression(operations=4, tensors=5)  # sums of products, d_h_prev


@lowers(Recurrent)
def recurrent(m: Lowering, op: Recurrent, *_: Placed) -> tuple[TensorLayout, ...]:
    """Lower a recurrent layer or its gradient; gradients of weights are laid out like weights."""
    # All steps but a few copies run in a loop.
    m.stack = replace(m.stack.in_loop(), regroup_fully_connected=False)
    cell = Cell(
        m=m,
        state=StateLayout.of(op.batch, op.hidden, m.chip),
        data=StateLayout.of(op.batch, op.features, m.chip),
        dtype=m.made.dtype,
    )
    m.tiles = cell.state.tiles
    (_backward if op.backward else _forward)(cell, op)
    m.known = {
        "plan": "; ".join(one.plan for one in cell.products),
        # The code of a recurrent layer is identified by its first product alone.
        "codelet": cell.products[0].codelet,
        "temp_bytes": max(one.temp_bytes for one in (*cell.products, *m.steps)),
        "interleaved_bytes": max(one.interleaved_bytes for one in cell.products),
    }
    tiles = cell.state.tiles * (_shards(cell, op) if op.sequence or op.backward else 1)
    m.result = TensorLayout(grouping=GRAIN, tiles=tiles)
    if op.backward:
        free = TensorLayout(free=True)
        return (m.result, free) if op.input_gradient else (free,)
    return (m.result,)


def _shards(cell: Cell, op: Recurrent) -> int:
    """Return how many sets of tiles share the sequence (Rnn.cpp, getMaxShards; getNumShards)."""
    chip = cell.m.chip
    most = chip.tiles // max(cell.state.tiles, cell.data.tiles)
    most = ceil_div(op.steps, ceil_div(op.steps, most))
    per_step = cell.bytes(cell.data) + cell.bytes(cell.state, 1 + op.saved)
    wanted = ceil_div(per_step * op.steps, int(chip.bytes_per_tile * OPERAND_SHARE))
    return min(wanted, most)


def _copy_sequence(name: str, cell: Cell, op: Recurrent, layout: StateLayout) -> None:
    """Bring a whole sequence into the layout in which its steps can be sliced."""
    cell.m.copy(name, received=cell.bytes(layout, ceil_div(op.steps, _shards(cell, op))))


def _stored(m: int, k: int, n: int) -> MatMul:
    """Return the product of an ``m x k`` matrix with stored ``k x n`` weights."""
    return MatMul(m=m, k=k, n=n, weights_operand=True)


def _forward(cell: Cell, op: Recurrent) -> None:
    m, columns = cell.m, op.gates * op.hidden
    _copy_sequence("lay out sequence", cell, op, cell.data)
    if op.input_product_first:
        cell.product(_stored(op.steps * op.batch, op.features, columns))
    with m.loop(op.steps, tiles=m.tiles):
        if op.input_product_first:
            cell.slice("slice input products", cell.state, op.gates)
        else:
            cell.slice("slice input", cell.data)
        if op.kind == "lstm":
            _lstm(cell, op)
        elif op.reset_after:
            _gru_reset_after(cell, op)
        else:
            _gru(cell, op)
        if op.training:
            cell.slice("write kept", cell.state, op.saved)
        if op.sequence:
            cell.slice("write output", cell.state)
        m.count("count steps")


def _lstm(cell: Cell, op: Recurrent) -> None:
    """Add one step forward.

    Inference overwrites the states (basicLstmCellForwardPassInPlace); training keeps what the
    gradient reads and copies the new states over the old ones.
    """
    columns = op.gates * op.hidden
    if op.input_product_first:
        cell.units(_stored(op.batch, op.hidden, columns))
        cell.combine("add input products", "add", op.gates, in_place=True, elsewhere=True)
    else:
        cell.units(_stored(op.batch, op.features + op.hidden, columns))
    cell.gates(("sigmoid", 3), ("tanh", 1))
    cell.combine("forget and input", "mul", 2, in_place=not op.training)
    cell.combine("add candidate", "add", in_place=True)
    if op.training:
        cell.m.unary("tanh", cell.placed(), "cell tanh")
        cell.combine("output", "mul")
        cell.keep("keep for the gradient, new state", op.saved + 2)
    else:
        cell.m.generated("output", cell.placed(), _LSTM_OUTPUT)


def _gru(cell: Cell, op: Recurrent) -> None:
    """Add one step forward that resets the state before its product."""
    read = op.features + op.hidden
    cell.units(_stored(op.batch, read, 2 * op.hidden))
    cell.gates(("sigmoid", 2))
    if op.training:
        cell.keep("keep reset")
    cell.combine("reset state", "mul", in_place=True)
    cell.units(_stored(op.batch, read, op.hidden))
    cell.gates(("tanh", 1))
    _gru_output(cell, op)


def _gru_reset_after(cell: Cell, op: Recurrent) -> None:
    """Add one step forward that resets the product of the state."""
    columns = op.gates * op.hidden
    cell.product(_stored(op.batch, op.features, columns))
    cell.units(_stored(op.batch, op.hidden, columns))
    cell.receive(2 * op.gates)
    cell.combine("add biases", "add", 2 * op.gates, in_place=True, elsewhere=True)
    if op.training:
        cell.keep("keep candidate product")
    cell.combine("add state products", "add", 2, in_place=True)
    cell.several("update and reset", "UnaryOp2DInPlace", "sigmoid", 2)
    cell.combine("reset product", "mul", in_place=True)
    cell.combine("add reset product", "add", in_place=True)
    cell.m.unary("tanh", cell.placed(), "candidate", in_place=True)
    _gru_output(cell, op)


def _gru_output(cell: Cell, op: Recurrent) -> None:
    """From update gate and candidate of a step to its output (CalcNextOutput)."""
    cell.m.generated("output", cell.placed(), _GRU_OUTPUT)
    if op.training:
        cell.keep("keep for the gradient, new state", op.saved + 1)


def _backward(cell: Cell, op: Recurrent) -> None:
    m, interval = cell.m, _steps_per_weight_gradient(cell, op)
    if op.sequence:
        _copy_sequence("lay out incoming gradient", cell, op, cell.state)
    weights = op.gates * op.hidden * (op.features + op.hidden + op.batch)
    m.fill(Placed((weights,), cell.dtype))
    _copy_sequence("lay out sequence", cell, op, cell.data)
    cell.keep("shift outputs")
    with m.loop(op.steps, tiles=m.tiles):
        if op.sequence:
            cell.slice("slice incoming gradient", cell.state)
        cell.slice("slice kept", cell.state, op.saved)
        if op.kind == "lstm":
            _lstm_gradient(cell, op)
        else:
            cell.slice("slice previous output", cell.state)
            _gru_gradient(cell, op)
        # The gradients for the next round are sent to the states' tiles, where those of the gates
        # are kept; copies that follow each other share one exchange.
        moved = cell.bytes(cell.state) + (cell.bytes(cell.data) if op.input_gradient else 0)
        copied = cell.bytes(cell.state, op.gates) if interval != 1 else 0
        m.copy("pass on", received=moved, cycles=copy_cycles(copied, m.chip))
        if interval != 1:
            cell.slice("write gate gradients", cell.state, op.gates)
        if op.input_gradient:
            cell.slice("write input gradient", cell.data)
        m.count("count steps")
    _weight_gradients(cell, op, interval)


def _transposed(op: Recurrent, gates: int, read: int) -> MatMul:
    """Return the product of the gradients of `gates` gates with transposed weights."""
    return replace(_stored(op.batch, gates * op.hidden, read), pass_kind="data_gradient")


def _lstm_gradient(cell: Cell, op: Recurrent) -> None:
    """From the gradients of output and cell through the gates (Lstm.cpp, backwardStepImpl)."""
    cell.combine("add incoming gradient", "add")
    cell.combine("through output gate", "mul", 2)
    cell.gradients("output gate gradient", "tanh", "sigmoid")
    cell.combine("add cell gradient", "add", in_place=True)
    cell.combine("through gates", "mul", 4)
    cell.gradients("gate gradients", "sigmoid", "tanh", "sigmoid")
    cell.units(_transposed(op, op.gates, op.hidden + op.features * op.input_gradient))


def _gru_gradient(cell: Cell, op: Recurrent) -> None:
    """From the gradient of the output to those of the gates and of the previous output (d_h_prev).

    Source: Gru.cpp, backwardStepImpl; a matrix of ones is copied for one minus the update gate.
    """
    cell.keep("copy output gradient")
    cell.combine("add incoming gradient", "add")
    cell.keep("ones")
    cell.combine("one minus update", "sub")
    cell.combine("state minus candidate", "sub")
    cell.combine("through update gate", "mul", 2)
    cell.gradients("candidate and update gradients", "tanh", "sigmoid")
    read = op.hidden + op.features * op.input_gradient
    if not op.reset_after:
        cell.units(_transposed(op, 1, read))
    cell.combine("through reset gate", "mul")
    cell.gradients("reset gradient", "sigmoid")
    if op.reset_after:
        cell.combine("reset candidate gradient", "mul")
        cell.units(_transposed(op, op.gates, op.hidden))
        if op.input_gradient:
            cell.units(_transposed(op, op.gates, op.features))
    else:
        cell.units(_transposed(op, 2, read))
        if op.input_gradient:
            cell.combine("add input gradients", "add")
    cell.m.generated("state gradient", cell.placed(), _GRU_STATE_GRADIENT)


def _weight_gradients(cell: Cell, op: Recurrent, interval: int) -> None:
    """Add the weight gradients of `interval` steps at a time; if 0, in a second loop."""
    m = cell.m
    runs, rest = divmod(op.steps, max(1, interval))
    if interval == 0:
        _copy_sequence("lay out sequence", cell, op, cell.data)
        cell.keep("shift outputs")
    for repeats, taken in ((runs, max(1, interval)), (1, rest)):
        if repeats and taken:
            with m.loop(repeats, tiles=m.tiles):
                _weight_gradient(cell, op, taken, separate=interval == 0)
    if interval == 0:
        with m.loop(op.steps, tiles=m.tiles):
            m.count("count steps")
    m.reduce("add", Placed((op.batch, op.gates * op.hidden), cell.dtype), 0)


def _weight_gradient(cell: Cell, op: Recurrent, taken: int, *, separate: bool) -> None:
    """Add the weight gradients of `taken` steps."""
    lstm, read, hidden = op.kind == "lstm", op.features + op.hidden, op.hidden
    cell.slice("slice input", cell.data, taken)
    if lstm or separate:
        cell.slice("slice previous output", cell.state, taken)
    if separate:
        cell.slice("slice gate gradients", cell.state, op.gates)
        if not lstm:
            cell.slice("slice kept", cell.state, op.saved)
    if lstm:
        products = [(read, op.gates * hidden)]
    else:
        cell.combine("reset", "mul")
        products = [(read, 2 * hidden), (read, hidden)]
        if op.reset_after:
            products = [(op.features, 3 * hidden), (hidden, 3 * hidden)]
    for inputs, outputs in products:
        product = _stored(inputs, taken * op.batch, outputs)
        plan, _ = cell.product(replace(product, pass_kind="weight_gradient"))
        # The accumulator is laid out like the weights (matMulAcc), where in a joint plan the
        # product lies too; both lie in different memory elements (`operators.elementwise`).
        accumulator = Placed((inputs * outputs,), cell.dtype)
        received = 0 if plan.joint else cell.m.tile_bytes(accumulator)
        cell.m.scaled_add(accumulator, constrained=True, received=received)
    cell.m.binary("add", cell.placed(op.gates * taken), "add bias gradients", in_place=True)


def _steps_per_weight_gradient(cell: Cell, op: Recurrent) -> int:
    """Return over how many steps weight gradients are added up at a time; 0: in a second loop.

    If not over several steps at a time, they are added in a second loop, for which the gradients of
    the gates are kept, where these are smaller than the transposed weights
    (interleavedWUIsBeneficial).
    """
    m, read, columns = cell.m, op.features + op.hidden, op.gates * op.hidden
    within = int(read * columns <= op.batch * columns * op.steps)
    if op.kind == "gru" or m.era < ERA_2_4:
        return within
    per_step = cell.bytes(cell.state, op.gates)
    memory = int(m.chip.bytes_per_tile * GATHER_MEMORY_PROPORTION)
    most = min(op.steps, int(GATHERED_SHARE * memory) // per_step)
    if not most:
        return within
    width = m.tile.width(cell.dtype)
    gathered = most // width * width
    if not gathered:
        return 1
    product = MatMul(m=read, k=gathered * op.batch, n=columns)
    left = (memory - per_step * most) / m.chip.bytes_per_tile
    plan = planner.plan(
        planner.ConvPass.of("fc_inference", product, element_bytes(cell.dtype)),
        m.chip,
        replace(m.rules, available_memory_proportion=left),
    )
    parts = plan.split.in_serial
    return max(1, gathered // parts // width * width) if parts < gathered else 1
