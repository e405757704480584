"""Memory of whole compiled networks by category against the model.

Three networks were profiled by Poplar (`data/evidence/ipu_network_memory.csv`), whole, by stage and
by layer; of small ones Graphcore's tests know the total (`ipumodel_small_networks.csv`). Every
other row of the first file served to fit the bytes of `ipusim.compiler.code_size`; the rest, all
variables and all small networks did not. Rows of one network resemble each other, so "held out"
says less than it would for other networks.
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields, replace
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
from ipusim.workload.training import Graphs

CHIP = "GC200"
PROFILED_STACK, SMALL_STACK = "sdk-3.x", "sdk-2.4"
"""PopLiner needs SDK 3.0; the small networks' tests use the configuration API of 2.1 and later."""

CODE = tuple(item.name for item in fields(CodeSize))
"""Categories of the file that are code; half their rows were fitted on."""
FITTED, HELD_OUT = "fitted", "held out"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lowered:
    graph: Graph
    program: Program
    update: Program | None
    used: memory.Memory
    update_variable_bytes: int


def _lowered(graphs: Graphs, stack: str, partials: str, *, state_stays: bool) -> _Lowered:
    """Lower and measure; optimiser state stays on the chip or visits it for the update only."""
    graph, update_graph = graphs.micro_batch, graphs.update
    chip, profile = load_chip(CHIP), replace(load_stack(stack), partials=partials)
    program = lower(graph, chip, profile, host_dtype=None)
    update, update_bytes, state = None, 0, 0
    if update_graph is not None:
        update = lower(update_graph, chip, profile, host_dtype=None)
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


def _code(network: _Lowered, profiled: Profiled, layers: Collection[int | None]) -> CodeSize:
    """Code of some layers on all tiles, equal operations once."""
    kept = tuple(op for op in network.program.ops if profiled.layer(op.name) in layers)
    # The update works on the tensors of all layers and belongs to none.
    update = network.update if None in layers else None
    return code_size(network.graph, Program(kept), network.used.tiles, update=update).chip


def _variables(network: _Lowered, profiled: Profiled, layers: Collection[int]) -> int:
    """Bytes that some layers need: parameters they read, and the most that lives beside."""
    points = (p.chip_bytes for p in network.used.points if profiled.layer(p.op) in layers)
    live = max(points, default=0)
    ops = (op for op in network.graph.ops if profiled.layer(op.name) in layers)
    tensors = network.graph.tensors
    read = [tensors[name] for name in {name for op in ops for name in op.inputs}]
    stays = sum(tensor.bytes for tensor in read if tensor.role in ("parameter", "state"))
    return stays + live if live else 0


def _layers(scope: str, last_layer: int) -> set[int | None]:
    """Return the layers of a row, None for what belongs to none of them."""
    if scope.startswith("whole"):
        return {None, *range(last_layer + 1)}
    named = scope.rpartition(" ")[2].split("..")
    first, *last = (None if name in ("None", "null") else int(name) for name in named)
    return {first, *(range(first or 0, last[0] + 1) if last else ())}


def _predicted(network: _Lowered, profiled: Profiled, scope: str) -> dict[str, int]:
    """Return the bytes of a row of the file by category."""
    layers = _layers(scope, profiled.last_layer)
    together = _code(network, profiled, layers)
    found = asdict(together)
    if not profiled.repeats_share:
        # Layers share the code of vertex types, and no other.
        apart = pd.DataFrame(asdict(_code(network, profiled, {layer})) for layer in layers)
        found = apart.sum().to_dict() | {"vertex_code": together.vertex_code}
    # PopLiner counts the variables of layers only.
    found["variables"] = _variables(network, profiled, layers - {None})
    # A program with a weight update needs the larger of both.
    if len(layers) == profiled.last_layer + 2:
        found["variables"] = max(found["variables"], network.update_variable_bytes)
    return found if scope.startswith("whole") else found | {"total": sum(found.values())}


def profiled_rows() -> pd.DataFrame:
    """Return every number of the profiled networks beside the model's, fitted on or held out."""
    lines = []
    for number, record in enumerate(evidence_records("ipu_network_memory.csv")):
        name, scope = record["network"], record["scope"]
        predicted = _predicted(_network(name), PROFILED[name], scope)
        for category, found in predicted.items():
            if published := int(record[f"{category}_bytes"] or 0):
                use = FITTED if category in CODE and number % 2 == 0 else HELD_OUT
                lines.append((name, scope, category.replace("_", " "), published, found, use))
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
