"""The golden: what the whole package answers, at full precision.

A change that may not move a prediction proves with it that it does not. ``python tests/golden.py
check`` compares, ``write`` records anew; a change of a recorded file belongs in the commit that
explains it. Parts: ``predictions`` (every published row in every tier), ``programs`` (plans and
cycles of every operation, and the terms of the step, of one published run per network and mode),
``gpus`` (every published row of a GPU), ``numerics`` (weights after ten steps), ``networks`` (how
large those of the zoo are). Name parts after the verb, networks after ``--only``.
"""

import csv
import difflib
import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "data" / "expected"
PARTS = ("predictions", "programs", "gpus", "numerics", "networks")
PHASED = {
    "phased_bert": (
        "bert_large_squad_sl128",
        {"micro_batch": 2, "phases": 4, "micro_batches_per_phase": 2, "replicas": 1},
    ),
    "phased_resnet50_training": (
        "resnet50",
        {
            "mode": "training",
            "micro_batch": 4,
            "phases": 3,
            "replicas": 1,
            "gradient_accumulation": 4,
        },
    ),
}
"""No published run executes phase by phase; these two keep that path in the golden."""

Rows = Iterator[tuple[str, ...]]


def predictions(only: Iterable[str] = ()) -> Rows:
    """Every published row: three tiers and the 80 % interval."""
    from ipusim.study.data.published import load_rows
    from ipusim.study.verdicts.compare import verdicts
    from ipusim.workers import available_cores

    rows = [row for row in load_rows() if not only or row.run.model in only]
    return prediction_rows(verdicts(rows, jobs=available_cores()))


def prediction_rows(frame: pd.DataFrame) -> Rows:
    """The part of a frame of verdicts that the golden holds."""
    columns = ["row_id", "roofline", "specification", "calibrated", "low80", "high80", "verdict"]
    yield tuple(columns)
    for row in frame[columns].itertuples(index=False):
        yield tuple(_text(value) for value in row)


def programs(only: Iterable[str] = ()) -> Rows:
    """One published run per network and mode: each operation, then the step and its memory."""
    yield ("run", "first_op", "ops", "cycles", "supersteps", "exchange_bytes", "tiles", "plan")
    for name, model, options in _runs():
        if not only or {name, model} & set(only):
            yield from _program_rows(name, model, options)


def _runs() -> list[tuple[str, str, dict]]:
    from ipusim.study.data.published import load_rows

    chosen = {}
    for row in load_rows():
        if not row.not_modelled and row.run.model:
            chosen.setdefault((row.run.model, row.run.mode), row.run)
    found = [(run.run_id, run.model, run.options()) for run in chosen.values()]
    found += [(name, model, options) for name, (model, options) in PHASED.items()]
    return sorted(found, key=lambda item: item[0])


def _program_rows(name: str, model: str, options: dict) -> Rows:
    from ipusim import api
    from ipusim.compiler.program_cache import keep_programs

    with keep_programs():
        result = api.simulate(model, tier="specification", **options).result
    alike: dict[tuple[str, ...], list[str]] = {}
    for op in (*result.program.ops, *result.update.ops):
        supersteps = sum(step.repeats for step in op.steps)
        sent = sum(step.repeats * step.exchange_bytes for step in op.steps)
        memory = f"{op.grouping} {op.temp_bytes} {op.interleaved_bytes}"
        plan = f"{op.plan} | {op.transform} | {memory}"
        key = (*map(str, (op.cycles, supersteps, sent, op.tiles)), plan)
        alike.setdefault(key, []).append(op.name)
    for key, names in alike.items():
        yield (name, names[0], str(len(names)), *key)
    used = result.memory
    terms = {
        **result.parts_s,
        "step": result.step_s,
        "latency": result.latency_s,
        "throughput": result.throughput_items_per_s,
        "power": result.power_w,
        "amp": result.energy.amp_j,
        "sram": result.energy.sram_j,
        "exchange": result.energy.exchange_j,
        "parameter bytes": used.parameter_bytes,
        "code bytes": used.code_bytes,
        "total bytes": used.total_bytes,
        "peak tile bytes": used.peak_tile_bytes,
        "peak op": used.peak_op,
    }
    for stage in result.stages:
        terms[f"stage {stage.ops[0].name}"] = stage.forward_s + stage.backward_s
    for what, value in terms.items():
        yield (name, f"= {what}", "", "", "", "", "", _text(value))


def gpus(only: Iterable[str] = ()) -> Rows:
    """Every published row of a GPU: items per second without and with the cost per kernel."""
    from ipusim.study.verdicts.compare_gpu import gpu_compare

    columns = ["row_id", "specification", "predicted"]
    yield tuple(columns)
    frame = gpu_compare()
    chosen = frame[frame["model"].isin(only)] if only else frame
    for row in chosen[columns].itertuples(index=False):
        yield tuple(_text(value) for value in row)


def numerics(only: Iterable[str] = ()) -> Rows:
    """BraggNN after ten steps in each arithmetic: sums of each weight tensor and its squares."""
    import numpy as np

    from ipusim.compiler.program_cache import keep_programs
    from ipusim.study.argonne.braggnn import training as bragg

    yield ("arithmetic", "tensor", "sum", "sum_of_squares")
    schedule = bragg.Schedule(
        train_peaks=64,
        test_peaks=32,
        batch=16,
        steps=10,
        learning_rate=1e-3,
        final_learning_rate=1e-4,
    )
    peaks, _ = bragg.simulate_sets(schedule, seed=0)
    with keep_programs(False):
        runs = bragg.train_in_each(peaks, schedule)
    for trained in runs:
        arithmetic = trained.options.arithmetic
        name = f"{arithmetic.precision} stochastic={arithmetic.stochastic_rounding}"
        for tensor, values in sorted(trained.weights.items()):
            exact = values.astype(np.float64)
            yield (name, tensor, _text(float(exact.sum())), _text(float((exact**2).sum())))


def networks(only: Iterable[str] = ()) -> Rows:
    """Learnt numbers and multiply-accumulates of every network, at its default micro-batch."""
    from ipusim.workload import zoo

    yield ("network", "parameters", "macs")
    for name in only or zoo.names():
        graph = zoo.load(name).graph()
        yield (name, str(graph.parameters), str(graph.macs))


def _text(value: object) -> str:
    return repr(float(value)) if isinstance(value, float) else str(value)


def csv_text(rows: Rows) -> str:
    """Return rows as CSV text."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def differences(part: str, rows: Rows, *, partial: bool = False) -> list[str]:
    """Return the lines that the recorded file has otherwise, as ``-old`` and ``+new``.

    ``partial`` leaves out what is recorded of runs that the rows say nothing of.
    """
    old = (FOLDER / f"{part}.csv").read_text().splitlines()
    new = csv_text(rows).splitlines()
    if partial:
        first = {line.split(",")[0] for line in new}
        old = [line for line in old if line.split(",")[0] in first]
    lines = difflib.unified_diff(old, new, lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def main(arguments: list[str]) -> int:
    """Check or write; return 1 where something differs."""
    verb, *rest = arguments or ["check"]
    only = rest[rest.index("--only") + 1 :] if "--only" in rest else []
    parts = [part for part in rest if part in PARTS] or list(PARTS)
    bad = 0
    for part in parts:
        if verb == "write":
            (FOLDER / f"{part}.csv").write_text(csv_text(globals()[part]()))
            continue
        found = differences(part, globals()[part](only), partial=bool(only))
        print(f"{part}: {'same' if not found else f'{len(found)} lines differ'}")
        print("\n".join(found[:40]))
        bad |= bool(found)
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
