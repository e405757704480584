"""Benchmarks, printed as a table: planning, simulation, fresh process, memory.

Run with ``make bench``.  Times are the best of several runs on this machine; limits are what the
project promises on two cores. Machines differ, so times are also printed in those of `import numba`
in the same run, beside what `RECORD` holds of the release before.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import naive_braggnn
import numpy as np
import pandas as pd

from ipusim import api, numerics
from ipusim.compiler.convolution import planner
from ipusim.compiler.operators.conv import conv_pass
from ipusim.compiler.program_cache import keep_programs
from ipusim.compiler.stacks import load_stack
from ipusim.machine import load_chip
from ipusim.numerics.adam import start_state
from ipusim.numerics.program import initial_weights
from ipusim.numerics.trainer import TrainingOptions, training_step
from ipusim.study.argonne.braggnn import training
from ipusim.study.table import Table
from ipusim.workload import zoo
from ipusim.workload.folding import fold_batch_norm

RECORD = Path(__file__).with_name("record.csv")
"""Times over that of `import numba` at the last release, or at a commit as long as there is none.

``bench.py --record VERSION`` writes it, when a release is made.
"""

_NUMBA = "import numba alone in a fresh process, CPU"
_SECONDS = {"s": 1.0, "ms": 1e-3}

_PLANNED = 'import ipusim; ipusim.simulate("resnext101_32x4d", system="C2", micro_batch=4)'
_NEW_SHAPES = f"""
from ipusim.compiler.program_cache import keep_programs
with keep_programs(False):
    {_PLANNED}
"""

_FRESH = """
import resource
{what}
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""


def best_of(task: Callable[[], object], runs: int = 5) -> float:
    """Return the shortest wall time of a task in seconds."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        task()
        times.append(time.perf_counter() - begin)
    return min(times)


def plan_network(model: str, micro_batch: int, chip: str, stack: str) -> Callable[[], None]:
    """Return a task that plans every convolution of a network, nothing remembered."""
    profile, target = load_stack(stack), load_chip(chip)
    graph = zoo.load(model).graph(micro_batch)
    if profile.fold_batch_norm:
        graph = fold_batch_norm(graph)
    shapes = [conv_pass(op.params, 2) for op in graph.ops if op.kind == "conv"]
    rules = profile.planner_rules()

    def task() -> None:
        planner.forget_plans()
        with planner.planned_ahead(shapes, target, rules):
            for shape in shapes:
                planner.plan(shape, target, rules)

    return task


def fresh_process(what: str) -> tuple[float, float]:
    """Return CPU seconds and peak MB of some code in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _FRESH.format(what=what)], capture_output=True, text=True, check=True
    )
    cpu, peak = done.stdout.split()
    return float(cpu), float(peak)


def braggnn_steps() -> tuple[float, float]:
    """Return seconds of a BraggNN training step of 512 patches: emulated halves, plain numpy."""
    generator = np.random.default_rng(0)
    patches = generator.uniform(0, 1, (512, 1, 11, 11)).astype(np.float32)
    targets = generator.uniform(0.4, 0.6, (512, 2)).astype(np.float32)
    weights = initial_weights(numerics.load_program("braggnn", 512), 0)
    options = TrainingOptions(schedule=training.named_schedule("quick"))
    program = numerics.load_program("braggnn", 512)
    state = start_state(weights, numerics.Arithmetic(options.arithmetic))

    def emulated() -> None:
        training_step(program, state, patches, targets, options)

    emulated()
    numpy_s = best_of(lambda: naive_braggnn.training_step(patches, targets, weights), 4)
    return best_of(emulated, 4), numpy_s


def run_benchmarks() -> pd.DataFrame:
    """Measure everything.

    Returns
    -------
    pandas.DataFrame
        Columns benchmark, value, unit, limit.
    """
    rows: list[tuple[str, float, str, float | None]] = []
    for chip, stack, micro_batch in (("GC2", "sdk-1.0", 4), ("GC200", "sdk-2.4", 1)):
        task = plan_network("resnext101_32x4d", micro_batch, chip, stack)
        task()
        rows.append(
            (f"plan ResNeXt-101, {chip}, micro-batch {micro_batch}", 1e3 * best_of(task), "ms", 20)
        )
    task = plan_network("resnet50", 64, "GC200", "sdk-2.4")
    task()
    rows.append(("plan ResNet-50, GC200, micro-batch 64", 1e3 * best_of(task, 2), "ms", None))
    again = best_of(lambda: api.simulate("resnext101_32x4d", system="C2", micro_batch=4))
    rows.append(("simulate ResNeXt-101 again, plans remembered", 1e3 * again, "ms", None))
    training_options = {
        "system": "IPU-POD256",
        "mode": "training",
        "micro_batch": 20,
        "gradient_accumulation": 2,
        "recompute": "auto",
        "host_dtype": "uint8",
    }
    api.simulate("resnet50", **training_options)
    again = best_of(lambda: api.simulate("resnet50", **training_options))
    rows.append(("training step of ResNet-50 on 256 replicas again", again, "s", 1))
    sizes = iter(range(2, 20))
    with keep_programs(False):
        new = best_of(
            lambda: api.simulate("resnet50", **training_options | {"micro_batch": next(sizes)}), 8
        )
    rows.append(("the same at a new micro-batch, planned anew", 1e3 * new, "ms", None))
    numba_cpu = min(fresh_process("import numba")[0] for _ in range(3))
    rows.append((_NUMBA, numba_cpu, "s", None))
    for name, what, limit in (
        ("simulate ResNeXt-101 in a fresh process, planned before, CPU", _PLANNED, 1),
        ("the same, planned anew, CPU", _NEW_SHAPES, 4),
    ):
        fresh_process(what)
        cpu, peak = min(fresh_process(what) for _ in range(3))
        rows.append((name, cpu / numba_cpu, "x numba", limit))
    rows.append(("the same, peak memory", peak, "MB", 400))
    emulated_s, numpy_s = braggnn_steps()
    rows.append(("BraggNN training step in plain numpy, batch 512", 1e3 * numpy_s, "ms", None))
    rows.append(("the same, 16.16 with stochastic rounding", 1e3 * emulated_s, "ms", None))
    rows.append(("the same, times the numpy step", emulated_s / numpy_s, "x", 20))
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows.append(("these benchmarks, peak memory", own, "MB", None))
    return pd.DataFrame(rows, columns=["benchmark", "value", "unit", "limit"])


def in_imports(frame: pd.DataFrame) -> pd.Series:
    """Return the times of `run_benchmarks` over that of `import numba`; NaN for what is none."""
    seconds = frame["value"] * frame["unit"].map(_SECONDS)
    numba_s = seconds[frame["benchmark"] == _NUMBA].iloc[0]
    return (seconds / numba_s).where(frame["unit"] != "x numba", frame["value"])


def beside_record(frame: pd.DataFrame, record: pd.DataFrame) -> pd.DataFrame:
    """Return the benchmarks with ``x_numba``, and that of the release in the record beside it."""
    known = record.set_index("benchmark")["x_numba"]
    release = record["release"].iloc[0]
    return frame.assign(
        **{"x_numba": in_imports(frame), f"x_numba, {release}": frame["benchmark"].map(known)}
    )


def main() -> int:
    """Print the table; with --check, fail where a limit is passed."""
    parser = argparse.ArgumentParser(prog="bench.py", description="Benchmarks of ipusim.")
    parser.add_argument("--check", action="store_true", help="fail where a limit is passed")
    parser.add_argument("--record", metavar="VERSION", help="write the record of a release")
    options = parser.parse_args()
    frame = run_benchmarks()
    if options.record:
        made = frame.assign(release=options.record, x_numba=in_imports(frame)).dropna(
            subset=["x_numba"]
        )
        made[["release", "benchmark", "x_numba"]].to_csv(
            RECORD, index=False, float_format="%.3g", lineterminator="\n"
        )
    print(Table(beside_record(frame, pd.read_csv(RECORD))))
    over = frame[frame["limit"].notna() & (frame["value"] > frame["limit"])]
    if options.check and len(over):
        print(f"over the limit: {', '.join(over['benchmark'])}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
