"""Sweeps: the same table however it is made, whatever ends on the way."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pandas as pd
import pytest

import ipusim
from ipusim import cli, sweeps
from ipusim.errors import ConfigError, UnknownNameError
from ipusim.machine import load_system
from ipusim.parts import Parts, taken_up
from ipusim.runtime import compile as compilation

ASKED = {
    "micro_batch": [1, 2],
    "chip": {"tiles": [736, 1472], "clock_hz": [1_330_000_000, 1_500_000_000, 1_850_000_000]},
}
BOTH = {**ASKED, "system": ["C2", "IPU-M2000"], "progress": False}


@pytest.fixture
def small_tasks(monkeypatch):
    monkeypatch.setattr(sweeps, "LEAST_POINTS", 3)
    monkeypatch.setattr(sweeps, "MOST_POINTS", 4)


def question(**options):
    return sweeps._asked("braggnn", options.pop("chip", None), options, False)


def test_a_row_is_what_simulate_says():
    frame = ipusim.sweep("braggnn", **BOTH)
    assert len(frame) == 24
    assert list(frame.columns[:5]) == ["model", "system", "micro_batch", "tiles", "clock_hz"]
    for row in (frame.iloc[4], frame.iloc[-1]):
        machine = load_system(row["system"])
        chip = replace(machine.chip, tiles=int(row["tiles"]), clock_hz=int(row["clock_hz"]))
        report = ipusim.simulate(
            "braggnn", system=replace(machine, chip=chip), micro_batch=int(row["micro_batch"])
        )
        assert row["latency_ms"] == 1e3 * report.latency.value
        assert row["power_w"] == report.power.value
        assert row["cycles_per_step"] == report.cycles_per_step


def test_what_was_adopted_of_a_system_is_an_axis_too():
    run = {"micro_batch": 4, "instances": 1, "batches_in_flight": 2}
    frame = ipusim.sweep("resnet50", adopted=[True, False], progress=False, **run)
    reports = [ipusim.simulate("resnet50", adopted=one, **run) for one in (True, False)]
    rates = [report.throughput.value for report in reports]
    assert list(frame["throughput_items_per_s"]) == rates
    assert rates[0] < rates[1]


def test_tasks_hold_every_point_once_and_keep_programs_together(small_tasks):
    asked = question(micro_batch=[1, 2, 3], chip={"clock_hz": [1, 2, 3]}, replicas=[1, 2])
    tasks = asked.tasks()
    assert sorted(point for task in tasks for point in task) == list(range(len(asked)))
    assert max(map(len, tasks)) == 4
    assert len(question(micro_batch=range(7)).tasks()) == 3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"micro_batch": []}, "micro_batch has no value"),
        ({"chip": {"tiles": range(0)}}, "tiles has no value"),
        ({"chip": 3}, "chip is 3"),
        ({"dims": 3}, "dims is 3"),
        ({"jobs": 0}, "jobs is 0"),
        ({"jobs": "two"}, "jobs is 'two'"),
        ({"out": ""}, "table '' must end"),
        ({"out": 3}, "3 is no path"),
        ({"out": "\0.csv"}, "Cannot write"),
    ],
)
def test_what_makes_no_sweep_is_refused_in_one_sentence(options, why):
    with pytest.raises(ConfigError, match=why):
        ipusim.sweep("braggnn", progress=False, **options)


def test_a_sweep_that_was_refused_at_once_stands_in_nobodys_way(tmp_path):
    out = tmp_path / "table.csv"
    with pytest.raises(ConfigError, match="16 replicas"):
        ipusim.sweep("braggnn", system="C2", replicas=[16, 1], out=out, progress=False)
    assert not list(tmp_path.iterdir())
    assert len(ipusim.sweep("braggnn", system="C2", replicas=[2, 1], out=out, progress=False)) == 2


def test_a_program_is_lowered_once_for_all_clocks(monkeypatch):
    for remembered in (compilation._compiled, compilation._lowered, compilation._program):
        remembered.cache_clear()
    lowered = []
    monkeypatch.setattr(
        compilation,
        "_program",
        lambda *given, **options: lowered.append(given) or real(*given, **options),
    )
    frame = ipusim.sweep("braggnn", chip={"clock_hz": range(10**9, 2 * 10**9, 10**8)}, replicas=[1])
    assert len(lowered) == 1
    assert frame["cycles_per_step"].nunique() == 1
    assert frame["latency_ms"].is_monotonic_decreasing


real = compilation.lower_kept


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_what_was_ended_goes_on_and_gives_the_same_bytes(
    tmp_path, monkeypatch, small_tasks, ending
):
    whole, broken = tmp_path / f"whole.{ending}", tmp_path / f"broken.{ending}"
    frame = ipusim.sweep("braggnn", out=whole, **BOTH)
    pd.testing.assert_frame_equal(frame, ipusim.sweep("braggnn", **BOTH))
    kept = []

    def dying(parts, name, table, keep=Parts.keep):
        if len(kept) == 3:
            raise KeyboardInterrupt
        kept.append(name)
        keep(parts, name, table)

    with monkeypatch.context() as patched:
        patched.setattr(Parts, "keep", dying)
        with pytest.raises(KeyboardInterrupt):
            ipusim.sweep("braggnn", out=broken, **BOTH)
    assert not broken.exists()
    next(tmp_path.rglob("part-*")).write_text('{"0": {"model"')  # it is made again
    ran = []
    run = sweeps._run
    monkeypatch.setattr(sweeps, "_run", lambda task: ran.append(task) or run(task))
    ipusim.sweep("braggnn", out=broken, **BOTH)
    assert (
        len(ran) == len(question(**{k: v for k, v in BOTH.items() if k != "progress"}).tasks()) - 2
    )
    assert broken.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [broken.name, whole.name]


def test_parts_of_another_question_and_a_second_writer_are_refused(tmp_path):
    file = tmp_path / "table.csv"
    with taken_up(file, "one") as parts:
        parts.keep(0, {0: {"a": 1}})
        with pytest.raises(ConfigError, match="Another process is writing"), taken_up(file, "one"):
            pass
    with pytest.raises(ConfigError, match="parts of another sweep"), taken_up(file, "two"):
        pass
    with taken_up(file, "one") as parts:
        assert parts.known({0: (0,), 1: (1, 2)}) == {0}
        (part,) = tmp_path.rglob("part-*")
        for damaged in ('{"0": {', "[]", '{"a": {}}', '{"1": {}}', "[" * 10_000):
            part.write_text(damaged)
            assert parts.known({0: (0,)}) == set()
    with pytest.raises(ConfigError, match=r"end in \.csv"), taken_up(tmp_path / "a.xlsx", "one"):
        pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="choose another file"),
        taken_up(tmp_path / "file" / "table.csv", "one"),
    ):
        pass


def test_what_makes_no_sense_ends_a_sweep_or_is_told(tmp_path):
    asked = {"system": ["C2", "IPU-M2000"], "replicas": [2, 4], "progress": False}
    with pytest.raises(ConfigError, match="use 1 to 2"):
        ipusim.sweep("braggnn", **asked)
    frame = ipusim.sweep("braggnn", keep_going=True, out=tmp_path / "t.csv", **asked)
    assert list(frame["latency_ms"].isna()) == [False, True, False, False]
    assert "use 1 to 2" in frame["refused"][1]
    with pytest.raises(UnknownNameError, match="'tiles'"):
        ipusim.sweep("braggnn", chip={"tile": [1]})
    with pytest.raises(ConfigError, match="whole number"):
        ipusim.sweep("braggnn", chip={"tiles": [0]})
    with pytest.raises(UnknownNameError, match="'micro_batch'"):
        ipusim.sweep("braggnn", microbatch=[1])


def test_processes_give_the_same(small_tasks):
    one = ipusim.sweep("braggnn", **BOTH)
    pd.testing.assert_frame_equal(ipusim.sweep("braggnn", jobs=2, **BOTH), one)


def test_the_command_takes_lists_and_ranges_of_every_option(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweeps, "SCHEDULER_ANSWERS_S", 1)  # nothing listens there
    out = tmp_path / "table.csv"
    asked = (
        "sweep braggnn --system C2 --micro-batch 1:5:2,8 --mode training --gradient-accumulation 2 "
        "--chip tiles=600,1216 --replicated-tensor-sharding true,false --jobs 1 --out"
    )
    code = cli.main([*asked.split(), str(out)])
    assert (code, capsys.readouterr().err) == (0, "")
    frame = pd.read_csv(out)
    assert len(frame) == 16
    assert sorted(set(frame["micro_batch"])) == [1, 3, 5, 8]
    assert cli.main(["sweep", "braggnn", "--chip", "tiles"]) == 2
    assert cli.main(["sweep", "braggnn", "--micro-batch", "1,x"]) == 2
    assert cli.main(["sweep", "braggnn", "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.count("ipusim: ") == 3


CHILD = """
import sys
import ipusim
from ipusim import sweeps
sweeps.LEAST_POINTS = 3
if __name__ == "__main__":
    ipusim.sweep("resnet18", system=["C2", "IPU-M2000"], micro_batch=list(range(1, 13)),
                 chip={"tiles": [900, 1000]}, out=sys.argv[1], jobs=2, progress=False)
"""


@pytest.mark.slow
def test_killed_at_any_moment_and_gone_on(tmp_path):
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    whole, broken = tmp_path / "whole.csv", tmp_path / "broken.csv"
    begun = time.monotonic()
    subprocess.run([sys.executable, script, whole], check=True)
    took_s = time.monotonic() - begun
    kills = 0
    for seconds in (0.3 * took_s, 0.5 * took_s, 0.7 * took_s, 0.8 * took_s, None):
        child = subprocess.Popen([sys.executable, script, broken])
        try:
            child.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.wait()
            kills += 1
    assert kills
    assert broken.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_a_cluster_gives_the_same_with_a_worker_killed(tmp_path, small_tasks):
    distributed = pytest.importorskip("distributed")
    alone, cluster = tmp_path / "alone.csv", tmp_path / "cluster.csv"
    asked = {"system": ["C2", "IPU-M2000"], "micro_batch": list(range(1, 33)), "progress": False}
    ipusim.sweep("braggnn", out=alone, **asked)
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None) as client:
        victim = next(iter(client.run(os.getpid).values()))
        keep, kept = Parts.keep, []

        def kill_once(parts, name, table):
            if not kept:
                os.kill(victim, signal.SIGKILL)
            kept.append(name)
            keep(parts, name, table)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Parts, "keep", kill_once)
            ipusim.sweep("braggnn", out=cluster, client=client, **asked)
        assert victim not in client.run(os.getpid).values()
    assert cluster.read_bytes() == alone.read_bytes()


def test_a_local_cluster_gives_the_same():
    pytest.importorskip("distributed")
    asked = {"system": "C2", "micro_batch": [1, 2], "progress": False}
    through = ipusim.sweep("braggnn", client="local", jobs=1, **asked)
    pd.testing.assert_frame_equal(through, ipusim.sweep("braggnn", **asked))
