"""Inner loops of the elementwise vertices, and what a vertex takes around its loop.

Sources: poplibs lib/popops/popopsCycleEstimators.cpp at tag 1.0.136 ("2020-01", where unary loops
add 4 cycles and binary loops 2 or 5 to the operation itself) and
lib/popops/popopsCycleEstimators.hpp at tag sdk/poplar/2.4.0 ("2021-11"). Loops that process one
natural vector are resolved for the 64-bit data path that every IPU has. Of each version there is a
column for float16 and one for float32: ``cycles/elements`` of one pass of a worker's loop, loads
and stores included; a dash where there is no such vertex.
"""

from ipusim.compiler.tiles import CODELET_VERSIONS

Pair = tuple[int, int]
LoopTable = dict[str, dict[str, Pair]]


def _columns(text: str) -> dict[str, LoopTable]:
    """Return the pairs of each version, by the name of the row and the type of the column."""
    found: dict[str, LoopTable] = {version: {} for version in CODELET_VERSIONS}
    for line in text.strip().splitlines():
        name, *cells = line.split()
        for version, half, single in zip(CODELET_VERSIONS, cells[::2], cells[1::2], strict=True):
            if half != "-":
                found[version][name] = {"float16": _pair(half), "float32": _pair(single)}
    return found


def _pair(cell: str) -> Pair:
    cycles, _, elements = cell.partition("/")
    return int(cycles), int(elements)


_UNARY = _columns("""
    abs      5/1   5/1    5/1     5/1
    ceil     6/4   6/2    6/4     6/2
    cos      -     -      26/1    2304/1
    erf      -     -      15/1    17/1
    exp      6/4   6/2    4/4     6/2
    floor    6/4   6/2    6/4     6/2
    inverse  19/4  9/2    15/4    6/2
    log      19/4  64/2   4/4     12/2
    neg      5/4   5/2    2/4     2/2
    relu     -     -      3/4     3/2
    round    6/4   6/2    6/4     6/2
    rsqrt    7/4   5/1    19/4    8/2
    sigmoid  -     -      6/4     12/2
    sign     -     -      9/4     9/2
    sin      -     -      26/1    2304/1
    sqrt     27/1  27/1   23/4    10/2
    square   5/4   5/2    2/4     2/2
    tan      -     -      5700/1  5100/1
    tanh     -     -      4/4     12/2
""")

_UNARY_IN_PLACE = _columns("""
    abs      5/4   5/2    5/4     5/2
    log      -     -      6/4     14/2
    neg      -     -      3/4     3/2
    relu     -     -      2/4     2/2
    sigmoid  -     -      4/4     10/2
    tanh     -     -      2/4     10/2
""")
"""Those whose vertex differs from the one that writes elsewhere."""

_BINARY = _columns("""
    add      3/4    3/2    3/4    3/2
    div      15/1   15/1   21/4   10/2
    equal    22/1   22/1   9/4    14/4
    greater  22/1   22/1   9/4    14/4
    max      6/4    6/2    4/4    4/2
    min      6/4    6/2    4/4    4/2
    mul      3/4    3/2    3/4    3/2
    pow      205/1  205/1  325/1  312/1
    sub      3/4    3/2    3/4    3/2
""")
"""Of comparisons the source of 2020-01 has no more than a note of 17 cycles per element (sub-word
stores) and 5 of loop."""

_SCALAR = _columns("""
    add      2/4    2/2    2/4    2/2
    div      -      -      8/2    6/2
    equal    -      -      8/4    12/4
    greater  -      -      8/4    12/4
    max      -      -      3/4    3/2
    min      -      -      3/4    3/2
    mul      2/4    2/2    2/4    2/2
    pow      -      -      325/1  312/1
    sub      2/4    2/2    2/4    2/2
    variance_to_inv_std_dev  11/4  9/2  24/4  12/2
""")
"""One operand is a single element. Where a function is absent, the operand is first broadcast by a
copy and the vertex of two full operands runs."""

LOOPS = {
    "UnaryOp1D": _UNARY,
    "UnaryOp1DInPlace": {
        version: _UNARY[version] | _UNARY_IN_PLACE[version] for version in CODELET_VERSIONS
    },
    "BinaryOp1D": _BINARY,
    "BroadcastScalar1D": _SCALAR,
}
"""Loops by vertex, version, function and type (`loop_of`)."""

SUPERVISOR_CYCLES = {"2020-01": 200, "2021-11": 11}
"""What the supervisor takes to run a vertex of all workers."""

AROUND = _columns("""
    UnaryOp1D                20/209  20/209  17/20  17/20
    UnaryOp1DInPlace         20/209  20/209  55/20  55/20
    BinaryOp1D               22/200  22/200  26/11  29/11
    BinaryOp1DInPlace        13/200  13/200  58/11  58/11
    BroadcastScalar1D        20/200  20/200  20/11  20/11
    BroadcastScalar1DInPlace 20/200  20/200  20/11  20/11
    UnaryOp2D                20/0    20/0    20/0   20/0
    UnaryOp2DInPlace         20/0    20/0    20/0   20/0
    BinaryOp2D               5/0     5/0     5/0    5/0
    BinaryOp2DInPlace        20/0    20/0    20/0   20/0
""")
"""Cycles of every worker before its loop, and of the supervisor: ``worker/supervisor``."""

LONGER_STARTS = {("UnaryOp1D", "exp", "2021-11"): 16}
"""Cycles that a worker takes before its loop beyond those."""

NON_LINEARITY = _columns("""
    gelu     5/10  10/20  5/5    10/10
    relu     1/2   1/2    -      -
    sigmoid  2/4   5/10   -      -
    swish    -     -      3/5    6/11
    tanh     1/2   5/10   -      -
""")
"""Cycles of the operation alone in the pipelined vertices, ``single/per vector``: poplibs
lib/popnn/PerformanceEstimation.hpp. The loop of 2020-01 runs the operation twice per vector."""

NON_LINEARITY_GRAD = _columns("""
    gelu     3/3   3/3    5/5    10/10
    relu     3/3   3/3    3/3    3/3
    sigmoid  3/3   3/3    3/3    3/3
    swish    -     -      7/9    10/15
    tanh     3/3   3/3    3/3    3/3
""")
"""Cycles of the gradient of a non-linearity, ``one element/one vector``: poplibs
lib/popnn/PerformanceEstimation.hpp. At tag 1.0.136 every kind took 3 per vector."""

# Names under which workloads know the same functions.
SYNONYMS = {
    "divide": "div",
    "exponent": "exp",
    "greater_than": "greater",
    "maximum": "max",
    "minimum": "min",
    "multiply": "mul",
    "negate": "neg",
    "power": "pow",
    "reciprocal": "inverse",
    "silu": "swish",
    "subtract": "sub",
    "bias_add": "add",
}
