"""Compile time: what is distinct in a program, the calibrated cost, the first epoch."""

import csv

import pytest

from ipusim import files
from ipusim.compiler.program import LoweredOp, Program, Superstep
from ipusim.runtime.calibration import calibration
from ipusim.runtime.compile import tile_steps

STENCIL_VERTICES_PER_TILE = 12  # two compute sets of six workers, thorbenlouw/lbm-graphcore
GC2_TILES = 1216


def step(**changes) -> Superstep:
    plain = {
        "name": "compute", "vertex": "AMP", "sync_cycles": 1, "exchange_cycles": 2,
        "copy_cycles": 3, "compute_cycles": 4, "exchange_bytes": 5, "tiles": 100,
    }  # fmt: skip
    return Superstep(**{**plain, **changes})


def operation(name: str, *steps: Superstep) -> LoweredOp:
    return LoweredOp(
        name=name, kind="conv", function="", steps=steps, macs=1, float_macs=0, plan="p",
        transform="", tiles=100, grouping=8, temp_bytes=0,
    )  # fmt: skip


def test_repeated_operations_are_compiled_once():
    first = operation("a", step(), step(name="reduce", tiles=10))
    again = operation("b", step(), step(name="reduce", tiles=10))
    other = operation("c", step(compute_cycles=9))
    empty = operation("d")
    assert tile_steps(Program((first, again)), Program((other, empty))) == 210


def test_repeats_of_a_loop_are_compiled_once():
    body = operation("a", step(repeats=16))
    assert tile_steps(Program((body,))) == 100


def test_plans_tell_operations_apart():
    first = operation("a", step())
    other = first._replace(plan="q")
    assert tile_steps(Program((first, other))) == 200


def test_measured_compile_times_are_proportional_to_tiles():
    with (files.data_dir() / "evidence" / "ipu_microbench.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["metric"] == "compile_time"]
    times = [float(row["value"]) for row in rows]
    steps = [int(row["size"].split()[0]) * GC2_TILES * STENCIL_VERTICES_PER_TILE for row in rows]
    assert len(rows) == 5
    fitted = calibration().compile.value
    assert 3e-4 < fitted < 4e-4
    for time, count in zip(times, steps, strict=True):
        assert fitted * count == pytest.approx(time, rel=0.12)
