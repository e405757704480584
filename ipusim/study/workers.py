"""Worker processes that keep what they made: a task goes to the one that had it before."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any


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


class Workers:
    """Processes that live as long as this object.

    Parameters
    ----------
    count : int
        Processes, each started when it is first needed.
    """

    def __init__(self, count: int) -> None:
        # Started afresh: a notebook has threads, and those do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._pools = [
            ProcessPoolExecutor(1, mp_context=context, initializer=_follow_parent)
            for _ in range(count)
        ]
        self._home: dict[Hashable, int] = {}

    def each(
        self, function: Callable[[Any], Any], tasks: Mapping[Hashable, Any]
    ) -> Iterator[tuple[Hashable, Any]]:
        """Call a function for every task, and yield (key, result) as they are done.

        Parameters
        ----------
        function : callable
            Of a module, with one argument.
        tasks : mapping
            Arguments by key, those that take longest first. A key goes to the process that had it
            the last time, unless another one has nothing else to do.

        Raises
        ------
        Exception
            What the function raises.
        """
        waiting = dict(tasks)
        running: dict[Future[Any], tuple[int, Hashable]] = {}
        idle = set(range(len(self._pools)))
        while waiting or running:
            for worker in sorted(idle):
                if not waiting:
                    break
                at_home = (key for key in waiting if self._home.get(key, worker) == worker)
                key = next(at_home, next(iter(waiting)))
                self._home[key] = worker
                running[self._pools[worker].submit(function, waiting.pop(key))] = worker, key
                idle.discard(worker)
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                worker, key = running.pop(future)
                idle.add(worker)
                yield key, future.result()
