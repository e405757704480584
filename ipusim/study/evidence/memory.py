"""Memory of whole compiled networks by category against the model.

Three networks were profiled by Poplar (`data/evidence/ipu_network_memory.csv`), whole, by stage and
by layer; of small ones Graphcore's tests know the total (`ipumodel_small_networks.csv`). Every
other row of the first file served to fit the bytes of `ipusim.compiler.code_size`; the rest, all
variables and all small networks did not. Rows of one network resemble each other, so "held out"
says less than it would for other networks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from ipusim.compiler import memory
from ipusim.compiler.code_size import CodeSize, code_size
from ipusim.compiler.lower import lower
from ipusim.compiler.program import Program
from ipusim.compiler.stacks import load_stack
from ipusim.files import evidence_records
from ipusim.machine import load_chip
from ipusim.study.evidence.networks import PROFILED, SMALL, Profiled, small_graphs
from ipusim.study.verdicts.errors import errors_by_group, errors_of
from ipusim.workload.graph import Graph
from ipusim.workload.optimizers import state_bytes

CHIP = "GC200"
PROFILED_STACK, SMALL_STACK = "sdk-3.x", "sdk-2.4"
"""PopLiner needs SDK 3.0; the small networks' tests use the configuration API of 2.1 and later."""

CODE_COLUMNS = {
    "vertex_code_bytes": "vertex code",
    "vertex_state_bytes": "vertex state",
    "exchange_code_bytes": "exchange code",
    "control_code_bytes": "control code",
}
FITTED, HELD_OUT = "fitted", "held out"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lowered:
    graph: Graph
    program: Program
    update: Program | None
    used: memory.Memory
    update_variable_bytes: int


def _lowered(
    graphs: tuple[Graph, Graph | None], stack: str, partials: str, *, state_stays: bool
) -> _Lowered:
    """Lower and measure; optimiser state stays on the chip or visits it for the update only."""
    graph, update_graph = graphs
    chip, profile = load_chip(CHIP), load_stack(stack)
    program = lower(graph, chip, profile, partials=partials, host_dtype=None)
    update, update_bytes, state = None, 0, 0
    if update_graph is not None:
        update = lower(update_graph, chip, profile, partials=partials, host_dtype=None)
        update_bytes = memory.measure(update_graph, update, chip).variable_bytes
        state = state_bytes(update_graph) if state_stays else 0
    return _Lowered(
        graph=graph,
        program=program,
        update=update,
        used=memory.measure(graph, program, chip, update=update, resident_bytes=state),
        update_variable_bytes=update_bytes,
    )


@lru_cache(maxsize=len(PROFILED))
def _network(name: str) -> _Lowered:
    profiled = PROFILED[name]
    return _lowered(profiled.build(), PROFILED_STACK, profiled.partials, state_stays=False)


def _code(network: _Lowered, keep: Callable[[str], bool], *, update: bool) -> CodeSize:
    """Code of some operations on all tiles, equal ones once; with that of the update or not."""
    program = Program(tuple(op for op in network.program.ops if keep(op.name)))
    kept = network.update if update else None
    return code_size(network.graph, program, network.used.tiles, update=kept).chip


def _separate(codes: Sequence[CodeSize], together: CodeSize) -> dict[str, int]:
    """Add up code that layers do not share, except that of vertex types, which all do."""
    named = {column: column.removesuffix("_bytes") for column in CODE_COLUMNS}
    added = {column: sum(getattr(code, name) for code in codes) for column, name in named.items()}
    return added | {"vertex_code_bytes": together.vertex_code}


def _variables(network: _Lowered, keep: Callable[[str], bool]) -> int:
    """Bytes that the kept operations need: parameters they read, and the most that lives beside."""
    live = max((p.chip_bytes for p in network.used.points if keep(p.op)), default=0)
    read = {name for op in network.graph.ops if keep(op.name) for name in op.inputs}
    tensors = network.graph.tensors
    stays = sum(
        tensors[name].bytes for name in read if tensors[name].role in ("parameter", "state")
    )
    return stays + live if live else 0


def _predicted(network: _Lowered, profiled: Profiled, scope: str) -> dict[str, int]:
    """Return the bytes of a row of the file by column."""
    if scope.startswith("layer "):
        wanted = scope.removeprefix("layer ")
        chosen = {None if wanted == "None" else int(wanted)}
    elif scope.startswith("pipeline stage layers "):
        first, last = scope.removeprefix("pipeline stage layers ").split("..")
        chosen = {*range(0 if first == "null" else int(first), int(last) + 1)}
        chosen |= {None} if first == "null" else set()
    else:
        chosen = {None, *range(profiled.last_layer + 1)}

    def inside(op: str, layers: Iterable[int | None] = chosen) -> bool:
        return profiled.layer(op) in layers

    # The update works on the tensors of all layers and belongs to none.
    together = _code(network, inside, update=None in chosen)
    if profiled.repeats_share:
        parts = [together]
    else:
        parts = [
            _code(network, lambda op, one=layer: inside(op, {one}), update=layer is None)
            for layer in chosen
        ]
    columns = _separate(parts, together)
    # PopLiner counts the variables of layers only.
    columns["variables_bytes"] = _variables(
        network, lambda op: inside(op) and profiled.layer(op) is not None
    )
    # A program with a weight update needs the larger of both.
    if len(chosen) == profiled.last_layer + 2:
        columns["variables_bytes"] = max(columns["variables_bytes"], network.update_variable_bytes)
    if not scope.startswith("whole"):
        columns["total_bytes"] = sum(columns.values())
    return columns


def profiled_rows() -> pd.DataFrame:
    """Return every number of the profiled networks beside the model's, fitted on or held out."""
    lines = []
    for number, record in enumerate(evidence_records("ipu_network_memory.csv")):
        profiled = PROFILED[record["network"]]
        network = _network(record["network"])
        predicted = _predicted(network, profiled, record["scope"])
        for column, found in predicted.items():
            if not int(record[column] or 0):
                continue
            use = FITTED if column in CODE_COLUMNS and number % 2 == 0 else HELD_OUT
            category = CODE_COLUMNS.get(column, column.removesuffix("_bytes"))
            head = (record["network"], record["scope"], category)
            lines.append((*head, int(record[column]), found, use))
    return _frame(lines)


def small_rows() -> pd.DataFrame:
    """Return total memory of the small networks that the model can build beside the asserted one.

    Host streams and the code of the loop are not modelled. Where the test did not compile code for
    the chip (column ``code_compiled``), neither code of vertices nor stacks count.
    """
    lines = []
    for record in evidence_records("ipumodel_small_networks.csv"):
        if record["network"] not in SMALL:
            continue
        batch = int(record["batch"] or 1)
        # TensorFlow leaves the type of partials at poplibs' default.
        graphs = small_graphs(record["network"], record["pass"], batch)
        network = _lowered(graphs, SMALL_STACK, "float", state_stays=True)
        used = network.used
        compiled = record["code_compiled"] != "no"
        found = used.total_bytes if compiled else used.total_bytes_uncompiled
        found += max(0, network.update_variable_bytes - used.variable_bytes)
        head = (record["network"], f"{record['pass']}, batch {batch}", "total of small networks")
        lines.append((*head, int(record["total_tile_memory_bytes"]), found, HELD_OUT))
    return _frame(lines)


def _frame(lines: Iterable[tuple[object, ...]]) -> pd.DataFrame:
    names = ["network", "scope", "category", "published_bytes", "predicted_bytes", "use"]
    frame = pd.DataFrame(lines, columns=names)
    return frame.assign(error_percent=errors_of(frame, "predicted_bytes", "published_bytes"))


def network_memory_table() -> pd.DataFrame:
    """Summarise `profiled_rows` and `small_rows` by category, fitted and held-out rows apart."""
    frame = pd.concat([profiled_rows(), small_rows()], ignore_index=True)
    return errors_by_group(frame, ["category", "use"], "median", "p90", "bias")
