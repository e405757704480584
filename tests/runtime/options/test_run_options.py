"""Options of a run, transfers with the host, and the parts of a step."""

import inspect
import itertools
import json
import math
import subprocess
import sys

import onnx
import pytest
from onnx_single_op import single
from refused import refused

import ipusim
from ipusim.api import ONNX_OPTIONS
from ipusim.compiler.stacks import load_stack, stack_names
from ipusim.errors import ConfigError, IpuSimError, UnknownNameError
from ipusim.machine import load_chip
from ipusim.runtime import calibration
from ipusim.runtime.calibration import FittedCosts
from ipusim.runtime.options.config import make_config
from ipusim.runtime.options.spec import NAME, OPTIONS

KEYS = [
    "model", "system", "chip", "cycles_per_step", "latency_s", "throughput_items_per_s", "power_w",
    "energy_per_item_j",
    "fits", "peak_tile_bytes", "used_tile_bytes", "tile_bytes", "supersteps", "interval80",
    "verdict",
]  # fmt: skip


@pytest.fixture(scope="module")
def report():
    return ipusim.simulate("resnet18", system="C2", micro_batch=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batch": 0}, "micro_batch is 0"),
        ({"micro_batch": -3}, "micro_batch is -3"),
        ({"micro_batch": "four"}, "micro_batch is 'four'"),
        ({"micro_batch": 1.5}, "micro_batch is 1.5"),
        ({"micro_batch": True}, "micro_batch is True"),
        ({"micro_batch": 10**400}, "give a whole number, 1 or more"),
        ({"replicas": 3}, "use 1 to 2"),
        ({"replicas": 0}, "replicas is 0"),
        ({"ipus_per_replica": 2, "pipeline_splits": ["conv1", "fc"]}, "give 1 splits"),
        ({"gradient_accumulation": 4}, "leave it out"),
        ({"gradient_accumulatoin": 4}, "gradient_accumulation"),
        ({"available_memory_proportion": 1.5}, "above 0 and up to 1"),
        ({"mode": "inferenc"}, "inference"),
        ({"precision": "16"}, "16.16, 16.32, 32.32"),
        ({"partials": "double"}, "half, float"),
        ({"host_dtype": "int4"}, "uint8"),
        ({"overlap_io": True, "batches_in_flight": 1}, "give 2 or more"),
        ({"io_tiles": 32}, "turn overlap_io on"),
        ({"overlap_io": True, "batches_in_flight": 2, "io_tiles": 500}, "give 1 to 192"),
        ({"instances": 3}, "instances = 3 does not divide 2 replicas"),
        ({"instances": 0}, "instances is 0"),
        ({"pipeline_splits": ["fc"]}, "give 0 splits, or ipus_per_replica = 2."),
        ({"system": "IPU-M200"}, "IPU-M2000"),
        ({"system": ""}, "Unknown system ''"),
        ({"system": []}, "Unknown system []"),
        ({"stack": "sdk-9"}, "sdk-"),
        ({"stack": ""}, "Unknown software stack ''"),
        ({"tier": "best"}, "calibrated"),
        ({"costs": FittedCosts(step_s=-1.0)}, "give 0 or more"),
        ({"costs": 3}, "costs are 3: give FittedCosts"),
        ({"tier": "specification", "costs": FittedCosts(step_s=1.0)}, "no fitted cost"),
    ],
)
def test_bad_options_get_one_sentence(options, message):
    with refused(message):
        ipusim.simulate("resnet18", **{"system": "C2", **options})


def test_docstrings_and_signatures_show_every_option():
    for function in (ipusim.sweep, ipusim.plan, ipusim.serving):
        assert set(OPTIONS) < set(inspect.signature(function).parameters)
    for function in (ipusim.simulate, ipusim.roofline):
        assert {*OPTIONS, *ONNX_OPTIONS} < set(inspect.signature(function).parameters)
        for name, option in OPTIONS.items():
            assert f"\n{name} : {option.kind.type}" in function.__doc__
            assert option.meaning.split()[0] in function.__doc__


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_a_value_of_the_wrong_kind_is_refused_by_name(option):
    if option.name in ("system", "stack"):
        expected, wrong = option.name, "?"
    else:
        expected = option.choices[0] if option.kind == NAME else f"option {option.name} is"
        wrong = "?" if option.kind == NAME else 3.5j
    with pytest.raises(IpuSimError, match=expected):
        make_config(**{"mode": "training", "phases": 2, option.name: wrong})


def test_every_option_can_be_an_axis_of_a_sweep():
    frame = ipusim.sweep(
        "mcmc_bnn",
        mode="training",
        recompute=["none", ["w1"]],
        optimizer=("sgd", "adam"),
        instances=range(1, 2),
        pipeline_splits=[None],
        system="IPU-M2000",
        progress=False,
    )
    assert len(frame) == 4
    assert list(frame["optimizer"]) == ["sgd", "adam"] * 2
    assert list(frame["recompute"]) == ["none", "none", ["w1"], ["w1"]]
    assert "system" in frame and frame["latency_ms"].nunique() > 1
    with pytest.raises(UnknownNameError, match="optimizer"):
        ipusim.sweep("mcmc_bnn", optimiser=["sgd"], progress=False)


def test_unknown_model_names_the_nearest():
    with pytest.raises(UnknownNameError, match="resnext101_32x4d"):
        ipusim.simulate("resnext101_32x4", system="C2")


def test_stack_names_match_their_quotations():
    assert set(stack_names()) >= {"sdk-1.0", "sdk-2.0", "sdk-2.4", "sdk-3.x"}
    stacks = map(load_stack, stack_names())
    assert all(found.source for stack in stacks for found in stack.constants.values())
    assert load_stack("SDK 2.4").name == "sdk-2.4"
    assert not load_stack("sdk-1.0").fold_batch_norm
    assert load_stack("sdk-2.4").fold_batch_norm


def test_a_run_of_the_device_has_the_batches_of_the_recipes_one_update_or_what_is_asked():
    for framework, batches in (("popart", 16), ("pytorch", 128), ("tensorflow", 100)):
        assert make_config(framework=framework).device_iterations == batches
        assert make_config(framework=framework, mode="training").device_iterations == 1
        assert make_config(framework=framework, device_iterations=7).device_iterations == 7


def test_the_host_runs_ahead_where_transfers_overlap():
    given = ({}, {"overlap_io": True}, {"mode": "training"})
    assert [make_config(**one).batches_in_flight for one in given] == [1, 2, 2]


def test_parts_of_a_step_add_up(report):
    result = report.result
    fixed = result.parts_s["fixed"]
    parts = result.device_s + result.io.work_s + result.io.exposed_s + fixed
    assert result.step_s == pytest.approx(max(parts, result.io.sustained_s))
    assert sum(result.parts_s.values()) == pytest.approx(result.step_s)
    assert report.parts["share_percent"].sum() == pytest.approx(100)
    assert report.throughput.value == pytest.approx(2 * 2 / result.step_s)
    assert sum(report.power_parts_w.values()) == pytest.approx(report.power.value)
    assert report.layers["cycles"].sum() == report.cycles_per_step
    assert report.trace["cycles"].sum() == report.cycles_per_step


def test_fitted_costs_are_the_only_difference_between_the_tiers():
    options = {"system": "IPU-M2000", "micro_batch": 1, "framework": "pytorch"}
    plain = ipusim.simulate("resnet18", tier="specification", **options)
    fitted = ipusim.simulate("resnet18", tier="calibrated", **options)
    costs = calibration.fitted_costs("sdk-2.4", "pytorch")
    assert costs.step_s > 0
    assert costs.exchange_cycles > 0
    exchanges = plain.result.program.exchanges
    assert 0 < exchanges < plain.supersteps
    clock_hz = load_chip("GC200").clock_hz
    cost = costs.once_s(128) + exchanges * costs.exchange_cycles / clock_hz
    assert fitted.result.step_s - plain.result.step_s == pytest.approx(cost)
    assert fitted.cycles_per_step == plain.cycles_per_step
    unknown = calibration.fitted_costs("no such stack", "pytorch")
    assert unknown.step_s == unknown.run_s == unknown.exchange_cycles == 0


def test_files_of_one_name_are_told_apart(tmp_path):
    macs = []
    for folder, channels in (("a", 4), ("b", 64)):
        path = tmp_path / folder / "model.onnx"
        path.parent.mkdir()
        weights = {"w": (channels, 3, 3, 3)}
        onnx.save(single("Conv", {"x": (1, 3, 32, 32)}, weights), path)
        macs.append(ipusim.simulate(str(path), system="C2").result.program.macs)
    assert macs[1] == 16 * macs[0]


def test_latency_is_queue_depth_times_step():
    one = ipusim.simulate("resnet18", system="IPU-M2000", micro_batch=1)
    three = ipusim.simulate("resnet18", system="IPU-M2000", micro_batch=1, batches_in_flight=3)
    assert one.latency.value == one.result.step_s
    assert three.latency.value == pytest.approx(3 * three.result.step_s)
    assert three.result.step_s <= one.result.step_s


def test_overlap_hides_transfers_behind_compute():
    options = {"system": "IPU-M2000", "micro_batch": 4, "batches_in_flight": 3}
    serial = ipusim.simulate("resnet18", **options)
    beside = ipusim.simulate("resnet18", overlap_io=True, **options)
    assert beside.result.step_s >= beside.result.device_s
    assert beside.result.io.exposed_s < serial.result.io.exposed_s
    assert beside.result.step_s < serial.result.step_s


def test_one_buffer_is_filled_after_it_was_read():
    # ResNet-18 outruns the network card: every step reads the buffer, then waits for the next fill.
    options = {"system": "IPU-M2000", "micro_batch": 32, "host_dtype": "float32", "replicas": 4}
    result = ipusim.simulate(
        "resnet18", tier="specification", batches_in_flight=2, **options
    ).result
    bytes_per_chip = 32 * 4 * 150528
    fill, read = bytes_per_chip / (12.5e9 / 4), bytes_per_chip / 8e9
    assert result.device_s < fill
    # Besides: two empty transfers, and the scores on their way back.
    assert result.step_s == pytest.approx(fill + read, rel=0.01)
    assert result.step_s > fill + read


def test_host_processes_bound_what_the_chips_get():
    options = {"system": "IPU-M2000", "micro_batch": 16, "host_dtype": "uint8", "replicas": 4}
    options |= {"overlap_io": True, "batches_in_flight": 5, "tier": "specification"}
    rates = {
        n: ipusim.simulate("resnet18", instances=n, **options).throughput.value
        for n in (None, 4, 2, 1)
    }
    # One process fills three buffers of four replicas, too much for its cache: at 12 GB/s it reads
    # every byte, and reads and writes where it goes.
    assert rates[1] == pytest.approx(12e9 / 3 / 150528)
    assert rates[2] / rates[1] > 1.5
    assert rates[4] <= rates[None]
    assert rates[4] >= rates[2]


def test_a_batch_that_stays_in_the_cache_is_copied_faster():
    options = {"system": "IPU-M2000", "host_dtype": "uint8", "replicas": 1, "instances": 1}
    work = {
        n: ipusim.simulate("resnet18", micro_batch=n, **options).result.io.work_s / n
        for n in (1, 111, 112)
    }
    # 111 images are the last that fit into 16 MiB.
    assert work[1] == pytest.approx(2 * 150528 / 12e9)
    assert work[111] == pytest.approx(work[1])
    assert work[112] == pytest.approx(1.5 * work[1])


def test_one_batch_in_flight_waits_for_its_own_copy():
    options = {"system": "IPU-M2000", "micro_batch": 2, "host_dtype": "uint8", "replicas": 4}
    steps = {n: ipusim.simulate("resnet18", instances=n, **options).result for n in (None, 4, 2)}
    once = 2 * 2 * 150528 / 12e9
    assert steps[None].io.work_s == 0
    # The other replica of a process asks at another time, so its copy is not waited for.
    for n in (4, 2):
        assert steps[n].io.work_s == pytest.approx(once)
        assert steps[n].step_s - steps[None].step_s == pytest.approx(once)
    # ... but one process cannot copy more than one batch at a time.
    assert steps[2].io.sustained_s == pytest.approx(2 * once)


@pytest.mark.parametrize("overlap", [False, True])
def test_what_the_host_rearranges_is_waited_for_whether_or_not_transfers_overlap(overlap):
    options = {
        "system": "IPU-M2000",
        "micro_batch": 2,
        "host_dtype": "uint8",
        "overlap_io": overlap,
    }
    none, slow, sourced = (
        ipusim.simulate("resnet18", tier="specification", **options, **more).result
        for more in ({}, {"rearrange_on_host": True}, {"rearrange_on_host": True, "adopted": False})
    )
    # Two images and two rows of scores, each element by itself.
    moved = 2 * (3 * 224 * 224 + 1000) / 3.67e9
    assert slow.parts_s["host work"] == pytest.approx(moved)
    assert slow.step_s - none.step_s == pytest.approx(moved)
    assert sourced.io.rearranged_s < 1e-9


def test_work_between_runs_keeps_the_device_waiting_but_not_a_request():
    options = {"system": "IPU-M2000", "micro_batch": 2, "replicas": 4, "instances": 2}
    none = ipusim.simulate("resnet18", **options).result
    slow = ipusim.simulate("resnet18", serial_item_s=1e-3, **options).result
    # A process has the items of two replicas to work through.
    assert slow.parts_s["host between runs"] == pytest.approx(4e-3)
    assert slow.step_s - none.step_s == pytest.approx(4e-3)
    assert slow.latency_s == none.latency_s
    assert sum(slow.parts_s.values()) == pytest.approx(slow.step_s)
    with pytest.raises(ConfigError, match="give instances too"):
        ipusim.simulate("resnet18", serial_item_s=1e-3)


def test_a_loader_bounds_the_rate_beside_the_device():
    options = {"system": "IPU-M2000", "micro_batch": 2, "replicas": 4, "instances": 2}
    none, quick, slow = (
        ipusim.simulate("resnet18", tier="specification", loader_item_s=item_s, **options).result
        for item_s in (None, 1e-6, 1e-3)
    )
    # A process loads the items of two replicas while these compute.
    assert quick.step_s == none.step_s < 4e-3
    assert slow.step_s == pytest.approx(4e-3)
    assert slow.throughput_items_per_s == pytest.approx(2 / 1e-3)
    assert slow.parts_s["waiting for the host"] == pytest.approx(4e-3 - none.step_s)
    with pytest.raises(ConfigError, match="loader_item_s = 0.001"):
        ipusim.simulate("resnet18", loader_item_s=1e-3)


def test_bytes_from_the_host_follow_the_host_type():
    sizes = {
        kind: ipusim.simulate(
            "resnet18", system="IPU-M2000", micro_batch=1, host_dtype=kind
        ).result.io.input_bytes
        for kind in ("uint8", "float16", "float32")
    }
    assert sizes == {"uint8": 150528, "float16": 2 * 150528, "float32": 4 * 150528}


def test_convolutions_may_have_partials_of_their_own():
    options = {"system": "IPU-M2000", "micro_batch": 4, "partials": "half"}
    both, apart, full = (
        ipusim.simulate("resnet18", **options | more).layers.set_index("op")
        for more in ({}, {"convolution_partials": "float"}, {"partials": "float"})
    )
    convolutions = both["kind"] == "conv"
    assert (apart["cycles"][convolutions] == full["cycles"][convolutions]).all()
    assert apart["cycles"][convolutions].sum() > both["cycles"][convolutions].sum()
    assert apart.loc["fc", "cycles"] == both.loc["fc", "cycles"] < full.loc["fc", "cycles"]


def test_half_partials_and_more_chips_help():
    options = {"system": "IPU-M2000", "micro_batch": 4}
    half = ipusim.simulate("resnet50", partials="half", **options)
    full = ipusim.simulate("resnet50", partials="float", **options)
    assert half.cycles_per_step < full.cycles_per_step
    rates = [ipusim.simulate("resnet50", replicas=n, **options).throughput.value for n in (1, 2, 4)]
    assert rates[0] < rates[1] < rates[2]


def test_json_keys_are_stable(report):
    assert list(report.to_dict()) == KEYS
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()


def test_what_does_not_fit_is_profiled_all_the_same():
    big = ipusim.simulate("resnet50", system="C2", micro_batch=64)
    memory = big.result.memory
    assert not big.fits
    assert memory.over_bytes == big.peak_tile_bytes - big.tile_bytes > 0
    assert memory.peak_tiles > 0 and memory.peak_op
    first = repr(big).splitlines()[0]
    assert f"does not fit: {memory.over_bytes:,} B too many" in first
    assert "ipusim plan resnet50 --system C2" in first
    share = memory.over_bytes / memory.tile_bytes
    assert calibration.calibration().ran.verdict(share) in first
    assert big.held()["what"][0] in first and big.held()["bytes"].sum() == big.used_tile_bytes
    assert len(big.layers) and len(big.memory)


def test_what_does_not_fit_has_no_rates_unless_asked():
    options = {"system": "C2", "micro_batch": 64}
    big = ipusim.simulate("resnet50", **options)
    for estimate in (big.latency, big.throughput, big.power):
        assert math.isnan(estimate.value) and estimate.low80 is None
    assert big.to_dict()["latency_s"] is None
    assert "items/s" not in repr(big) and "latency" not in repr(big)
    as_if = ipusim.simulate("resnet50", **options, as_if_it_fits=True)
    assert as_if.latency.value == big.result.latency_s > 0
    assert as_if.verdict == big.verdict and not as_if.fits


def test_more_items_never_take_less_time_or_memory():
    reports = [
        ipusim.simulate("resnet18", system="IPU-M2000", micro_batch=size) for size in (1, 2, 4, 8)
    ]
    for one, two in itertools.pairwise(reports):
        assert two.cycles_per_step > one.cycles_per_step
        assert two.throughput.value > one.throughput.value
        assert two.result.memory.total_bytes > one.result.memory.total_bytes


def test_sweep_is_tidy_and_repr_has_everything(report):
    frame = ipusim.sweep("resnet18", system=["C2", "IPU-M2000"], micro_batch=[1, 2], progress=False)
    assert len(frame) == 4
    assert {"system", "micro_batch", "latency_ms", "throughput_items_per_s"} <= set(frame.columns)
    assert "<table" in report._repr_html_()
    for word in ("latency", "throughput", "power", "fits", "phases"):
        assert word in repr(report)


def test_a_fresh_process_gives_the_same_bytes(report):
    code = (
        "import ipusim, json; r = ipusim.simulate('resnet18', system='C2', micro_batch=2);"
        "print(json.dumps(r.to_dict())); print(r.layers.to_csv(), end='')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == json.dumps(report.to_dict()) + "\n" + report.layers.to_csv()


def test_defaults_come_from_system_and_stack():
    config = make_config(system="c2")
    assert (config.system.name, config.stack.name, config.replicas) == ("C2", "sdk-1.0", 2)
    assert make_config(system="c2", adopted=None) == config
    for wrong in (0, 0.5, float("nan"), float("inf"), True, "two"):
        with pytest.raises(ConfigError, match="a number, 1 or more"):
            make_config(system="C2", batches_in_flight=wrong)


def test_latency_takes_the_mean_depth_of_a_call():
    options = {"system": "IPU-M2000", "micro_batch": 1}
    two, mean = (
        ipusim.simulate("resnet18", batches_in_flight=depth, **options) for depth in (2, 1.8)
    )
    assert mean.result.step_s == two.result.step_s
    assert mean.latency.value / two.latency.value == pytest.approx(0.9)


def test_float8_is_faster_and_smaller_where_the_chip_has_it():
    """A product of 4,096 rows: twice the work of AMP in a cycle, half the bytes of its weights."""
    product = single("MatMul", {"x": ["batch", 1024]}, {"w": [1024, 1024]})
    options = {"system": "C600", "micro_batch": 4096}
    half, small = (ipusim.simulate(product, precision=p, **options) for p in ("16.16", "float8"))
    cycles = [
        run.layers[run.layers["kind"] == "matmul"]["compute_cycles"].sum() for run in (half, small)
    ]
    assert 1.6 < cycles[0] / cycles[1] < 2.1
    assert small.cycles_per_step < half.cycles_per_step
    assert (small.layers["kind"] == "cast").sum() == 1


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"system": "IPU-M2000"}, "GC200 has none"),
        ({"system": "C600", "mode": "training"}, "no backward pass through it"),
        ({"system": "C600", "partials": "float"}, "partial sums are half"),
    ],
)
def test_float8_is_refused_in_one_sentence_elsewhere(given, reason):
    with pytest.raises(ConfigError, match=f"precision is 'float8', but .*{reason}"):
        make_config(precision="float8", **given)
