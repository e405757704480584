"""How many bytes of a tile code takes: vertices and their state, exchange code, control code.

The categories and what they grow with are those of Poplar's memory profile as PopLiner reads it
(graphcore/popliner at 12424d6, ``popliner/stage.py``): code of every vertex type once per tile,
state of every vertex, code of every exchange, control code of every program step. The bytes of
code_size.csv are [D]: fitted to every other row of three compiled networks
(data/evidence/ipu_network_memory.csv), by least squares of relative errors, each network weighing
the same; `ipusim.study.evidence.memory` prints how the other rows fare.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from ipusim.compiler.program import LoweredOp, Program, Superstep
from ipusim.compiler.vertices import METHOD_NAMES
from ipusim.compiler.vertices.elementwise import TRANSPOSE
from ipusim.files import read_records
from ipusim.workload.graph import Conv, Graph, MatMul
from ipusim.workload.operators.base import name_in_body

PLANNED_VERTICES = frozenset(f"poplin::{method}" for method in METHOD_NAMES)

BYTES = {
    line["of"]: int(line["bytes"]) for line in read_records(Path(__file__).with_suffix(".csv"))
}
"""Bytes of each kind of code; the file says what they are and where they come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSize:
    """Bytes of code by category, of a tile or of all tiles together."""

    vertex_code: int = 0
    vertex_state: int = 0
    exchange_code: int = 0
    control_code: int = 0

    @property
    def total(self) -> int:
        """All categories together."""
        return self.vertex_code + self.vertex_state + self.exchange_code + self.control_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Bytes of a tile that takes part in everything, as the first does, and of all tiles."""

    fullest_tile: CodeSize
    chip: CodeSize


def code_size(graph: Graph, program: Program, tiles: int, *, update: Program | None = None) -> Code:
    """Measure the code of a program on so many tiles, with that of the weight update beside it.

    Equal convolutions and products share their code, a data gradient with a forward convolution of
    the same sizes too; only the transposition of its weights, small and left out here, is its own
    [S]: graphcore/tensorflow, convgraph_caching_test.py (testConvolutionsMatchFwdBwdWu), and
    PopART, whose patterns make the gradient an ordinary convolution
    (willow/src/patterns/convdatagrad.cpp) before equal parts are outlined. The updates of equal
    tensors share theirs as well. Small operations of the network do not [A]: in the compiled
    EfficientNet (data/evidence/ipu_network_memory.csv) repeated layers share less than half of
    their state. The rounds of a loop are one body, which is compiled once (graphcore/popart,
    willow/src/popx/op/loopx.cpp).
    """
    fullest, chip = Counter[str](), Counter[str]()
    types: dict[tuple[str, str], int] = {}
    for op in chain(_shared(graph, program), update.distinct.values() if update else ()):
        for step in op.steps:
            sizes = {"control_code": BYTES["superstep"]}
            if step.exchange_bytes:
                received = step.exchange_bytes * _per_kib(op, step) // 1024
                sizes["exchange_code"] = BYTES["exchange"] + received
            if step.compute_cycles:
                planned = step.vertex in PLANNED_VERTICES
                convolves = planned and op.kind == "conv"
                sizes["vertex_state"] = BYTES["vertices"] + BYTES["field vertices"] * convolves
                codelet = (step.vertex, op.codelet if planned else "")
                types[codelet] = max(types.get(codelet, 0), step.tiles)
            for category, size in sizes.items():
                fullest[category] += size
                chip[category] += step.tiles * size
    fullest["vertex_code"], chip["vertex_code"] = BYTES["program"], BYTES["program"] * tiles
    for codelet, used in types.items():
        size = BYTES["planned vertex type"] if codelet[1] else BYTES["vertex type"]
        fullest["vertex_code"] += size
        chip["vertex_code"] += used * size
    return Code(fullest_tile=CodeSize(**fullest), chip=CodeSize(**chip))


def _shared(graph: Graph, program: Program) -> Iterable[LoweredOp]:
    """Return a program's operations, of equal planned ones and of the rounds of a loop one each."""
    payloads = {op.name: op.params for op in graph.ops}
    seen = set()
    for op in {name_in_body(op.name): op for op in program.ops}.values():
        params = payloads.get(op.name)
        if isinstance(params, Conv | MatMul):
            if isinstance(params, Conv) and params.pass_kind == "data_gradient":
                params = replace(params, pass_kind="forward")
            if params in seen:
                continue
            seen.add(params)
        yield op


def _per_kib(op: LoweredOp, step: Superstep) -> int:
    """Return the bytes of exchange code for every KiB that a step receives."""
    # An operand that is rearranged without a transposition on tiles first arrives in pieces.
    rearranges = step.vertex == "copy" and op.kind in ("conv", "layout")
    alone = rearranges and all(other.vertex != TRANSPOSE for other in op.steps)
    if op.kind == "gather" or alone:
        return BYTES["KiB of pieces"]
    if op.reads_lines and step.vertex in PLANNED_VERTICES:
        return BYTES["KiB of fields"]
    return BYTES["KiB of rows"]
