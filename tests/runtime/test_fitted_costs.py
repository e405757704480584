"""What is fitted reaches a step as it stands in the file: no more of it and no less."""

import tomllib

import pytest

import ipusim
from ipusim.errors import DataError
from ipusim.files import data_dir
from ipusim.runtime.calibration import FittedCosts, fitted_costs, load_calibration
from ipusim.runtime.options.frameworks import FRAMEWORKS

TABLES = tomllib.loads((data_dir() / "calibration.toml").read_text())
LATENCIES = TABLES["scale_out"]


@pytest.mark.parametrize("stack", ["sdk-2.4", "sdk-3.x"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_file_is_read_as_it_stands(stack, framework):
    costs = fitted_costs(stack, framework)
    assert costs.step_s == TABLES["call_cost"][framework]["value"]
    assert costs.step_s > 0
    assert costs.run_s == TABLES["run_cost"].get(framework, {"value": 0})["value"]
    assert (costs.run_s > 0) == (framework == "pytorch")
    # None is fitted where the stack's own cost of a superstep suffices, as on sdk-3.x.
    assert costs.exchange_cycles == TABLES["superstep_cost"][stack]["value"]
    assert (costs.exchange_cycles > 0) == (stack == "sdk-2.4")
    assert costs.reduction_s == LATENCIES["reduction_latency"]["value"] > 0
    assert costs.collective_s == LATENCIES["collective_latency"]["value"] > 0


def test_a_framework_and_a_file_that_are_missing_are_named(own_data):
    with pytest.raises(DataError, match=r"no entry call_cost\.caffe: run 'ipusim calibrate'"):
        fitted_costs("sdk-2.4", "caffe")
    assert fitted_costs("sdk-1.0", "caffe").step_s == 0
    (own_data / "calibration.toml").unlink()
    with pytest.raises(DataError, match="cannot be read .*: run 'ipusim calibrate'"):
        load_calibration()


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_step_pays_each_cost_as_often_as_its_terms_say(mode):
    options = {"system": "IPU-M2000", "mode": mode, "micro_batch": 4, "framework": "tensorflow"}
    free = ipusim.simulate("braggnn", tier="specification", **options).result
    paid = ipusim.simulate("braggnn", **options).result
    line, costs = free.terms.line(), fitted_costs("sdk-2.4", "tensorflow")
    assert line.exchanges > 0
    extra = costs.step_s + line.exchanges * costs.exchange_cycles / line.clock_hz
    extra += line.reductions * costs.reduction_s + line.collectives * costs.collective_s
    assert paid.step_s - free.step_s == pytest.approx(extra, rel=1e-9)
    assert paid.parts_s["fixed"] == costs.step_s


def test_a_step_on_many_machines_pays_collectives():
    options = {"system": "IPU-POD64", "mode": "training", "micro_batch": 4, "replicas": 64}
    costs = FittedCosts(collective_s=1e-4)
    free = ipusim.simulate("braggnn", costs=FittedCosts(), **options).result
    paid = ipusim.simulate("braggnn", costs=costs, **options).result
    machines, times = 16, free.terms.line().collectives
    assert times >= machines and times % machines == 0
    assert paid.step_s - free.step_s == pytest.approx(1e-4 * times)
