"""Inner loops of the elementwise vertices: cycles per loop and elements per loop.

Each entry is ``(cycles, elements)`` of one pass of a worker's loop, loads and stores included.
Sources: poplibs lib/popops/popopsCycleEstimators.cpp at tag 1.0.136 ("2020-01", where unary loops
add 4 cycles and binary loops 2 or 5 to the operation itself) and
lib/popops/popopsCycleEstimators.hpp at tag sdk/poplar/2.4.0 ("2021-11"). Loops that process one
natural vector are resolved for the 64-bit data path that every IPU has.
"""

Loop = tuple[int, int]
LoopTable = dict[str, dict[str, Loop]]

HALF, FLOAT = "float16", "float32"


def _both(half: Loop, single: Loop) -> dict[str, Loop]:
    """Return the entry of a function for both floating-point types."""
    return {HALF: half, FLOAT: single}


UNARY: dict[str, LoopTable] = {
    "2020-01": {
        "abs": _both((5, 1), (5, 1)),
        "ceil": _both((6, 4), (6, 2)),
        "exp": _both((6, 4), (6, 2)),
        "floor": _both((6, 4), (6, 2)),
        "inverse": _both((19, 4), (9, 2)),
        "log": _both((19, 4), (64, 2)),
        "neg": _both((5, 4), (5, 2)),
        "round": _both((6, 4), (6, 2)),
        "rsqrt": _both((7, 4), (5, 1)),
        "sqrt": _both((27, 1), (27, 1)),
        "square": _both((5, 4), (5, 2)),
    },
    "2021-11": {
        "abs": _both((5, 1), (5, 1)),
        "ceil": _both((6, 4), (6, 2)),
        "cos": _both((26, 1), (2304, 1)),
        "erf": _both((15, 1), (17, 1)),
        "exp": _both((4, 4), (6, 2)),
        "floor": _both((6, 4), (6, 2)),
        "inverse": _both((15, 4), (6, 2)),
        "log": _both((4, 4), (12, 2)),
        "neg": _both((2, 4), (2, 2)),
        "relu": _both((3, 4), (3, 2)),
        "round": _both((6, 4), (6, 2)),
        "rsqrt": _both((19, 4), (8, 2)),
        "sigmoid": _both((6, 4), (12, 2)),
        "sign": _both((9, 4), (9, 2)),
        "sin": _both((26, 1), (2304, 1)),
        "sqrt": _both((23, 4), (10, 2)),
        "square": _both((2, 4), (2, 2)),
        "tan": _both((5700, 1), (5100, 1)),
        "tanh": _both((4, 4), (12, 2)),
    },
}

# Functions whose in-place vertex differs from the one that writes elsewhere.
UNARY_IN_PLACE: dict[str, LoopTable] = {
    "2020-01": {"abs": _both((5, 4), (5, 2))},
    "2021-11": {
        "abs": _both((5, 4), (5, 2)),
        "log": _both((6, 4), (14, 2)),
        "neg": _both((3, 4), (3, 2)),
        "relu": _both((2, 4), (2, 2)),
        "sigmoid": _both((4, 4), (10, 2)),
        "tanh": _both((2, 4), (10, 2)),
    },
}

# The 2020-01 table has no cost for comparisons beyond a note of 17 cycles per element (sub-word
# stores) and 5 of loop.
BINARY: dict[str, LoopTable] = {
    "2020-01": {
        "add": _both((3, 4), (3, 2)),
        "div": _both((15, 1), (15, 1)),
        "equal": _both((22, 1), (22, 1)),
        "greater": _both((22, 1), (22, 1)),
        "max": _both((6, 4), (6, 2)),
        "min": _both((6, 4), (6, 2)),
        "mul": _both((3, 4), (3, 2)),
        "pow": _both((205, 1), (205, 1)),
        "sub": _both((3, 4), (3, 2)),
    },
    "2021-11": {
        "add": _both((3, 4), (3, 2)),
        "div": _both((21, 4), (10, 2)),
        "equal": _both((9, 4), (14, 4)),
        "greater": _both((9, 4), (14, 4)),
        "max": _both((4, 4), (4, 2)),
        "min": _both((4, 4), (4, 2)),
        "mul": _both((3, 4), (3, 2)),
        "pow": _both((325, 1), (312, 1)),
        "sub": _both((3, 4), (3, 2)),
    },
}

# One operand is a single element. Where a function is absent, the operand is first broadcast by
# a copy and the BINARY vertex runs.
SCALAR_BROADCAST: dict[str, LoopTable] = {
    "2020-01": {
        "add": _both((2, 4), (2, 2)),
        "mul": _both((2, 4), (2, 2)),
        "sub": _both((2, 4), (2, 2)),
        "variance_to_inv_std_dev": _both((11, 4), (9, 2)),
    },
    "2021-11": {
        "add": _both((2, 4), (2, 2)),
        "div": _both((8, 2), (6, 2)),
        "equal": _both((8, 4), (12, 4)),
        "greater": _both((8, 4), (12, 4)),
        "max": _both((3, 4), (3, 2)),
        "min": _both((3, 4), (3, 2)),
        "mul": _both((2, 4), (2, 2)),
        "pow": _both((325, 1), (312, 1)),
        "sub": _both((2, 4), (2, 2)),
        "variance_to_inv_std_dev": _both((24, 4), (12, 2)),
    },
}

# Cycles of the operation alone in the pipelined non-linearity vertices, (single, per vector):
# poplibs lib/popnn/PerformanceEstimation.hpp. The 2020-01 loop runs the operation twice per vector.
NON_LINEARITY: dict[str, LoopTable] = {
    "2020-01": {
        "gelu": _both((5, 10), (10, 20)),
        "relu": _both((1, 2), (1, 2)),
        "sigmoid": _both((2, 4), (5, 10)),
        "tanh": _both((1, 2), (5, 10)),
    },
    "2021-11": {
        "gelu": _both((5, 5), (10, 10)),
        "swish": _both((3, 5), (6, 11)),
    },
}

# Cycles of the gradient of a non-linearity: (one element, one vector), poplibs
# lib/popnn/PerformanceEstimation.hpp. At tag 1.0.136 every kind took 3 per vector.
NON_LINEARITY_GRAD: dict[str, LoopTable] = {
    "2020-01": {
        "gelu": _both((3, 3), (3, 3)),
        "relu": _both((3, 3), (3, 3)),
        "sigmoid": _both((3, 3), (3, 3)),
        "tanh": _both((3, 3), (3, 3)),
    },
    "2021-11": {
        "gelu": _both((5, 5), (10, 10)),
        "relu": _both((3, 3), (3, 3)),
        "sigmoid": _both((3, 3), (3, 3)),
        "swish": _both((7, 9), (10, 15)),
        "tanh": _both((3, 3), (3, 3)),
    },
}

# Worker prologue cycles and supervisor cycles per vertex of each family.
SUPERVISOR_CYCLES = {"2020-01": 200, "2021-11": 11}
UNARY_PROLOGUE = {"2020-01": 20, "2021-11": 17}
UNARY_IN_PLACE_PROLOGUE = {"2020-01": 20, "2021-11": 55}
EXP_PROLOGUE = {"2020-01": 20, "2021-11": 33}
BINARY_PROLOGUE = {
    "2020-01": {HALF: 22, FLOAT: 22},
    "2021-11": {HALF: 26, FLOAT: 29},
}
BINARY_IN_PLACE_PROLOGUE = {"2020-01": 13, "2021-11": 58}
SCALAR_BROADCAST_PROLOGUE = 20
# Worker vertices of several regions, the same at all tags.
BINARY_2D_PROLOGUE = 5
OTHER_2D_PROLOGUE = 20

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
