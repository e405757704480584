"""A predictor that remembers: the same numbers, each made once, in whatever process."""

from __future__ import annotations

import math

import pytest

from ipusim import api
from ipusim.compiler import program_cache
from ipusim.errors import UnknownNameError
from ipusim.runtime import compile as compilation
from ipusim.runtime.calibration import FittedCosts
from ipusim.study import cached as pooled
from ipusim.study.book.outputs import frame_csv
from ipusim.study.cached import PooledPredictor, available_cores
from ipusim.study.data.published import load_row
from ipusim.study.predict import TIERS, Request, request_for
from ipusim.study.verdicts import compare
from ipusim.study.verdicts.compare import Samples

ROWS = [load_row(f"results.inference.{number}") for number in ("049", "058", "058.latency")]


def simulate(**options):
    return Request(entry="simulate", model="braggnn", options={"micro_batch": 1} | options)


@pytest.fixture
def asked(monkeypatch):
    seen = []
    answer = pooled._answer

    def counting(request):
        seen.append(request)
        return answer(request)

    monkeypatch.setattr(pooled, "_answer", counting)
    return seen


def test_an_answer_holds_the_numbers_of_the_report():
    predictor = PooledPredictor()
    costs = FittedCosts(step_s=1e-4)
    got = predictor.simulate("braggnn", micro_batch=2, costs=costs)
    report = api.simulate("braggnn", micro_batch=2, costs=costs)
    assert got.latency == report.latency.value
    assert got.throughput == report.throughput.value
    assert got.power == report.power.value
    assert got.power_parts_w == report.power_parts_w
    assert got.compile_s == report.compile_s
    bound = predictor.roofline("braggnn", micro_batch=2)
    assert bound.throughput == api.roofline("braggnn", micro_batch=2).throughput.value
    assert math.isnan(bound.power)


def test_each_question_is_answered_once(asked):
    predictor = PooledPredictor()
    predictor.prepare([simulate(), simulate(micro_batch=2), simulate()])
    assert len(asked) == 2
    predictor.prepare([simulate()])
    predictor.simulate("braggnn", micro_batch=2)
    assert len(asked) == 2
    predictor.simulate("braggnn", micro_batch=2, tier="specification")
    assert len(asked) == 3


def test_a_request_holds_nothing_that_was_published():
    allowed = set(ROWS[0].run.options()) | {"tier", "costs"}
    for tier in TIERS:
        assert set(request_for(ROWS[0].run, tier).options) <= allowed


def test_workers_kept_programs_and_fresh_ones_give_the_same_table(tmp_path, monkeypatch):
    monkeypatch.setattr(program_cache, "_folder", lambda: tmp_path / "programs" / "digest")
    compilation._compiled.cache_clear()  # what another test lowered here is not kept again
    tables = [frame_csv(compare.verdicts(ROWS, samples=Samples())) for _ in range(2)]
    assert len(list((tmp_path / "programs" / "digest").iterdir())) == 2
    tables.append(frame_csv(compare.verdicts(ROWS, predictor=api, samples=Samples())))
    tables.append(frame_csv(compare.verdicts(ROWS, samples=Samples(), jobs=2)))
    assert len(set(tables)) == 1


def test_what_a_worker_refuses_is_refused_here():
    with pytest.raises(UnknownNameError, match="braggnn"):
        PooledPredictor(2).prepare(
            [simulate(), Request(entry="simulate", model="bragnn", options={"micro_batch": 1})]
        )


def test_cores_are_counted():
    assert available_cores() >= 1
