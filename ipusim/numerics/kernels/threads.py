"""Calling compiled kernels: on several threads, cut so that their number changes no result."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from time import perf_counter

import numba
import numpy as np

ALONE_S = 5e-4
"""Seconds after which the caller is joined by other threads: less costs more to hand over."""


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="ipusim-numerics")


def over_ranges(count: int, chunk: int, kernel: Callable[..., None], *arguments: object) -> None:
    """Call ``kernel(*arguments, start, stop)`` for consecutive ranges of at most `chunk`.

    The ranges depend on `count` and `chunk` only; kernels release the interpreter lock and write
    disjoint parts of their outputs, so every number of threads gives the same bits. As many
    threads run as numba is set to use (NUMBA_NUM_THREADS, `numba.set_num_threads`), unless the
    caller alone is done before they would have begun.
    """
    ranges = deque((start, min(start + chunk, count)) for start in range(0, count, chunk))
    end = perf_counter() + ALONE_S
    while ranges and perf_counter() < end:
        kernel(*arguments, *ranges.popleft())
    if not ranges:
        return

    def work() -> None:
        while True:
            try:
                part = ranges.popleft()
            except IndexError:  # as kernels that check bounds raise
                return
            kernel(*arguments, *part)

    threads = min(numba.get_num_threads(), len(ranges))
    for share in [_pool(threads).submit(work) for _ in range(threads)]:
        share.result()


def writable(array: np.ndarray) -> np.ndarray:
    """Return a contiguous single-precision array; compiled kernels know one kind only."""
    # A read-only or strided array would have every kernel compiled once more.
    return np.require(array, np.float32, ("C", "W"))
