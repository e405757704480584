"""Time of phases that follow each other, with what is loaded for the next and stored of the last.

A phase is followed by the loads for the next and then by its own stores
(graphcore/popart@sdk/poplar/3.3.0:willow/src/transforms/streamingmemoryopinserter.cpp, setPriority;
willow/src/schedulegraphgrower.cpp: "compute phase n, load weights of phase n+1"). While a chip
streams it does not compute (docs/popart/overlap_io.rst), so all of it adds up; but two chips that
take turns stream in the phase of the other, which the sync pattern ReplicaAndLadder is for
(docs/popart/performance.rst), and tiles set aside for transfers stream beside the others. Copies
between chips or from tile to tile and collectives stop the overlap (setPriority).
"""

from collections.abc import Iterable, Sequence

COLUMNS = ("compute", "blocking", "load", "store")
"""What a phase spends seconds on: computing; what nothing overlaps with; loading for itself in the
phase before; storing, and what else runs after it has handed over."""

Contribution = tuple[str, str, Sequence[float]]
"""Part of the step, column, seconds of every phase."""


def phased_seconds(
    compute: Sequence[float],
    blocking: Sequence[float],
    load: Sequence[float],
    store: Sequence[float],
    *,
    overlapped: bool,
) -> float:
    """Return the seconds from the first load to the last store of phases (`COLUMNS`).

    If `overlapped`, phase n computes while what phase n + 1 needs is loaded and what phase n - 1
    leaves is stored, one after the other on the same chip or tiles.
    """
    if not overlapped:
        return sum(map(sum, (compute, blocking, load, store)))
    beside = zip(compute, (0.0, *store), (*load[1:], 0.0), strict=False)
    hidden = sum(max(busy, stored + loaded) for busy, stored, loaded in beside)
    return load[0] + hidden + sum(blocking) + store[-1]


def parts_s(
    contributions: Iterable[Contribution], phases: int, *, overlapped: bool
) -> dict[str, float]:
    """Return how much longer each part makes the whole, in the order given.

    The contributions of one part stand in a row.
    """
    columns = {name: [0.0] * phases for name in COLUMNS}
    result: dict[str, float] = {}
    reached = 0.0
    for part, column, seconds in contributions:
        columns[column] = [old + new for old, new in zip(columns[column], seconds, strict=True)]
        total = phased_seconds(**columns, overlapped=overlapped)
        result[part] = result.get(part, 0.0) + total - reached
        reached = total
    return result
