"""The zoo against the published definitions' parameter and MAC counts."""

import inspect
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
from zoo_facts import facts

from ipusim.errors import ConfigError, DataError, UnknownNameError, WorkloadError
from ipusim.files import data_dir, read_records
from ipusim.workload import zoo
from ipusim.workload.graph import Conv, Graph, MatMul
from ipusim.workload.model import Model
from ipusim.workload.zoo import registry
from ipusim.workload.zoo.registry import find

NETWORKS = {name: find(name) for name in zoo.names()}
RECORDED = {
    line["network"]: (int(line["parameters"]), int(line["macs"]))
    for line in read_records(data_dir() / "expected" / "networks.csv")
}


WHOLE = [fact for fact in facts() if fact["covers"] == "whole"]
"""Counts of a part of a network are compared where its parts are tested."""

CLASSIFIERS = ("efficientnet", "mobilenet", "resnet", "resnext", "swin", "vit")
SAME_COUNTS = {"resnet50_gn": "resnet50", "resnext101_32x4d_gn": "resnext101_32x4d"}


def _family(*families: str) -> list[str]:
    return [name for name, network in NETWORKS.items() if network.family in families]


def _settings(name: str) -> dict:
    _, settings = NETWORKS[name].builder.args
    return settings


def _network(fact: dict[str, str]) -> Model:
    name, size = fact["model"], int(fact["input"].split("x")[-1].removeprefix("seq "))
    if name.startswith("bert"):
        return find(f"{name}_squad")(tokens=size, head="none")
    sizes = {"image_size", "sequence_length"} & _settings(name).keys()
    return getattr(zoo, name)(**dict.fromkeys(sizes, size)) if size else zoo.load(name)


@pytest.mark.parametrize("fact", WHOLE, ids=lambda fact: f"{fact['model']}-{fact['input']}")
@pytest.mark.parametrize("micro_batch", [1, 3])
def test_counts_equal_the_facts(fact, micro_batch):
    graph = _network(fact).graph(micro_batch)
    # The facts count BERT's body; the pooler, one dense layer on the first token, is apart.
    pooler = graph.producers()["pooler.dense.out"].macs if "bert" in fact["model"] else 0
    # Nor do they count fixed kernels that enlarge a field, which the framework makes convolutions.
    kernels = {tensor.name for tensor in graph.with_role("constant")}
    fixed = sum(op.macs for op in graph.ops if op.kind == "conv" and op.inputs[1] in kernels)
    assert graph.parameters == int(fact["params"])
    assert graph.macs - pooler - fixed == micro_batch * int(fact["macs_forward"])


def test_the_module_of_a_network_is_tried_first(monkeypatch):
    tried = []
    monkeypatch.setattr(registry, "NETWORKS", {})
    monkeypatch.setattr(registry, "import_module", tried.append)
    for name, network in NETWORKS.items():
        tried.clear()
        with pytest.raises(DataError, match=name):
            find(name)
        assert tried[0] == network.builder.args[0].__module__


@pytest.mark.parametrize("network", NETWORKS.values(), ids=lambda network: network.name)
def test_networks_are_what_they_say(network):
    model = zoo.load(network.name)
    graph = model.graph()
    assert model.name == graph.name == network.name
    assert (graph.parameters, graph.macs) == RECORDED[network.name]
    assert model.source
    assert inspect.getdoc(network.builder.args[0])
    assert {graph.tensors[x].role for x in graph.outputs} == {"output"}


def test_every_network_is_recorded():
    assert list(RECORDED) == list(NETWORKS)


@pytest.mark.parametrize("name", sorted(set(zoo.names()) - set(_family("cluster-gcn"))))
def test_work_grows_with_the_batch(name):
    """Except where an item is a whole group of clusters."""
    network = NETWORKS[name]
    one, two = (network().graph(times * network.batch) for times in (1, 2))
    stored, again = (
        {t.name: t.elements for t in graph.with_role("parameter") if t.name not in graph.streamed}
        for graph in (one, two)
    )
    assert stored == again
    assert one.macs < two.macs <= 2.5 * one.macs


def test_resnext101_32x8d_equals_what_torchvision_documents():
    # torchvision documents num_params 88791336 and 16.41 GFLOPS (its word for GMAC).
    graph = zoo.resnext101_32x8d().graph()
    assert graph.parameters == 88_791_336
    assert round(graph.macs / 1e9, 2) == 16.41


@pytest.mark.parametrize("name", _family(*CLASSIFIERS))
def test_classifiers(name):
    graph = zoo.load(name).graph(2)
    side = _settings(name)["image_size"]
    assert graph.tensors[graph.inputs[0]].shape == (2, 3, side, side)
    assert graph.tensors[graph.outputs[0]].shape == (2, 1000)


@pytest.mark.parametrize("name", _family("resnet", "resnext"))
def test_structure_of_residual_networks(name):
    graph = zoo.load(name).graph(2)
    convs = [op for op in graph.ops if op.kind == "conv"]
    norms = [op for op in graph.ops if op.kind == "norm"]
    # The number in the name counts convolutions on the main path and the final layer; each
    # first block of a stage has a shortcut convolution, save in the first stage of basic blocks.
    depth = int("".join(c for c in name.split("_")[0] if c.isdigit()))
    shortcuts = 3 if depth < 50 else 4
    assert len(convs) == len(norms) == depth - 1 + shortcuts
    assert graph.tensors["fc.weight"].shape == (1000, 512 if depth < 50 else 2048)


@pytest.mark.parametrize(("grouped", "plain"), SAME_COUNTS.items())
def test_group_norm_changes_nothing_but_the_norms(grouped, plain):
    graph, reference = zoo.load(grouped).graph(), zoo.load(plain).graph()
    assert (graph.parameters, graph.macs) == (reference.parameters, reference.macs)
    norms = {(op.params.kind, op.params.groups) for op in graph.ops if op.kind == "norm"}
    assert norms == {("group", 32)}
    assert not graph.with_role("constant")


def test_version_1_5_strides_in_the_3x3():
    graph = zoo.resnet50().graph()
    by_name = {op.name: op.params for op in graph.ops}
    assert by_name["layer2.0.conv1"].stride == (1, 1)
    assert by_name["layer2.0.conv2"].stride == (2, 2)
    assert by_name["layer2.0.conv2"].out_field == (28, 28)


def test_resnext_group_widths():
    graph = zoo.resnext101_32x4d().graph()
    widths = {
        op.params.in_channels // op.params.groups
        for op in graph.ops
        if isinstance(op.params, Conv) and op.params.groups > 1
    }
    assert widths == {4, 8, 16, 32}


def test_residual_add_and_bias_add():
    graph = zoo.resnet18().graph()
    adds = [op for op in graph.ops if op.function == "add"]
    assert len(adds) == 8
    assert all(not op.params.broadcast and op.params.in_place_ok for op in adds)
    (bias,) = [op for op in graph.ops if op.function == "bias_add"]
    assert bias.inputs == ("fc.out", "fc.bias")
    assert bias.params.broadcast
    product = graph.producers()["fc.out"].params
    assert product == MatMul(m=1, k=512, n=1000, weights_operand=True, transpose_b=True)


@pytest.mark.parametrize(
    ("precision", "activations", "weights"),
    [("16.16", 2, 2), ("16.32", 2, 4), ("32.32", 4, 4)],
)
def test_precision_sets_storage(precision, activations, weights):
    graph = zoo.resnet18().graph(1, precision=precision)
    assert graph.parameter_bytes == weights * graph.parameters
    assert graph.tensors["images"].bytes == activations * 3 * 224 * 224
    assert graph.output_bytes == activations * 1000
    assert graph.tensors["bn1.running_mean"].bytes == weights * 64


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("nowhere", "is named after no module of the zoo: add nowhere.py"),
        ("unet", "No function of ipusim.workload.zoo.vision.unet builds 'mine'"),
    ],
)
def test_a_table_without_a_module_or_a_builder_is_told(monkeypatch, table, message):
    monkeypatch.setattr(registry, "read_tables", lambda _: {table: {"mine": {}}})
    registry._homes.cache_clear()
    try:
        with pytest.raises(DataError, match=message):
            zoo.load("mine")
    finally:
        registry._homes.cache_clear()


def test_a_setting_that_a_table_lacks_is_told():
    network = NETWORKS["resnet50"]
    builder, settings = network.builder.args
    for name in settings:
        less = {key: value for key, value in settings.items() if key != name}
        lacking = replace(network, builder=partial(network.builder.func, builder, less))
        with pytest.raises(DataError, match=f"does not say '{name}'"):
            lacking.graph()


@pytest.mark.parametrize("name", ["ResNeXt-101 32x4d", "RESNEXT101.32X4D", "resnext101_32x4d"])
def test_names_match_loosely(name):
    assert zoo.load(name).name == "resnext101_32x4d"


def test_unknown_name_gives_the_nearest():
    with pytest.raises(UnknownNameError, match="resnext50_32x4d"):
        zoo.load("resnxt50_32x4d")


def test_an_unknown_option_gives_the_nearest():
    with pytest.raises(UnknownNameError, match="option of 'swin_tiny' 'image_sise'.*'image_size'"):
        zoo.swin_tiny(image_sise=112).graph(1)


@pytest.mark.parametrize("micro_batch", [0, -1, 1.5, "4", True])
def test_bad_micro_batch(micro_batch):
    with pytest.raises(ConfigError, match="whole number"):
        zoo.resnet18().graph(micro_batch)


def test_models_can_be_sent_to_workers():
    for model in (zoo.resnet18(), zoo.load("yolo_v4_p5_416"), zoo.vit_base_16(image_size=384)):
        again = pickle.loads(pickle.dumps(model))
        assert again.name == model.name
        assert again.graph(1) == model.graph(1)


def test_bad_precision():
    with pytest.raises(UnknownNameError, match="16.16, 16.32, 32.32"):
        zoo.resnet18().graph(precision="8.8")


def test_same_graph_every_time():
    first, second = zoo.resnet50().graph(2), zoo.resnet50().graph(2)
    assert isinstance(first, Graph)
    assert first == second
    assert list(first.tensors) == list(second.tensors)


def test_zoo_does_not_load_heavy_packages():
    code = (
        "import sys, ipusim.workload.zoo, ipusim.workload.onnx\n"
        "print([m for m in ('onnx', 'pandas', 'matplotlib', 'numba') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_impossible_convolution_is_refused():
    with pytest.raises(WorkloadError, match="multiples of its 3 groups"):
        Conv(
            batch=1,
            in_channels=4,
            out_channels=6,
            groups=3,
            field=(4,),
            kernel=(1,),
            stride=(1,),
            padding_lower=(0,),
            padding_upper=(0,),
            dilation=(1,),
        )
