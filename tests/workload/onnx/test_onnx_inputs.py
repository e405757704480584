"""Free sizes and values of inputs: given by the user, found to be the batch, or asked for."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_single_op import make_model, single

from ipusim.api import simulate
from ipusim.cli import main
from ipusim.errors import ConfigError, WorkloadError
from ipusim.sweeps import sweep
from ipusim.workload.onnx.importer import from_onnx


def _shape(model, micro_batch=None):
    graph = model.graph(micro_batch)
    return graph.tensors[graph.inputs[0]].shape


@pytest.mark.parametrize(
    ("shape", "given", "expected"),
    [
        (["n", 3, "height", "width"], {"shapes": {"x": (1, 3, 32, 48)}}, (4, 3, 32, 48)),
        (["n", 3, "height", "width"], {"dims": {"height": 8, "width": 9}}, (4, 3, 8, 9)),
        (["batch_size", "sequence"], {"dims": {"sequence": 7}}, (4, 7)),
        (["unk__123", 5], {}, (4, 5)),
        (["", 5], {}, (4, 5)),
        (["", ""], {"shapes": {"x": (1, 6)}}, (4, 6)),
        (["time", "batch", 8], {"dims": {"time": 3}}, (3, 4, 8)),
        (["batch", "past + new"], {"dims": {"past": 2, "new": 3}}, None),
    ],
)
def test_free_sizes_are_given_by_name_of_input_or_dimension(shape, given, expected):
    file = single("Relu", {"x": shape})
    if expected is None:  # the names in a sum are no dimensions of their own here
        with pytest.raises(WorkloadError, match="has no dimension 'past'"):
            from_onnx(file, **given)
        return
    assert _shape(from_onnx(file, **given), 4) == expected


def test_sums_of_named_sizes_are_computed():
    inputs = {"x": ["batch", "past"], "y": ["batch", "past + 3"]}
    node = helper.make_node("Concat", ["x", "y"], ["z"], axis=1)
    graph = from_onnx(make_model([node], inputs, ["z"]), dims={"past": 2}).graph(2)
    assert [graph.tensors[name].shape for name in ("x", "y", "z")] == [(2, 2), (2, 5), (2, 7)]


@pytest.mark.parametrize(
    ("shape", "line"),
    [
        (["batch", 3, "height", "width"], "--dim height=224 --dim width=224"),
        (["batch", "sequence"], "--dim sequence=128"),
        (["batch", "num_samples"], "--dim num_samples=16000"),
        (["batch", 3, "", ""], "--shape x=1,3,224,224"),
        (["batch", "past_length"], "--dim past_length=0"),
    ],
)
def test_a_missing_size_is_answered_with_the_line_to_type(shape, line):
    with pytest.raises(WorkloadError, match=f"add such as '{line}'"):
        from_onnx(single("Relu", {"x": shape}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shapes": {"y": (1,)}}, "has no input 'y'.*did you mean 'x'"),
        ({"dims": {"sequenze": 3}}, "has no dimension 'sequenze'.*did you mean 'sequence'"),
        ({"shapes": {"x": (1, 2)}}, "has 3 dimensions"),
        ({"shapes": {"x": (1, 2, 9)}}, "the file fixes 8"),
        ({"dims": {"sequence": -1}}, "must be a whole number"),
        ({"dims": {"sequence": 2**40}}, "must be a whole number"),
        ({"shapes": {"x": (1, 2, 8)}, "dims": {"sequence": 3}}, "given two sizes, 3 and 2"),
        ({"values": {"x": "much"}}, "cannot have the value 'much'"),
    ],
)
def test_what_does_not_fit_the_file_is_refused(given, message):
    with pytest.raises(WorkloadError, match=message):
        from_onnx(single("Relu", {"x": ["batch", "sequence", 8]}), **given)


def test_the_value_of_an_input_is_a_constant():
    nodes = [
        helper.make_node("Cast", ["rate"], ["factor"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    model = make_model(nodes, {"x": ["batch", 4], "rate": []}, ["y"])
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    graph = from_onnx(model, values={"rate": 16000}).graph(3)
    assert graph.inputs == ("x",)
    assert graph.tensors["factor"].role == "constant"


def test_a_fixed_batch_is_counted(tmp_path):
    import onnx

    path = tmp_path / "two.onnx"
    onnx.save(single("Gemm", {"x": [2, 64]}, {"w": [64, 64]}), path)
    options = {"system": "IPU-M2000", "replicas": 1}
    two, one = simulate(str(path), **options), simulate(str(path), micro_batch=1, **options)
    cycles = two.cycles_per_step / one.cycles_per_step
    assert two.throughput.value == pytest.approx(
        2 * one.throughput.value * one.latency.value / two.latency.value
    )
    assert cycles >= 1


def test_sweep_over_sizes_and_command_line(tmp_path, capsys):
    import onnx

    path = tmp_path / "open.onnx"
    onnx.save(single("Gemm", {"x": ["rows", 64]}, {"w": [64, 64]}), path)
    model = single("MatMul", {"x": ["batch", "sequence", 64]}, {"w": [64, 64]})
    onnx.save(model, path)
    frame = sweep(str(path), dims={"sequence": [16, 512]}, progress=False)
    assert list(frame["sequence"]) == [16, 512]
    assert frame["cycles_per_step"].is_monotonic_increasing
    assert main(["simulate", str(path), "--dim", "sequence=16", "--json"]) == 0
    assert main(["simulate", str(path), "--shape", "x=2,16,64"]) == 0
    assert main(["simulate", str(path)]) == 2
    assert "--dim sequence=128" in capsys.readouterr().err
    assert main(["simulate", str(path), "--dim", "sequence"]) == 2
    assert "must be such as 'sequence=128'" in capsys.readouterr().err


def test_sizes_of_a_file_are_refused_for_a_zoo_model():
    with pytest.raises(ConfigError, match=r"dims is for a path that ends in \.onnx"):
        simulate("resnet50", dims={"sequence": 3})


def test_values_reach_vectors_and_scalars():
    model = make_model(
        [helper.make_node("Add", ["x", "v"], ["y"])], {"x": ["n", 4], "v": [4]}, ["y"]
    )
    graph = from_onnx(model, values={"v": np.arange(4)}).graph(2)
    assert graph.tensors["v"].shape == (4,)
