"""Exports of eight networks by both exporters of torch (tests/export_networks.py) and the zoo's."""

import zipfile
from pathlib import Path

import onnx
import pytest

from ipusim.api import simulate
from ipusim.workload import zoo
from ipusim.workload.onnx import from_onnx

ARCHIVE = Path(__file__).parent / "exports.zip"
NETWORKS = {
    "resnet50": "resnet50",
    "efficientnet_b0": "efficientnet_b0",
    "mobilenet_v3_large": "mobilenet_v3_large",
    "vit_b_16": "vit_base_16",
    "swin_t": "swin_tiny",
    "convnext_tiny": "convnext_tiny",
    "bert_base_squad": "bert_base_squad",
    "gpt2": "gpt2_small",
}
TOKENS = {"bert_base_squad": 384, "gpt2": 1024}
OPTIONS = {"gpt2": {"mask_kind": "stored"}}
"""What the exported file does otherwise than the network that the IPU ran."""


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo"])
@pytest.mark.parametrize("name", NETWORKS)
def test_an_export_takes_the_cycles_of_the_zoo(name, exporter):
    with zipfile.ZipFile(ARCHIVE) as archive:
        file = onnx.load_from_string(archive.read(f"{name}.{exporter}.onnx"))
    free = {size.dim_param for item in file.graph.input for size in item.type.tensor_type.shape.dim}
    shapes = {item.name: (1, TOKENS[name]) for item in file.graph.input if name in TOKENS}
    assert len(free - {""}) == (2 if shapes else 1)
    own = getattr(zoo, NETWORKS[name])(**OPTIONS.get(name, {}))
    models = from_onnx(file, shapes=shapes), own
    assert len({model.graph(1).macs for model in models}) == 1
    exported, expected = (simulate(model, micro_batch=1, replicas=1) for model in models)
    # 2 % before operands that are rearranged lay in whole blocks: Swin's windows, which the file
    # moves otherwise, then find their operands in another order here and there.
    assert exported.cycles_per_step == pytest.approx(expected.cycles_per_step, rel=0.025)
