"""Tables of the benchmarks: what stands beside today's times, and peers that cannot be asked."""

import sys
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAME = pd.DataFrame(
    [
        ("import numba alone in a fresh process, CPU", 0.5, "s", None),
        ("plan", 20.0, "ms", 20.0),
        ("simulate, planned before, CPU", 0.7, "x numba", 1.0),
        ("peak memory", 300.0, "MB", 400.0),
    ],
    columns=["benchmark", "value", "unit", "limit"],
)


@pytest.fixture
def benchmarks(monkeypatch):
    for folder in ("benchmarks", "tests/study/argonne"):
        monkeypatch.syspath_prepend(ROOT / folder)
    return import_module("bench"), import_module("peers")


def test_times_stand_beside_those_of_the_release_before(benchmarks):
    bench, _ = benchmarks
    record = pd.DataFrame(
        {"release": ["0.1.0"] * 2, "benchmark": ["plan", "gone"], "x_numba": [0.1, 3]}
    )
    table = bench.beside_record(FRAME, record).set_index("benchmark")
    assert table["x_numba"].round(6).dropna().to_dict() == {
        "import numba alone in a fresh process, CPU": 1.0,
        "plan": 0.04,
        "simulate, planned before, CPU": 0.7,
    }
    assert table["x_numba, 0.1.0"].dropna().to_dict() == {"plan": 0.1}


def test_the_record_is_of_what_is_measured(benchmarks):
    bench, _ = benchmarks
    record = pd.read_csv(bench.RECORD)
    assert list(record) == ["release", "benchmark", "x_numba"]
    assert record["release"].nunique() == 1
    assert (record["x_numba"] > 0).all()
    source = Path(bench.__file__).read_text()
    assert all(name.partition(",")[0] in source for name in record["benchmark"][-3:])


def test_peers_get_all_layers_of_resnet50(benchmarks):
    _, peers = benchmarks
    layers = peers.layers()
    assert len(layers) == 54
    macs = sum(one["k"] * one["c"] * (one["out"] * one["kernel"]) ** 2 for one in layers)
    assert macs == pytest.approx(4.09e9, rel=0.01)


def test_a_peer_that_gives_no_time_is_one_sentence(benchmarks, monkeypatch, tmp_path):
    _, peers = benchmarks
    peer = peers.Peer(packages=("none==1",), answers="nothing", program="raise SystemExit('no')")
    monkeypatch.setattr(peers, "environment", lambda packages, folder: sys.executable)
    (tmp_path / "none").mkdir()
    seconds, reason = peers.measured(peer, tmp_path)
    assert (seconds != seconds, reason) == (True, "none==1 failed: no")

    def refused(packages, folder):
        raise OSError("no network")

    monkeypatch.setattr(peers, "environment", refused)
    reason = peers.measured(peer, tmp_path)[1]
    assert reason == "none==1 cannot be installed here: no network"
    table = peers.comparison(2.0, {"none==1": ("nothing", float("nan")), "other": ("all", 8.0)})
    assert list(table["times_ours"].fillna(0)) == [1.0, 0.0, 4.0]
