"""Recurrent layers: a loop over time steps around planned products.

Forward, each step multiplies input and state by all weights at once, in the plan of a fully
connected layer. Backward, a loop in the other direction multiplies the gradients of the gates by
the transposed weights, which are transposed once before it. The weight gradient is added up step by
step: in a loop of its own, within the backward loop, or (from SDK 2.4 on, LSTM) over as many steps
at a time as a tenth of the memory allowed for temporaries holds.

Sources: poplibs lib/popnn/Lstm.cpp, Gru.cpp and Rnn.cpp, tags sdk/poplar/2.0.0 and 2.4.0.  The
loop runs with the step repeated, so a layer of any length is a few dozen supersteps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ipusim.compiler.convolution import planner, record as lay
from ipusim.compiler.operators import recurrent_cell as recurrent
from ipusim.compiler.operators.elementwise import scaled_add_steps
from ipusim.compiler.operators.layout import fill_steps
from ipusim.compiler.operators.products import PlannedProduct, lower_product, plan_product
from ipusim.compiler.operators.recurrent_cell import Cell, StateLayout
from ipusim.compiler.operators.reduce import reduce_steps
from ipusim.compiler.program import LoweredOp, Step
from ipusim.compiler.state import LoweringState, TensorLayout
from ipusim.compiler.superstep import Superstep, ceil_div, element_bytes, vector_width
from ipusim.workload.graph import Graph, MatMul, Op, Tensor
from ipusim.workload.operators import Recurrent

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
    """One recurrent operator while it is lowered: its cell, and the steps so far."""

    state: LoweringState
    op: Op
    params: Recurrent
    cell: Cell
    steps: list[Step] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)
    temp_bytes: int = 0
    interleaved_bytes: int = 0

    def add(self, steps: list[Superstep], repeats: int = 1) -> None:
        """Add supersteps of the states' tiles, each run `repeats` times."""
        for step in steps:
            made = self.state.step(self.op.name, step, self.cell.state.tiles)
            self.steps.append(replace(made, repeats=repeats))
            self.temp_bytes = max(self.temp_bytes, step.temp_bytes)

    def product(self, params: MatMul, repeats: int = 1) -> PlannedProduct:
        """Add a product that runs `repeats` times; return it as planned.

        Its weights stay in the layout of the plan, and what a gradient does to them once is done
        before the loop.
        """
        state, op = _product_state(self.state, params, self.cell.dtype, self.op.name)
        planned = plan_product(state, op)
        lowered = lower_product(state, op, planned)
        once = len(planned.before)
        self.steps += [
            step if index < once else replace(step, repeats=step.repeats * repeats)
            for index, step in enumerate(lowered.steps)
        ]
        self.plans.append(lowered.plan)
        self.temp_bytes = max(self.temp_bytes, lowered.temp_bytes)
        self.interleaved_bytes = max(self.interleaved_bytes, lowered.interleaved_bytes)
        return planned

    def units(self, params: MatMul, repeats: int) -> None:
        """Add a product of every step and the regrouping of its rows into groups of units."""
        plan = self.product(params, repeats).chosen
        elements = params.m * params.n
        self.add(self.cell.regroup(elements, plan.out_chans_per_group, plan.tiles_used), repeats)


def _product_state(
    state: LoweringState, params: MatMul, dtype: str, name: str
) -> tuple[LoweringState, Op]:
    """Return a lowering of one product alone, from the weights and what a step computes."""
    gradient = params.pass_kind == "weight_gradient"
    shapes = {"a": (params.m, params.k), "b": (params.k, params.n), "c": (params.m, params.n)}
    roles = {"b": "activation" if gradient else "parameter"}
    tensors = {
        key: Tensor(name=key, shape=shape, dtype=dtype, role=roles.get(key, "activation"))
        for key, shape in shapes.items()
    }
    op = Op(name=name, params=params, inputs=("a", "b"), outputs=("c",))
    graph = Graph(name=name, tensors=tensors, ops=(op,), inputs=("a",), outputs=("c",))
    stack = replace(state.stack, regroup_fully_connected=False)
    alone = LoweringState(graph, state.chip, stack, state.rules, {})
    alone.training = state.training
    return alone, op


def lower_recurrent(state: LoweringState, op: Op) -> LoweredOp:
    """Return the supersteps of a recurrent layer or of its gradient."""
    params: Recurrent = op.params
    chip = state.chip
    cell = Cell(
        state=StateLayout.of(params.batch, params.hidden, chip),
        data=StateLayout.of(params.batch, params.features, chip),
        dtype=state.dtype(op.outputs[0]),
        chip=chip,
        era=state.era,
    )
    layer = _Layer(replace(state, stack=state.stack.in_loop()), op, params, cell)
    if params.backward:
        _backward(layer)
    else:
        _forward(layer)
    tiles = cell.state.tiles * (_shards(layer) if params.sequence or params.backward else 1)
    layout = TensorLayout(grouping=recurrent.GRAIN, tiles=tiles)
    for name in op.outputs:
        state.layouts[name] = layout
    if params.backward:
        # Gradients of the weights are laid out like the weights.
        for name in op.outputs[params.input_gradient :]:
            state.layouts[name] = TensorLayout(from_host=True)
    return LoweredOp(
        name=op.name,
        kind=op.kind,
        function=op.function,
        steps=tuple(layer.steps),
        macs=op.macs,
        plan="; ".join(layer.plans),
        transform="",
        tiles=tiles,
        grouping=recurrent.GRAIN,
        temp_bytes=layer.temp_bytes,
        interleaved_bytes=layer.interleaved_bytes,
    )


def _shards(layer: _Layer) -> int:
    """Return how many sets of tiles share the sequence (Rnn.cpp, getMaxShards; getNumShards)."""
    params, cell, chip = layer.params, layer.cell, layer.state.chip
    size = element_bytes(cell.dtype)
    steps = params.steps
    most = chip.tiles // max(cell.state.tiles, cell.data.tiles)
    most = ceil_div(steps, ceil_div(steps, most))
    per_step = size * (cell.data.per_tile + cell.state.per_tile * (1 + params.saved))
    wanted = ceil_div(per_step * steps, int(chip.bytes_per_tile * OPERAND_SHARE))
    return min(wanted, most)


def _forward(layer: _Layer) -> None:
    params, cell, steps = layer.params, layer.cell, layer.params.steps
    # Single-operation plans of the products: m rows, k summed over, n columns.
    rows, hidden, features = params.batch, params.hidden, params.features
    layer.add([_copied("lay out sequence", layer, cell.data)])
    if params.input_product_first:
        layer.product(_stored(steps * rows, features, params.gates * hidden))
        layer.add([cell.slice("slice input products", cell.state, params.gates)], steps)
    else:
        layer.add([cell.slice("slice input", cell.data)], steps)
    if params.kind == "lstm":
        _lstm_units(layer)
        layer.add(recurrent.lstm_state(cell, training=params.training, saved=params.saved), steps)
    else:
        (_gru_units_reset_after if params.reset_after else _gru_units)(layer)
        layer.add(recurrent.gru_state(cell, training=params.training, saved=params.saved), steps)
    if params.training:
        layer.add([cell.slice("write kept", cell.state, params.saved)], steps)
    if params.sequence:
        layer.add([cell.slice("write output", cell.state)], steps)
    layer.add([cell.count()], steps)


def _lstm_units(layer: _Layer) -> None:
    params, cell, steps = layer.params, layer.cell, layer.params.steps
    columns = params.gates * params.hidden
    if params.input_product_first:
        layer.units(_stored(params.batch, params.hidden, columns), steps)
        added = cell.combine_many(
            "add input products", "add", params.gates, in_place=True, elsewhere=True
        )
        layer.add([added], steps)
    else:
        layer.units(_stored(params.batch, params.features + params.hidden, columns), steps)
    layer.add(recurrent.gates_forward(cell, ("sigmoid", 3), ("tanh", 1)), steps)


def _gru_units(layer: _Layer) -> None:
    params, cell, steps = layer.params, layer.cell, layer.params.steps
    read = params.features + params.hidden
    layer.units(_stored(params.batch, read, 2 * params.hidden), steps)
    layer.add(recurrent.gates_forward(cell, ("sigmoid", 2)), steps)
    if params.training:
        layer.add([cell.keep("keep reset", 1)], steps)
    layer.add([cell.combine("reset state", "mul", in_place=True)], steps)
    layer.units(_stored(params.batch, read, params.hidden), steps)
    layer.add(recurrent.gates_forward(cell, ("tanh", 1)), steps)


def _gru_units_reset_after(layer: _Layer) -> None:
    params, cell, steps = layer.params, layer.cell, layer.params.steps
    columns = params.gates * params.hidden
    layer.product(_stored(params.batch, params.features, columns), steps)
    layer.units(_stored(params.batch, params.hidden, columns), steps)
    layer.add(
        [
            cell.receive("units to states", cell.state, 2 * params.gates),
            cell.combine_many("add biases", "add", 2 * params.gates, in_place=True, elsewhere=True),
        ],
        steps,
    )
    if params.training:
        layer.add([cell.keep("keep candidate product", 1)], steps)
    layer.add(
        [
            cell.combine_many("add state products", "add", 2, in_place=True),
            cell.apply("update and reset", "sigmoid", 2, in_place=True),
            cell.combine("reset product", "mul", in_place=True),
            cell.combine("add reset product", "add", in_place=True),
            cell.apply("candidate", "tanh", in_place=True),
        ],
        steps,
    )


def _backward(layer: _Layer) -> None:
    params, cell, steps = layer.params, layer.cell, layer.params.steps
    interval = _steps_per_weight_gradient(layer)
    if params.sequence:
        layer.add([_copied("lay out incoming gradient", layer, cell.state)])
    _zero_accumulators(layer)
    layer.add([_copied("lay out sequence", layer, cell.data)])
    layer.add([cell.keep("shift outputs", 1)])
    if params.sequence:
        layer.add([cell.slice("slice incoming gradient", cell.state)], steps)
    layer.add([cell.slice("slice kept", cell.state, params.saved)], steps)
    if params.kind == "gru":
        layer.add([cell.slice("slice previous output", cell.state)], steps)
    (_lstm_gradient if params.kind == "lstm" else _gru_gradient)(layer)
    layer.add([_received_gradients(layer, kept=params.gates if interval != 1 else 0)], steps)
    if interval != 1:
        layer.add([cell.slice("write gate gradients", cell.state, params.gates)], steps)
    if params.input_gradient:
        layer.add([cell.slice("write input gradient", cell.data)], steps)
    layer.add([cell.count()], steps)
    _weight_gradients(layer, interval)


def _lstm_gradient(layer: _Layer) -> None:
    params, steps = layer.params, layer.params.steps
    layer.add(recurrent.lstm_gradient(layer.cell), steps)
    layer.units(_passed_on(layer, params.gates), steps)


def _gru_gradient(layer: _Layer) -> None:
    params, cell, steps = layer.params, layer.cell, layer.params.steps
    layer.add(recurrent.gru_candidate_gradient(cell), steps)
    if params.reset_after:
        layer.add(recurrent.gru_reset_gradient(cell), steps)
        layer.add([cell.combine("reset candidate gradient", "mul", in_place=False)], steps)
        layer.units(_transposed(params.batch, params.gates * params.hidden, params.hidden), steps)
        if params.input_gradient:
            layer.units(
                _transposed(params.batch, params.gates * params.hidden, params.features), steps
            )
    else:
        layer.units(_passed_on(layer, 1), steps)
        layer.add(recurrent.gru_reset_gradient(cell), steps)
        layer.units(_passed_on(layer, 2), steps)
        if params.input_gradient:
            layer.add([cell.combine("add input gradients", "add", in_place=False)], steps)
    layer.add([recurrent.gru_state_gradient(cell)], steps)


def _weight_gradients(layer: _Layer, interval: int) -> None:
    """Add the weight gradients of every `interval` steps, or with 0 in a loop after the other."""
    params, cell, steps = layer.params, layer.cell, layer.params.steps
    size = max(1, interval)
    runs, rest = divmod(steps, size)
    if interval == 0:
        layer.add([_copied("lay out sequence", layer, cell.data), cell.keep("shift outputs", 1)])
    for repeats, taken in ((runs, size), (1, rest)):
        if repeats and taken:
            _weight_gradient(layer, taken, repeats, separate=interval == 0)
    if interval == 0:
        layer.add([cell.count()], steps)
    gates = params.gates * params.hidden
    layer.add(reduce_steps((params.batch, gates), (0,), cell.dtype, cell.chip, era=cell.era))


def _weight_gradient(layer: _Layer, taken: int, repeats: int, *, separate: bool) -> None:
    """Add the weight gradients of `taken` steps, `repeats` times."""
    params, cell = layer.params, layer.cell
    rows = taken * params.batch
    slices = [cell.slice("slice input", cell.data, taken)]
    if params.kind == "lstm" or separate:
        slices.append(cell.slice("slice previous output", cell.state, taken))
    if separate:
        slices.append(cell.slice("slice gate gradients", cell.state, params.gates))
        if params.kind == "gru":
            slices.append(cell.slice("slice kept", cell.state, params.saved))
    layer.add(slices, repeats)
    read, hidden = params.features + params.hidden, params.hidden
    if params.kind == "lstm":
        products = [(read, params.gates * hidden)]
    elif params.reset_after:
        products = [(params.features, 3 * hidden), (hidden, 3 * hidden)]
    else:
        products = [(read, 2 * hidden), (read, hidden)]
    if params.kind == "gru":
        layer.add([cell.combine("reset", "mul", in_place=False)], repeats)
    for inputs, outputs in products:
        joint = layer.product(
            MatMul(m=inputs, k=rows, n=outputs, weights_operand=True, pass_kind="weight_gradient"),
            repeats,
        ).joint
        layer.add([_accumulated(layer, inputs * outputs, in_place=joint)], repeats)
    layer.add([cell.add_bias_gradients(params.gates * taken)], repeats)


def _steps_per_weight_gradient(layer: _Layer) -> int:
    """Return over how many steps weight gradients are added up at a time; 0: in a second loop.

    Without gathering, the gradients of the gates are kept for a second loop where they are smaller
    than the transposed weights (interleavedWUIsBeneficial).
    """
    params, cell, chip = layer.params, layer.cell, layer.state.chip
    gates = params.gates * params.hidden
    transposed = (params.features + params.hidden) * gates
    within = int(transposed <= params.batch * gates * params.steps)
    if params.kind == "gru" or layer.state.stack.planner_era < GATHERING_ERA:
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
        planner.ConvShape.matmul(
            1,
            params.features + params.hidden,
            gathered * params.batch,
            gates,
            dtype_bytes=size,
            kind="fc_inference",
        ),
        chip,
        replace(
            layer.state.rules,
            available_memory_proportion=(memory - per_step * most) / chip.bytes_per_tile,
        ),
    )
    parts = plan.split[lay.S_IN_SERIAL]
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


def _copied(name: str, layer: _Layer, layout: StateLayout) -> Superstep:
    """Bring a whole sequence into the layout in which its steps can be sliced."""
    steps = ceil_div(layer.params.steps, _shards(layer))
    moved = steps * layout.per_tile * element_bytes(layer.cell.dtype)
    return Superstep(
        name=name, vertex="copy", compute_cycles=0, exchange_bytes=moved, temp_bytes=moved
    )


def _zero_accumulators(layer: _Layer) -> None:
    params, cell = layer.params, layer.cell
    weights = params.gates * params.hidden * (params.features + params.hidden + params.batch)
    layer.add(fill_steps(weights, cell.dtype, cell.chip, era=cell.era))


def _received_gradients(layer: _Layer, *, kept: int) -> Superstep:
    """Bring what was passed on to the states' tiles, and copy `kept` states there.

    Copies that follow each other share one exchange.
    """
    cell = layer.cell
    step = cell.receive("pass on", cell.state)
    if layer.params.input_gradient:
        more = cell.receive("pass on", cell.data).exchange_bytes
        step = replace(
            step, exchange_bytes=step.exchange_bytes + more, temp_bytes=step.temp_bytes + more
        )
    if kept:
        copied = cell.keep("pass on", kept).on_tile_copy_cycles
        step = replace(step, on_tile_copy_cycles=copied)
    return step


def _accumulated(layer: _Layer, elements: int, *, in_place: bool) -> Superstep:
    """Add a product to its accumulator, which is laid out like the weights (matMulAcc).

    In a joint plan the product lies there too; as in every matMulAcc, both lie in different memory
    elements (`lowering_elementwise`).
    """
    cell = layer.cell
    (step,) = scaled_add_steps(
        elements,
        cell.dtype,
        cell.chip,
        era=cell.era,
        constrained=True,
        same_mapping=in_place,
    )
    return step
