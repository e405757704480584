"""A predictor that remembers: the same numbers, each made once, in whatever process."""

import math
import shutil
import subprocess
import sys

import pytest
from study_small import load_row

from ipusim import api, kernel_cache
from ipusim.compiler import program_cache
from ipusim.errors import UnknownNameError
from ipusim.files import data_dir
from ipusim.runtime import compile as compilation
from ipusim.runtime.calibration import FittedCosts
from ipusim.study import cached as pooled
from ipusim.study.book.outputs import frame_csv
from ipusim.study.cached import PooledPredictor, Request
from ipusim.study.fidelity.ablation import Off
from ipusim.study.predict import TIERS, request_for
from ipusim.study.verdicts import compare
from ipusim.study.verdicts.compare import Samples
from ipusim.workers import available_cores

ROWS = [load_row(f"results.inference.{number}") for number in ("049", "058", "058.latency")]


KEPT = {"entry": "simulate", "model": "braggnn", "options": {"micro_batch": 1}}
LOADS = """
import sys
from ipusim import api
from ipusim.compiler.program_cache import keep_programs
with keep_programs(False):
    api.simulate("braggnn", mode="training")
    api.roofline("braggnn")
print(*(name for name in sys.modules if name.startswith("ipusim")))
"""


def simulate(**options):
    return Request(entry="simulate", model="braggnn", options={"micro_batch": 1} | options)


class Forgetful(PooledPredictor):
    """Asks the simulator every time, at once and in this process."""

    def prepare(self, requests):
        pass

    def answer(self, request):
        return pooled._predict(request)


@pytest.fixture
def asked(monkeypatch):
    seen = []
    predict = pooled._predict

    def counting(request):
        seen.append(request)
        return predict(request)

    monkeypatch.setattr(pooled, "_predict", counting)
    return seen


def test_an_answer_holds_the_numbers_of_the_report():
    predictor = PooledPredictor()
    costs = FittedCosts(step_s=1e-4)
    got = predictor.answer(simulate(micro_batch=2, costs=costs))
    report = api.simulate("braggnn", micro_batch=2, costs=costs)
    assert got.latency == report.latency.value
    assert got.throughput == report.throughput.value
    assert got.power == report.power.value
    assert got.power_parts_w == report.power_parts_w
    assert got.compile_s == report.compile_s
    bound = predictor.answer(Request(entry="roofline", model="braggnn", options={"micro_batch": 2}))
    assert bound.throughput == api.roofline("braggnn", micro_batch=2).throughput.value
    assert math.isnan(bound.power)


def test_each_question_is_answered_once(asked):
    predictor = PooledPredictor()
    predictor.prepare([simulate(), simulate(micro_batch=2), simulate()])
    assert len(asked) == 2
    predictor.prepare([simulate()])
    predictor.answer(simulate(micro_batch=2))
    assert len(asked) == 2
    predictor.answer(simulate(micro_batch=2, tier="specification"))
    assert len(asked) == 3


def test_an_answer_is_kept_for_its_sources_and_data(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(kernel_cache, "cache_folder", lambda what: tmp_path / what)
    costly = simulate(costs=FittedCosts(step_s=1e-4))
    with program_cache.keep_programs():
        first = PooledPredictor().answer(costly)
        assert PooledPredictor().answer(costly) == first
        assert len(asked) == 1
        PooledPredictor().answer(simulate())
        PooledPredictor().answer(Request(**{**KEPT, "rewrite": Off("copy")}))
        assert len(asked) == 3
        data = shutil.copytree(data_dir(), tmp_path / "data")
        (data / "calibration.toml").write_text((data / "calibration.toml").read_text() + "\n")
        monkeypatch.setenv("IPUSIM_DATA_DIR", str(data))
        PooledPredictor().answer(costly)
        assert len(asked) == 4
    PooledPredictor().answer(costly)  # nothing is read where nothing is kept
    assert len(asked) == 5


def test_what_another_process_answers_meanwhile_is_not_made_again(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(kernel_cache, "cache_folder", lambda what: tmp_path / what)

    def requests():
        yield simulate()
        PooledPredictor().answer(simulate())  # it was asked for, and is not begun yet

    with program_cache.keep_programs():
        predictor = PooledPredictor()
        predictor.prepare(requests())
        assert len(asked) == 1
        predictor.answer(simulate())
    assert len(asked) == 1


def test_sources_that_a_request_depends_on_are_all_named():
    """Whatever the entry points load is in the digest, and so is every rewrite."""
    loaded = subprocess.run(
        [sys.executable, "-c", LOADS], capture_output=True, text=True, check=True
    ).stdout.split()
    names = {name.removeprefix("ipusim.").replace(".", "/") for name in loaded if "." in name}
    covered = (*pooled.PREDICTING, "kernel_cache.py")  # which keeps what they make
    stray = [
        name
        for name in sorted(names)
        if not any(f"{name}.py" == one or f"{name}/".startswith(f"{one}/") for one in covered)
    ]
    assert stray == []
    rewrites = f"{Off.__module__.removeprefix('ipusim.').replace('.', '/')}.py"
    assert rewrites in pooled.PREDICTING


def test_a_request_holds_nothing_that_was_published():
    allowed = set(ROWS[0].run.options()) | {"tier", "costs", "as_if_it_fits"}
    for tier in TIERS:
        assert set(request_for(ROWS[0].run, tier).options) <= allowed


def test_workers_kept_programs_and_fresh_ones_give_the_same_table(tmp_path, keep_below):
    keep_below(tmp_path)
    for remembered in (compilation._compiled, compilation._lowered, compilation._program):
        remembered.cache_clear()  # what another test lowered here is not kept again
    tables = [frame_csv(compare.verdicts(ROWS, samples=Samples())) for _ in range(2)]
    assert len(list((tmp_path / "programs").glob("*/*"))) == 2
    tables.append(frame_csv(compare.verdicts(ROWS, predictor=Forgetful(), samples=Samples())))
    tables.append(frame_csv(compare.verdicts(ROWS, samples=Samples(), jobs=2)))
    assert len(set(tables)) == 1


def test_what_a_worker_refuses_is_refused_here():
    with pytest.raises(UnknownNameError, match="braggnn"):
        PooledPredictor(2).prepare(
            [simulate(), Request(entry="simulate", model="bragnn", options={"micro_batch": 1})]
        )


def test_cores_are_counted():
    assert available_cores() >= 1
