"""What the convolution vertices have in common: records, and how six workers share rows.

Every formula restates poplibs ``lib/poplin/PerformanceEstimation.hpp`` (MIT).  The file changed
with the SDK, so the constants of a vertex follow the era (`eras`).

What depends on era and number types alone is worked out once for a vertex type, in Python, and
kept in its `VERTEX` record; the kernels take that and the `PART` of one tile.  All numbers are
integers.  A tile has six worker contexts that issue in turn, so a worker's instruction count is
multiplied by six to give tile cycles.
"""

from typing import Any

import numpy as np

from ipusim.kernel_cache import njit

WORKERS = 6

AMP, SLIC, HMAC, VMAC, OUTER_PRODUCT = range(5)


def integers(*names: str | tuple[Any, ...]) -> np.dtype:
    """Return a record of named integers, and of records given as (name, dtype) or with a count."""
    fields = [(name, np.int64) for one in names if isinstance(one, str) for name in one.split()]
    return np.dtype(fields + [one for one in names if not isinstance(one, str)])


RUN = integers("prologue one short slope threshold long core lag")
"""A worker's cycles: `prologue`, then each run of n positions of a row: `one` if n is 1,
``short + slope n`` below `threshold`, else ``long + core n``.  The tile waits for its slowest
worker, `lag` tile cycles after its fastest at the least."""

NX1 = integers("fixed per_group per_zeroed per_loop per_row per_tap setup", ("run", RUN))
ONE_BY_ONE = integers("fixed retained per_group per_in per_out per_first")
HMAC_RATES = integers("worker per_row per_position fixed accumulates")
SLIC_RATES = integers("fixed per_group per_sub_kernel passes merge")
VMAC_RATES = integers("start per_row per_tap zero_vector reduce per_worker divisor fixed")
OUTER_RATES = integers("per_group per_position")

VERTEX = integers(
    "method conv_groups_per_group in_chans_per_group out_chans_per_group",
    "units partial_bytes peak_macs filter_height weight_load passes",
    ("first", RUN),
    ("later", RUN),
    ("nx1", NX1),
    ("one_by_one", ONE_BY_ONE),
    ("hmac", HMAC_RATES),
    ("hmac_one_by_one", HMAC_RATES),
    ("slic", SLIC_RATES),
    ("vmac", VMAC_RATES),
    ("outer", OUTER_RATES),
)
"""A vertex type: its grouping, and the constants of its method; `first` and `later` are runs that
zero the partials (AMP 1x1, SLIC) and that add to them."""

PART = integers(
    "group_grains in_grains out_grains kernel_outer kernel_elements kernel_padding kernel_zeros",
    "positions in_positions batch rows row_length weight_users depth tiles_used",
    "own_positions slic_positions columns",
)
"""The largest share of one tile: groups of channels, kernel, and output positions times batch."""


def vertex_type(method: int, *grouping: int | np.ndarray, **constants: Any) -> np.ndarray:
    """Return one vertex type, or several; `grouping` are the fields after `method`, in order."""
    vertex = np.zeros(np.broadcast(*grouping).shape or 1, VERTEX)
    names = VERTEX.names or ()
    for name, value in zip(names, (method, *grouping), strict=False):
        vertex[name] = value
    for name, value in constants.items():
        vertex[name] = value
    return vertex


# How many workers get distinct shares of the rows, by the number of rows modulo six.
DISTINCT_SHARES = (1, 6, 3, 2, 3, 6)


@njit(cache=True)
def worker_share(rows: int, row_length: int, worker: int) -> tuple[int, int, int]:
    """Return head, whole rows and tail of one worker's run of positions, cut at the ends of rows.

    Workers get equal runs of the ``rows * row_length`` positions (poplibs
    partitionConvPartialByWorker).
    """
    total = rows * row_length
    begin, end = worker * total // WORKERS, (worker + 1) * total // WORKERS
    first_row, last_row = begin // row_length, end // row_length
    if first_row == last_row:
        return end - begin, 0, 0
    head = (first_row + 1) * row_length - begin
    return head, last_row - first_row - 1, end - last_row * row_length


@njit(cache=True)
def _row_cycles(run: np.void, positions: int) -> int:
    if positions == 0:
        return 0
    if positions == 1:
        return run.one
    if positions < run.threshold:
        return run.short + run.slope * positions
    return run.long + run.core * positions


@njit(cache=True)
def run_cycles(run: np.void, rows: int, row_length: int) -> int:
    """Tile cycles of the slowest worker of one pass over `rows` rows.

    Shares repeat once a worker starts at the start of a row; of a single row there are two.
    """
    if rows == 1:
        short = WORKERS * (run.prologue + _row_cycles(run, row_length // WORKERS))
        long = WORKERS * (run.prologue + _row_cycles(run, -(-row_length // WORKERS)))
        return max(short, long, min(short, long) + run.lag)
    whole_row = _row_cycles(run, row_length)
    slowest, fastest = 0, 1 << 60
    for worker in range(DISTINCT_SHARES[rows % WORKERS]):
        head, whole_rows, tail = worker_share(rows, row_length, worker)
        cycles = run.prologue + whole_rows * whole_row
        for positions in (head, tail):
            cycles += _row_cycles(run, positions)
        slowest = max(slowest, WORKERS * cycles)
        fastest = min(fastest, WORKERS * cycles)
    return max(slowest, fastest + run.lag)


@njit(cache=True)
def zero_partials_cycles(elements: int, groups: int) -> int:
    """Clear `groups` blocks of `elements` float partials (getZeroSupervisorVertexCycleEstimate)."""
    return (-(-elements // (2 * WORKERS)) + 5) * groups * WORKERS
