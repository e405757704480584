"""The predicting stages for hundreds of runs: every prediction made once, several at a time.

A comparison asks for the same run at several tiers and costs, a fit asks again, and so does the
next notebook. Predictions are remembered by what was asked, in the process and on disk beside the
programs, apart for every state of the predicting sources and of the data; what is not known yet can
be made by worker processes.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ipusim.compiler.program_cache import keep_programs, keeps_programs, rewritten
from ipusim.kernel_cache import PREDICTING_SOURCES, kept_path, read_kept, state_digest, write_kept
from ipusim.runtime.compile import keeping_all
from ipusim.runtime.terms import Line
from ipusim.workers import Workers

GRAPH_OPTIONS = ("mode", "micro_batch", "precision", "recompute")
"""Options that tell graphs apart; runs that agree in them are better predicted together."""

PREDICTING = (*PREDICTING_SOURCES, "study/cached.py", "study/fidelity/ablation.py")
"""Sources that the answer to a request depends on, those that rewrite programs among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a predictor is asked; ``key`` is the same for the same question.

    ``rewrite`` changes the lowered program, to see what a mechanism is worth (`fidelity.ablation`).
    """

    entry: str  # "simulate" or "roofline"
    model: str
    options: dict[str, Any]
    rewrite: Callable[..., Any] | None = None
    key: tuple[Any, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        options = sorted(self.options.items(), key=lambda item: item[0])
        object.__setattr__(self, "key", (self.entry, self.model, self.rewrite, *options))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The numbers of a report that comparisons read, of a roofline or a rewrite the first two."""

    latency: float  # seconds
    throughput: float  # items per second
    power: float = math.nan  # watts, and its parts
    power_parts_w: dict[str, float] = field(default_factory=dict)
    compile_s: float = math.nan
    program_s: float = math.nan  # of a step, the host not asked
    parts_s: dict[str, float] = field(default_factory=dict)  # where the seconds of a step go
    fullest_share: float = math.nan  # of a tile: the highest address on the fullest one
    line: Line | None = None  # how the step depends on the fitted costs


def _kept_path(request: Request) -> Path | None:
    """Return the file of an answer; None where nothing is kept, or a model's own file is asked."""
    if not keeps_programs() or request.model.lower().endswith(".onnx"):
        return None
    return kept_path("predictions", state_digest(PREDICTING), repr(request.key))


def _kept(request: Request) -> Prediction | None:
    """Return what the same question was answered before."""
    path = _kept_path(request)
    content = None if path is None else read_kept(path)
    if content is None:
        return None
    numbers = json.loads(content)
    line = numbers.pop("line")
    return Prediction(**numbers, line=line and Line(**line))


def _answer(request: Request) -> Prediction:
    prediction = _kept(request)  # another process may have answered since it was asked for
    if prediction is None:
        prediction = _predict(request)
        path = _kept_path(request)
        if path is not None:
            write_kept(path, json.dumps(asdict(prediction)).encode())
    return prediction


def _predict(request: Request) -> Prediction:
    from ipusim import api

    with keep_programs(), rewritten(request.rewrite):
        report = getattr(api, request.entry)(request.model, **request.options)
    numbers = {"latency": float(report.latency), "throughput": float(report.throughput)}
    if request.entry == "roofline" or request.rewrite:
        return Prediction(**numbers)
    memory = report.result.memory
    return Prediction(
        **numbers,
        power=float(report.power),
        power_parts_w=report.power_parts_w,
        compile_s=report.compile_s,
        program_s=report.program_s,
        parts_s=report.parts_s,
        fullest_share=memory.peak_tile_bytes / memory.tile_bytes,
        line=report.result.terms.line(),
    )


@keeping_all()
def _answer_all(requests: Sequence[Request]) -> list[Prediction]:
    """Answer requests; a program is a million objects without a cycle, so garbage can wait."""
    return [_answer(request) for request in requests]


class PooledPredictor:
    """The predicting stages with a memory, which `jobs` worker processes fill ahead."""

    def __init__(self, jobs: int = 1) -> None:
        self._jobs = jobs
        self._known: dict[tuple[Any, ...], Prediction] = {}
        self._workers: Workers | None = None

    def answer(self, request: Request) -> Prediction:
        """Return what a request asks for."""
        if request.key not in self._known:
            self._known[request.key] = _answer(request)
        return self._known[request.key]

    def _knows(self, request: Request) -> bool:
        """Return whether an answer is there, in this object or on disk."""
        if request.key not in self._known:
            kept = _kept(request)
            if kept is None:
                return False
            self._known[request.key] = kept
        return True

    def prepare(self, requests: Iterable[Request]) -> None:
        """Make predictions that will be asked for, in worker processes if there are any."""
        tasks: dict[tuple[Any, ...], list[Request]] = {}
        for request in {one.key: one for one in requests if not self._knows(one)}.values():
            options = tuple(request.options.get(name) for name in GRAPH_OPTIONS)
            tasks.setdefault((request.model, *options), []).append(request)
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
