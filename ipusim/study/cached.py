"""The predicting stages for hundreds of runs: every prediction made once, several at a time.

A comparison asks for the same run at several tiers and costs, and a fit asks again. Predictions are
remembered by what was asked; what is not known yet can be made by worker processes, and programs
that were lowered before are read from disk (`ipusim.compiler.program_cache`).
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ipusim.study.predict import Predictor, Request
from ipusim.study.workers import Workers

LOWERING_OPTIONS = ("mode", "stack", "micro_batch", "precision", "partials", "recompute")
"""Options that tell programs apart; runs that agree in them are better predicted together."""

_ALLOCATIONS_BETWEEN_COLLECTIONS = 200_000
"""Python's own 700 cost a quarter of the time of a comparison and save no memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The numbers of a report that comparisons read.

    Attributes
    ----------
    latency, throughput : float
        Seconds; items per second.
    power : float
        Watts; NaN where the tier has none.
    power_parts_w : dict of str to float
        Its parts; empty where there is none.
    compile_s : float
        Seconds of compilation; NaN where nothing is compiled.
    """

    latency: float
    throughput: float
    power: float = math.nan
    power_parts_w: dict[str, float] = field(default_factory=dict)
    compile_s: float = math.nan


def available_cores() -> int:
    """Return how many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _answer(request: Request) -> Prediction:
    from ipusim import api
    from ipusim.compiler.program_cache import keep_programs, rewritten

    with keep_programs(), rewritten(request.rewrite):
        report = getattr(api, request.entry)(request.model, **request.options)
    numbers = {"latency": float(report.latency), "throughput": float(report.throughput)}
    if request.entry == "roofline":
        return Prediction(**numbers)
    return Prediction(
        **numbers,
        power=float(report.power),
        power_parts_w=report.power_parts_w,
        compile_s=report.compile_s,
    )


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Look for garbage less often: a program is a million objects without a cycle among them."""
    usual = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _answer_all(requests: Sequence[Request]) -> list[Prediction]:
    with _collecting_seldom():
        return [_answer(request) for request in requests]


class PooledPredictor:
    """A `Predictor` that remembers, and that can be told in advance what it will be asked.

    Parameters
    ----------
    jobs : int
        Worker processes for what is asked in advance; 1 works in this process. They end with this
        object.
    """

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs
        self._known: dict[tuple[Any, ...], Prediction] = {}
        self._workers: Workers | None = None

    def simulate(self, model: str, **options: Any) -> Prediction:
        """Predict a run, as `ipusim.simulate`."""
        return self.answer(Request(entry="simulate", model=model, options=options))

    def roofline(self, model: str, **options: Any) -> Prediction:
        """Bound a run, as `ipusim.roofline`."""
        return self.answer(Request(entry="roofline", model=model, options=options))

    def answer(self, request: Request) -> Prediction:
        """Return what a request asks for."""
        if request.key not in self._known:
            self._known[request.key] = _answer(request)
        return self._known[request.key]

    def prepare(self, requests: Iterable[Request]) -> None:
        """Make predictions that will be asked for, in worker processes if there are any.

        Parameters
        ----------
        requests : iterable of Request
            Those already known cost nothing.

        Raises
        ------
        IpuSimError
            As the first request that fails.
        """
        groups: dict[tuple[Any, ...], dict[tuple[Any, ...], Request]] = {}
        for request in requests:
            if request.key not in self._known:
                options = tuple(request.options.get(name) for name in LOWERING_OPTIONS)
                groups.setdefault((request.model, *options), {})[request.key] = request
        tasks = {key: list(group.values()) for key, group in groups.items()}
        # Large groups first, so that no worker begins one when the others are done.
        tasks = dict(sorted(tasks.items(), key=lambda item: len(item[1]), reverse=True))
        if self._jobs == 1 or len(tasks) < 2:
            done = ((key, _answer_all(task)) for key, task in tasks.items())
        else:
            self._workers = self._workers or Workers(self._jobs)
            done = self._workers.each(_answer_all, tasks)
        for key, found in done:
            for request, prediction in zip(tasks[key], found, strict=True):
                self._known[request.key] = prediction


def prepare(predictor: Predictor, requests: Iterable[Request]) -> None:
    """Announce requests to a predictor that wants to know; others are asked one by one."""
    if isinstance(predictor, PooledPredictor):
        predictor.prepare(requests)
