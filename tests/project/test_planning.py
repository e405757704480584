"""The search for a way to run a model, and the lines that it hands out."""

import shlex

import pytest
from click.testing import CliRunner
from onnx import helper
from onnx_single_op import make_model

import ipusim
from ipusim import planning
from ipusim.cli import cli
from ipusim.errors import ConfigError, IpuSimError
from ipusim.report import advice
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model


def _dense(micro_batch, width, layers):
    g = GraphBuilder("dense")
    x = g.input("x", (micro_batch or 1, width))
    for index in range(layers):
        x = g.elementwise(f"relu{index}", "relu", g.linear(f"fc{index}", x, width))
    return g.finish(x)


SMALL = Model(name="small", family="test", build=lambda n: _dense(n, 256, 4), loss="mean_squared")
WIDE = Model(name="wide", family="test", build=lambda n: _dense(n, 16384, 3), loss="mean_squared")


@pytest.fixture(scope="module")
def trained():
    return ipusim.plan(SMALL, system="IPU-M2000", mode="training", global_batch=24)


def test_every_way_fits_and_has_the_global_batch(trained):
    frame = trained.frame
    accumulation = frame.get("gradient_accumulation", 1)
    assert (frame["micro_batch"] * frame["replicas"] * accumulation == 24).all()
    assert frame["tile_percent"].between(0, 100).all()
    assert frame["chips"].max() <= 4


def test_no_way_of_the_front_is_beaten(trained):
    for one in trained.pareto.itertuples():
        for other in trained.pareto.itertuples():
            beats = (
                other.chips <= one.chips
                and other.latency_ms <= one.latency_ms
                and other.throughput_items_per_s > one.throughput_items_per_s
            )
            assert not beats
    assert trained.best["throughput_items_per_s"] == trained.frame["throughput_items_per_s"].max()
    assert trained.figure().axes[0].get_xlabel() == "step, ms"


def test_the_same_question_has_the_same_answer(trained):
    again = ipusim.plan(SMALL, system="IPU-M2000", mode="training", global_batch=24)
    assert again.frame.equals(trained.frame)


@pytest.mark.parametrize(("rows", "sizes"), [(["n"], {2, 4, 8}), ([4], {2, 4, 8}), ([4, 6], {1})])
def test_micro_batches_of_a_file_are_searched_where_it_has_them(rows, sizes):
    inputs = {f"x{place}": [size, 64] for place, size in enumerate(rows)}
    nodes = [helper.make_node("MatMul", [x, "w"], [f"y{x}"]) for x in inputs]
    file = make_model(nodes, inputs, [node.output[0] for node in nodes], {"w": [64, 64]})
    batch = 8 if len(rows) == 1 else None
    found = ipusim.plan(ipusim.from_onnx(file), system="IPU-M2000", global_batch=batch)
    assert set(found.frame["micro_batch"]) == sizes


def test_too_large_for_a_chip_is_cut_or_loaded_in_phases():
    found = ipusim.plan(WIDE, system="IPU-M2000", micro_batch=1)
    chips = found.frame["chips"]
    assert chips.min() == 1 and found.frame.loc[chips == 1, "phases"].notna().all()
    assert (found.frame.loc[found.frame["phases"].isna(), "ipus_per_replica"] > 1).all()


def test_what_cannot_fit_is_refused_in_one_sentence():
    huge = Model(name="huge", family="test", build=lambda n: _dense(n, 65536, 3))
    with pytest.raises(ConfigError, match=r"needs at least .* GB") as caught:
        ipusim.plan(huge, system="C2")
    assert "\n" not in str(caught.value)
    for options in ({"global_batch": 0}, {"system": "C3"}, {"speed": 2}):
        with pytest.raises(IpuSimError):
            ipusim.plan(SMALL, **options)


@pytest.mark.parametrize("batch", [0, -1, True, 2.0, "x", 10**12 + 1])
def test_a_global_batch_out_of_range_is_refused(batch):
    with pytest.raises(ConfigError, match="global_batch is .*: give a whole number from 1 to"):
        ipusim.plan("uno", global_batch=batch)


def test_a_global_batch_that_the_options_cannot_make_is_said():
    with pytest.raises(ConfigError, match="makes a global batch of 7: choose another batch"):
        ipusim.plan("uno", global_batch=7, micro_batch=2, progress=False)


@pytest.mark.parametrize(
    ("number", "sizes"),
    [(1, [1]), (12, [1, 2, 3, 6, 12]), (49, [1, 7, 49]), (10**12 - 11, [1, 10**12 - 11])],
)
def test_divisors_are_spaced(number, sizes):
    assert planning._spaced_divisors(number) == sizes


def test_the_lines_really_run():
    done = CliRunner().invoke(cli, ["plan", "uno", "--system", "C2", "--global-batch", "16"])
    assert done.exit_code == 0, done.output
    lines = [line.split(": ", 1)[1] for line in done.output.splitlines() if ": ipusim " in line]
    assert lines
    for line in lines[:2]:
        ran = CliRunner().invoke(cli, shlex.split(line)[1:])
        assert ran.exit_code == 0, ran.output


def test_a_line_names_what_is_no_default():
    asked = {
        "model": "my net.onnx",
        "system": "IPU-M2000",
        "micro_batch": 2,
        "overlap_io": True,
        "pipeline_splits": ("a", "b"),
        "shapes": {"x": (1, 3)},
        "dims": {"t": 128},
    }
    assert advice.command("simulate", asked) == (
        "ipusim simulate 'my net.onnx' --micro-batch 2 --overlap-io --pipeline-splits a "
        "--pipeline-splits b --shape x=1,3 --dim t=128"
    )
    assert advice.python("simulate", {"model": "uno", "micro_batch": 2}) == (
        "ipusim.simulate('uno', micro_batch=2)"
    )
