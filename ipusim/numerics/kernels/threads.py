"""Calling compiled kernels: on several threads, cut so that their number changes no result."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numba
import numpy as np


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="ipusim-numerics")


def over_ranges(count: int, chunk: int, kernel: Callable[..., None], *arguments: object) -> None:
    """Call ``kernel(*arguments, start, stop)`` for consecutive ranges of at most `chunk`.

    The ranges depend on `count` and `chunk` only; kernels release the interpreter lock and write
    disjoint parts of their outputs, so every number of threads gives the same bits. As many
    threads run as numba is set to use (NUMBA_NUM_THREADS, `numba.set_num_threads`).
    """
    ranges = [(start, min(start + chunk, count)) for start in range(0, count, chunk)]
    threads = min(numba.get_num_threads(), len(ranges))

    def work(part: list[tuple[int, int]]) -> None:
        for start, stop in part:
            kernel(*arguments, start, stop)

    if threads <= 1:
        work(ranges)
        return
    shares = [_pool(threads).submit(work, ranges[first::threads]) for first in range(threads)]
    for share in shares:
        share.result()


def writable(array: np.ndarray) -> np.ndarray:
    """Return a contiguous single-precision array; compiled kernels know one kind only.

    A read-only or strided array would have every kernel compiled once more.
    """
    return np.require(array, np.float32, ("C", "W"))
