"""How many bytes of a tile code takes: vertices and their state, exchange code, control code.

The categories and what they grow with are those of Poplar's memory profile as PopLiner reads it
(graphcore/popliner at 12424d6, ``popliner/stage.py``): code of every vertex type once per tile,
state of every vertex, code of every exchange, control code of every program step. The bytes are
[D]: fitted to every other row of three compiled networks (data/evidence/ipu_network_memory.csv),
by least squares of relative errors, each network weighing the same;
`ipusim.study.evidence.memory` prints how the other rows fare.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain

from ipusim.compiler.program import LoweredOp, Program, Superstep
from ipusim.compiler.vertices import METHOD_NAMES
from ipusim.compiler.vertices.elementwise import TRANSPOSE
from ipusim.workload.graph import Conv, Graph, MatMul
from ipusim.workload.operators.base import name_in_body

PLANNED_VERTICES = frozenset(f"poplin::{method}" for method in METHOD_NAMES)

CODE_BASE_BYTES = 2300
"""Code that every program needs: runtime, copies, calls [D]."""

VERTEX_CODE_BYTES = 260
"""Code of one vertex type other than a convolution's [D]."""

CONV_VERTEX_CODE_BYTES = 1100
"""Code of one vertex type of convolutions and products: assembly of a kilobyte and more for each
kind and channel grouping [D] (poplibs ``lib/poplin/codelets/asm``)."""

STACK_BYTES = 700
"""Stacks of the supervisor and six workers [inferred]: what single operations of IPUModel take
beside their data, 4 to 5 kB (data/evidence/ipumodel_layers_dev.csv), less the code."""

VERTEX_STATE_BYTES = 15
"""State of the vertices of one compute set on a tile [D]: a few pointers and sizes each."""

CONV_VERTEX_STATE_BYTES = 133
"""Further state where a convolution with a field is computed [D]: pointers to every group of
channels and to the worklists (poplibs ``lib/poplin/codelets/ConvPartialnx1.cpp``), and vertices per
group in what surrounds it."""

EXCHANGE_STEP_BYTES = 9
"""Code of one exchange, before any message [D]."""

EXCHANGE_BYTES_PER_KIB = 2
"""Further code per KiB received where whole rows arrive, as in products and their sums [D]."""

FIELD_EXCHANGE_BYTES_PER_KIB = 117
"""The same for the operands of a convolution with a field [D], which come as lines of it."""

PIECE_EXCHANGE_BYTES_PER_KIB = 303
"""The same for lookups and for rearrangements that no transposition on tiles prepares [D]: elements
and short groups of channels, each with an instruction of its own. Transposed ones arrive in blocks:
with these among the pieces, IPUModel's layers came out further off
(data/evidence/ipumodel_layers_dev.csv), and ResNet-50 would not have fitted where it did run. [A]
Bytes were kept as the measure after the square root of bytes, bytes over the share of a source
tile, and bytes over the length of a row had been tried."""

CONTROL_BYTES = 19
"""Control code of one superstep on a tile [D]: sync, exchange, start of the vertices."""


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
    """Code of a program: bytes of a tile that takes part in everything, and of all tiles together.

    Small operations start at the first tile, so there is such a tile.
    """

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
    ops = _shared(graph, program)
    return _added_up(chain(ops, update.distinct.values() if update else ()), tiles)


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
        return PIECE_EXCHANGE_BYTES_PER_KIB
    if op.reads_lines and step.vertex in PLANNED_VERTICES:
        return FIELD_EXCHANGE_BYTES_PER_KIB
    return EXCHANGE_BYTES_PER_KIB


def _added_up(ops: Iterable[LoweredOp], tiles: int) -> Code:
    """Add up the code of operations, on a tile that runs them all and on the chip."""
    fullest, chip = Counter[str](), Counter[str]()
    types: dict[tuple[str, str], int] = {}
    for op in ops:
        for step in op.steps:
            sizes = {"control_code": CONTROL_BYTES}
            if step.exchange_bytes:
                received = step.exchange_bytes * _per_kib(op, step) // 1024
                sizes["exchange_code"] = EXCHANGE_STEP_BYTES + received
            if step.compute_cycles:
                planned = step.vertex in PLANNED_VERTICES
                convolves = planned and op.kind == "conv"
                sizes["vertex_state"] = VERTEX_STATE_BYTES + CONV_VERTEX_STATE_BYTES * convolves
                codelet = (step.vertex, op.codelet if planned else "")
                types[codelet] = max(types.get(codelet, 0), step.tiles)
            for category, size in sizes.items():
                fullest[category] += size
                chip[category] += step.tiles * size
    fullest["vertex_code"], chip["vertex_code"] = CODE_BASE_BYTES, CODE_BASE_BYTES * tiles
    for codelet, used in types.items():
        size = CONV_VERTEX_CODE_BYTES if codelet[1] else VERTEX_CODE_BYTES
        fullest["vertex_code"] += size
        chip["vertex_code"] += used * size
    return Code(fullest_tile=CodeSize(**fullest), chip=CodeSize(**chip))
