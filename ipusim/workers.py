"""Worker processes that keep what they made: a task goes to the one that had it before.

A process that dies is replaced and its task begun again: it costs time and loses nothing.
"""

import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ipusim.errors import ConfigError

MOST_DEATHS = 3
"""Workers that a task may cost; one that ends so many of them would end them all."""


def available_cores() -> int:
    """Return how many processor cores this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def _follow_parent() -> None:
    """Leave when the parent has ended, however it did: a killed kernel must not leave workers.

    An interrupt reaches all processes of a terminal or a kernel, and the parent answers it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="follows-parent").start()


def _process() -> ProcessPoolExecutor:
    """Return a process, started afresh: a notebook has threads, which do not survive a fork."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_follow_parent)


@contextmanager
def _no_script_to_import() -> Iterator[None]:
    """Hide a script that is no file, as one from standard input: no process could import it."""
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    if script is None or Path(script).exists():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = script


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Start processes that an interrupt does not reach, not even while they import what they need.

    The parent, which answers it, gets one that comes meanwhile afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # to start it would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Workers:
    """Processes that live as long as this object, each started when it is first needed."""

    def __init__(self, count: int) -> None:
        self._pools = [_process() for _ in range(count)]
        self._home: dict[Hashable, int] = {}
        self._busy = False

    def __del__(self) -> None:
        """Wait until idle processes have ended.

        Python that ends at the same time as an executor may print an error: up to 3.13.0 one thread
        closes the pipe that the other writes to (python/cpython#125492).
        """
        for pool in self._pools:
            pool.shutdown(wait=not self._busy)

    def each(
        self, function: Callable[[Any], Any], tasks: Mapping[Hashable, Any]
    ) -> Iterator[tuple[Hashable, Any]]:
        """Call a function of a module for every task, and yield (key, result) as they are done.

        Tasks are arguments by key, those that take longest first. A key goes to the process that
        had it the last time, unless another one has nothing else to do. What the function raises
        comes through; a task that has ended `MOST_DEATHS` workers, as one that needs too much
        memory does, or a script without a guard, is a ConfigError.
        """
        waiting = dict(tasks)
        deaths: Counter[Hashable] = Counter()
        running: dict[Future[Any], tuple[int, Hashable]] = {}
        idle = set(range(len(self._pools)))
        self._busy = True
        while waiting or running:
            for worker in sorted(idle):
                if not waiting:
                    break
                at_home = (key for key in waiting if self._home.get(key, worker) == worker)
                key = next(at_home, next(iter(waiting)))
                self._home[key] = worker
                # The first task starts the process.
                with _no_script_to_import(), deaf_to_interrupts():
                    future = self._pools[worker].submit(function, waiting.pop(key))
                running[future] = worker, key
                idle.discard(worker)
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                worker, key = running.pop(future)
                idle.add(worker)
                try:
                    result = future.result()
                except BrokenProcessPool:
                    deaths[key] += 1
                    if deaths[key] == MOST_DEATHS:
                        raise ConfigError(
                            f"{MOST_DEATHS} worker processes ended on the same task, most likely "
                            "for lack of memory, or because a script starts them outside of "
                            "\"if __name__ == '__main__':\", which each of them runs again: use "
                            "fewer of them, ask for less at once, or start them there."
                        ) from None
                    self._pools[worker] = _process()
                    waiting[key] = tasks[key]
                    continue
                yield key, result
        self._busy = False
