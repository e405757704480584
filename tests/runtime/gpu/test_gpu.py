"""The GPU model: its constants, its kernels, its steps, and what it refuses."""

from dataclasses import replace
from itertools import pairwise
from math import prod

import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx_single_op import single
from refused import refused

from ipusim import machine
from ipusim.errors import ConfigError, DataError, UnknownNameError, WorkloadError
from ipusim.machine import constants as catalogue
from ipusim.machine.gpu import Gpu, GpuNode
from ipusim.runtime.gpu import roofline as gpu_roofline
from ipusim.runtime.gpu.kernels import GpuStack, step_kernels
from ipusim.runtime.gpu.roofline import device_time, matmul_s
from ipusim.runtime.gpu.step import (
    BUCKET_BYTES,
    exposed_all_reduce_s,
    ring_all_reduce_s,
    simulate_gpu,
)
from ipusim.workload import zoo
from ipusim.workload.layers import GraphBuilder

A100 = machine.load(Gpu, "A100 SXM 40GB")
STACK = machine.load(GpuStack, "pytorch-21")


def kernels(name="resnet50", batch=8, stack=STACK, mode="training", precision="mixed"):
    graph = zoo.load(name).graph(micro_batch=batch)
    return step_kernels(graph, stack, mode=mode, precision=precision)


# Peaks that follow from the unit counts: multiprocessors x operations per cycle x boost clock.
@pytest.mark.parametrize(
    ("name", "fp32_lanes", "tensor_macs"),
    [
        ("T4", 64, 512),
        ("RTX 6000", 64, 512),
        ("V100 PCIe 16GB", 64, 512),
        ("V100 SXM2 16GB", 64, 512),
        ("V100 SXM2 32GB", 64, 512),
        ("V100 SXM3 32GB", 64, 512),
        ("A100 PCIe 40GB", 64, 1024),
        ("A100 PCIe 80GB", 64, 1024),
        ("A100 SXM 40GB", 64, 1024),
        ("A100 SXM 80GB", 64, 1024),
    ],
)
def test_peaks_follow_from_the_units(name, fp32_lanes, tensor_macs):
    gpu = machine.load(Gpu, name)
    cycles = gpu.sms * gpu.boost_hz
    assert gpu.fp32_flops_per_s == pytest.approx(2 * fp32_lanes * cycles, rel=0.02)
    assert gpu.fp16_tensor_flops_per_s == pytest.approx(2 * tensor_macs * cycles, rel=0.02)
    assert gpu.tf32_tensor_flops_per_s in (0.0, gpu.fp16_tensor_flops_per_s / 2)


def test_every_gpu_is_listed_with_sources():
    assert set(machine.names(Gpu)) >= {"T4", "RTX 6000", "A100 SXM 80GB", "V100 SXM2 16GB"}
    table = machine.hardware_table()
    gpus = table[table["file"].isin(["hardware/gpus.toml", "hardware/gpu_nodes.toml"])]
    assert set(gpus["subject"]) == {*machine.names(Gpu), *machine.names(GpuNode)}
    assert (gpus["source"].str.len() > 10).all()
    assert set(gpus["label"]) <= set(catalogue.LABELS)
    recalled = gpus[gpus["label"] == "recalled"]
    assert "l2_bytes_per_cycle" in set(recalled["name"])


@pytest.mark.parametrize("name", machine.names(Gpu))
def test_board_is_consistent(name):
    gpu = machine.load(Gpu, name)
    for share in (gpu.tensor_efficiency, gpu.fp32_efficiency, gpu.memory_efficiency):
        assert 0.3 < share < 1
    assert gpu.copy_bytes_per_s < gpu.memory_bytes_per_s
    assert gpu.matmul_flops_per_s("mixed") > gpu.matmul_flops_per_s("fp32")
    assert gpu == machine.load(Gpu, name.lower().replace(" ", "-"))
    assert hash(gpu) == hash(machine.load(Gpu, name))


@pytest.mark.parametrize(
    ("name", "gpu", "gpus", "tdp_w"),
    [
        ("DGX A100", "A100 SXM 40GB", 8, 6500),  # as TAMU quotes it
        ("Grace A100", "A100 PCIe 40GB", 2, 500),
        ("LoneStar6", "A100 PCIe 40GB", 3, 750),
        ("Expanse", "V100 SXM2 32GB", 4, 1200),
        ("Grace T4", "T4", 4, 280),
        ("Grace RTX 6000", "RTX 6000", 2, 590),
    ],
)
def test_machines_of_the_tamu_study(name, gpu, gpus, tdp_w):
    node = machine.load(GpuNode, name)
    assert (node.gpu.name, node.gpus, node.tdp_w) == (gpu, gpus, tdp_w)


def test_stacks_say_where_they_come_from():
    for name in machine.names(GpuStack):
        stack = machine.load(GpuStack, name)
        sources = [found.source for found in stack.constants.values()]
        assert all(source.startswith(("[S]", "[A]")) for source in sources)
    assert machine.load(GpuStack, "PyTorch 21.11").name == "pytorch-21"


# --- kernels -----------------------------------------------------------------------------------


def product_macs(found, phase):
    return sum(
        prod((item.m, item.n, item.k, item.groups)) + item.scalar_macs
        for item in found
        if item.phase == phase
    )


@pytest.mark.parametrize(
    "name", ["resnet50", "resnext101_32x4d", "efficientnet_b0", "bert_base_squad"]
)
def test_training_counts_two_gradients_of_every_product(name):
    graph = zoo.load(name).graph(micro_batch=2)
    found = step_kernels(graph, STACK, mode="training", precision="mixed")
    assert product_macs(found, "forward") == graph.macs
    # no data gradient of the first convolution; positions of strided ones are rounded down
    assert 1.9 * graph.macs < product_macs(found, "backward") <= 2 * graph.macs


def test_a_recurrent_layer_sends_its_state_back_step_by_step():
    g = GraphBuilder("recurrent")
    graph = g.finish(g.recurrent("lstm", g.input("x", (7, 2, 24)), 40))
    found = step_kernels(graph, STACK, mode="training", precision="mixed")
    for phase, whole in (("forward", 1), ("backward", 3)):
        products = [item for item in found if item.m and item.phase == phase]
        assert len(products) == whole + 7
    assert product_macs(found, "forward") == graph.macs
    assert product_macs(found, "backward") == 2 * graph.macs


def test_inference_has_no_gradients_and_no_update():
    assert {item.phase for item in kernels(mode="inference")} == {"forward"}
    assert {item.phase for item in kernels()} == {"forward", "backward", "update"}


def test_fusion_layout_and_casts_follow_the_stack():
    plain = kernels(precision="tf32", stack=replace(STACK, transposed_precisions=()))
    turned = kernels(precision="tf32", stack=replace(STACK, transposed_precisions=("tf32",)))
    fused = kernels(stack=replace(STACK, fused_precisions=("mixed",)))
    uncast = kernels(stack=replace(STACK, casts_weights=False))
    moved = [sum(item.bytes for item in found) for found in (plain, turned)]
    assert 1.3 * moved[0] < moved[1] < 2.5 * moved[0]
    assert sum(item.count for item in plain) == sum(item.count for item in turned)
    started = [sum(item.count for item in found) for found in (fused, kernels(), uncast)]
    assert started[0] < started[1]
    assert started[1] - started[2] == 54  # 53 convolutions and one product
    assert sum(item.bytes for item in fused) < sum(item.bytes for item in kernels())


def test_reductions_of_their_own_read_again():
    composed = replace(STACK, kernel_per_reduction=True)
    passes = {}
    for stack in (STACK, composed):
        for item in kernels("bert_base_squad", 1, stack=stack):
            if item.op.endswith((".softmax", ".norm")):
                passes[stack, item.op.rsplit(".")[-1], item.phase] = item.bytes
    for kind, phase, factor in (
        ("softmax", "forward", 4 / 2),
        ("softmax", "backward", 5 / 3),
        ("norm", "forward", 4 / 2),
        ("norm", "backward", 7 / 5),
    ):
        ratio = passes[composed, kind, phase] / passes[STACK, kind, phase]
        assert ratio == pytest.approx(factor)


def test_dropout_runs_in_training_only():
    names = {item.op for item in kernels("bert_base_squad", 1, mode="inference")}
    assert not any("dropout" in name for name in names)
    assert any("dropout" in item.op for item in kernels("bert_base_squad", 1))


# --- roofline ----------------------------------------------------------------------------------

BOARD = replace(
    A100,
    sms=4,
    boost_hz=10**6,
    fp16_tensor_flops_per_s=4e9,
    tensor_efficiency=1.0,
    l2_bytes_per_cycle=10**9,
    memory_bytes_per_s=1e15,
    memory_efficiency=1.0,
)


def test_a_last_wave_costs_as_much_as_a_full_one():
    exact = matmul_s(4 * 256, 128, 32, 1, BOARD, "mixed")
    assert exact == pytest.approx(2 * 4 * 256 * 128 * 32 / 4e9)
    one_more = matmul_s(4 * 256 + 1, 128, 32, 1, BOARD, "mixed")
    assert one_more > 1.1 * exact
    assert matmul_s(4 * 256 + 64, 128, 32, 1, BOARD, "mixed") == one_more


def test_narrow_results_waste_their_tile():
    assert matmul_s(256, 4, 64, 1, BOARD, "mixed") == matmul_s(256, 64, 64, 1, BOARD, "mixed")


def test_deep_products_are_split():
    flops = 2 * 64 * 64 * 65536
    split = matmul_s(64, 64, 65536, 1, BOARD, "mixed")
    assert split == pytest.approx(flops / 4e9, rel=0.01)
    assert matmul_s(64, 64, 64, 1, BOARD, "mixed") == pytest.approx(2 * 64**3 / 1e9)


def test_operands_come_from_the_level_2_cache():
    starved = matmul_s(1024, 1024, 64, 1, replace(BOARD, l2_bytes_per_cycle=1), "mixed")
    tiles, loaded = 1024 * 1024 // (256 * 128), (256 + 128) * 2 * 64
    assert starved == pytest.approx(tiles * loaded / 1e6)


@given(
    m=st.integers(1, 4096),
    n=st.integers(1, 4096),
    k=st.integers(1, 4096),
    groups=st.integers(1, 64),
)
@settings(max_examples=60)
def test_products_never_beat_the_peak(m, n, k, groups):
    seconds = matmul_s(m, n, k, groups, BOARD, "mixed")
    assert seconds >= 2 * m * n * k * groups / 4e9 * (1 - 1e-9)


@given(
    field=st.sampled_from(
        ["memory_bytes_per_s", "fp16_tensor_flops_per_s", "fp32_flops_per_s", "l2_bytes_per_cycle"]
    ),
    factor=st.integers(2, 8),
    name=st.sampled_from(["resnet50", "efficientnet_b0", "bert_base_squad"]),
)
@settings(max_examples=15)
def test_a_better_board_is_never_slower(field, factor, name):
    found = kernels(name, 4)
    better = replace(A100, **{field: factor * getattr(A100, field)})
    assert device_time(found, better, "mixed").total_s <= device_time(found, A100, "mixed").total_s


@pytest.mark.parametrize("name", ["resnet50", "resnext101_32x4d", "efficientnet_b4"])
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_larger_batches_never_lower_the_throughput(name, mode):
    rates = [
        simulate_gpu(name, "V100 SXM2 16GB", batch=batch, mode=mode).throughput
        for batch in (1, 2, 4, 8, 16, 32, 64)
    ]
    # a last wave that is hardly filled may cost a little
    assert all(after > 0.98 * before for before, after in pairwise(rates))
    assert rates[-1] > 2 * rates[0]


def test_winograd_helps_float32_only():
    dense = next(item for item in kernels(precision="fp32") if item.winograd)
    plain = replace(dense, winograd=False)
    fp32 = [gpu_roofline.kernel_s(item, A100, "fp32")[0] for item in (dense, plain)]
    assert fp32[1] / fp32[0] == pytest.approx(2.25)
    mixed = [gpu_roofline.kernel_s(item, A100, "mixed")[0] for item in (dense, plain)]
    assert mixed[0] == mixed[1]


# --- all-reduce --------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [2, 3, 4, 8])
def test_ring_all_reduce(gpus):
    size = 1e8
    expected = 2 * (gpus - 1) / gpus * size / A100.all_reduce_bytes_per_s
    expected += 2 * (gpus - 1) * A100.all_reduce_hop_s
    assert ring_all_reduce_s(size, gpus, A100) == pytest.approx(expected)
    assert ring_all_reduce_s(size, 1, A100) == 0


def test_the_last_bucket_is_never_hidden():
    size = 4 * BUCKET_BYTES
    bucket = ring_all_reduce_s(BUCKET_BYTES, 8, A100)
    hidden = exposed_all_reduce_s(size, 8, A100, backward_s=1.0, overlapped=True)
    assert hidden == pytest.approx(bucket)
    short = exposed_all_reduce_s(size, 8, A100, backward_s=bucket, overlapped=True)
    assert short == pytest.approx(bucket + 2 * bucket)
    bare = exposed_all_reduce_s(size, 8, A100, backward_s=1.0, overlapped=False)
    assert bare == pytest.approx(4 * bucket)
    assert exposed_all_reduce_s(size, 1, A100, backward_s=1.0, overlapped=True) == 0


def test_only_training_reduces_gradients():
    trained = simulate_gpu("resnet50", "Grace A100", gpus=2, batch=32)
    alone = simulate_gpu("resnet50", "A100 PCIe 40GB", gpus=1, batch=32)
    reduced = trained.parts["all_reduce"]
    assert reduced > 0 == alone.parts["all_reduce"]
    assert trained.step_s == pytest.approx(alone.step_s + reduced)
    inferred = simulate_gpu("resnet50", "Grace A100", gpus=2, batch=32, mode="inference")
    assert inferred.parts["all_reduce"] == 0


# --- reports and errors ------------------------------------------------------------------------


def test_report_adds_up():
    report = simulate_gpu("resnet50", "DGX A100", gpus=8, batch=64, framework="TensorFlow")
    assert sum(report.parts.values()) == pytest.approx(report.step_s)
    assert report.throughput == pytest.approx(8 * 64 / report.step_s)
    assert report.tdp_w == 8 * 400
    assert (report.gpu, report.stack) == ("A100 SXM 40GB", "tf1-20.06-xla")
    assert "items/s" in str(report)
    free = simulate_gpu("resnet50", batch=1, mode="inference", op_s=0.0)
    slow = simulate_gpu("resnet50", batch=1, mode="inference", op_s=1e-4)
    assert slow.step_s - free.step_s == pytest.approx(free.host_ops * 1e-4)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gpu": "A100 SXM 90GB"}, UnknownNameError, "did you mean 'A100 SXM"),
        ({"gpu": "DGX A10"}, UnknownNameError, "did you mean 'DGX A100'"),
        ({"gpus": 9}, ConfigError, "from 1 to 8"),
        ({"gpus": 0}, ConfigError, "from 1 to 8"),
        ({"gpus": 2.0}, ConfigError, "whole number"),
        ({"gpus": 3, "gpu": "Grace A100"}, ConfigError, "from 1 to 2 on Grace A100"),
        ({"batch": 0}, ConfigError, "1 or more"),
        ({"mode": "train"}, UnknownNameError, "did you mean 'training'"),
        ({"precision": "int8"}, UnknownNameError, "mixed, tf32, fp32"),
        ({"precision": "tf32", "gpu": "T4"}, ConfigError, "mixed, fp32"),
        ({"framework": "pytorsh-21"}, UnknownNameError, "did you mean 'pytorch-21'"),
        ({"optimizer": "adm"}, UnknownNameError, "did you mean 'adam'"),
        ({"op_s": -1.0}, ConfigError, "from 0 to 1"),
        ({"model": "resnet51"}, UnknownNameError, "did you mean 'resnet"),
    ],
)
def test_bad_input_is_one_sentence(options, error, message):
    arguments = {"model": "resnet50", "batch": 1, **options}
    with refused(message, error):
        simulate_gpu(**arguments)


def test_a_training_graph_is_refused():
    graph = zoo.load("resnet18").graph(micro_batch=1)
    done = replace(graph, ops=(replace(graph.ops[0], phase="backward"), *graph.ops[1:]))
    with pytest.raises(WorkloadError, match="forward graph"):
        step_kernels(done, STACK, mode="training", precision="mixed")


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("[gpu_kernel_cost.", "[gpu_kernels.", "is damaged .'gpu_kernel_cost'"),
        ('pytorch-21"]\nvalue = ', 'pytorch-21"]\nvalue = -', "pytorch-21 .* not a number from 0"),
        ('pytorch-21"]', 'pytorch-21"', "is damaged"),
    ],
)
def test_damaged_calibration_is_named(right, wrong, message, own_data):
    path = own_data / "calibration.toml"
    path.write_text(path.read_text().replace(right, wrong))
    with pytest.raises(DataError, match=message):
        simulate_gpu("resnet18", batch=1)


def test_an_unknown_precision_of_a_stack_is_named(own_data):
    path = own_data / "gpu" / "stacks.toml"
    path.write_text(path.read_text().replace('"tf32"', '"tf23"'))
    with pytest.raises(DataError, match="precisions' .* names 'tf23': use mixed, tf32, fp32"):
        for name in machine.names(GpuStack):
            machine.load(GpuStack, name)


def test_lookups_and_sums_of_groups_move_every_table():
    g = GraphBuilder("groups")
    x = g.input("x", (6, 20), "float32")
    rows = g.reshape("rows", g.linear("dense", x, 40), (6, 5, 8))
    indices = g.input("indices", (6, 7), "int32")
    looked_up = g.gather("lookup", rows, indices)
    graph = g.finish(g.scatter_add("add", looked_up, indices, 5))
    found = {
        (k.op, k.phase): k.bytes
        for k in step_kernels(graph, STACK, mode="training", precision="mixed")
        if k.op in ("lookup", "add")
    }
    copied, added = 2 * 6 * 7 * 8, 2 * 6 * 5 * 8 + 3 * 6 * 7 * 8
    assert found["lookup", "forward"] == found["add", "backward"] == 2 * copied
    assert found["lookup", "backward"] == found["add", "forward"] == 2 * added


def test_newer_boards_are_marked_and_an_onnx_file_runs(tmp_path):
    old, new = (simulate_gpu("resnet18", name, batch=64) for name in ("A100 SXM 80GB", "H100"))
    assert new.throughput > old.throughput
    assert not old.note and "outside the fitted range" in str(new)
    assert new.energy_per_item_j == pytest.approx(700 / new.throughput)
    assert new.price_per_item(3.6) == pytest.approx(1e-3 / new.throughput)
    path = tmp_path / "conv.onnx"
    onnx.save(single("Conv", {"x": (1, 3, 32, 32)}, {"w": (8, 3, 3, 3)}), path)
    assert simulate_gpu(str(path), "L4", batch=1, mode="inference").throughput > 0
