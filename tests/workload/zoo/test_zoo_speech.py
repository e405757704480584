"""Networks for speech, counted independently: by hand and against the facts."""

from types import SimpleNamespace

import pytest
from zoo_facts import fact

from ipusim.study.data.published import load_rows
from ipusim.study.predict import metric_of
from ipusim.workload import zoo
from ipusim.workload.graph import AlignmentLoss, Conv, Gather, Graph, MatMul, Recurrent


def _matrices(graph: Graph, prefix: str = "") -> int:
    return sum(
        t.elements
        for t in graph.with_role("parameter")
        if len(t.shape) > 1 and t.name.startswith(prefix)
    )


@pytest.mark.parametrize("name", ["fastspeech2", "fastspeech2_training"])
def test_fastspeech2_counts(name):
    graph, counted = zoo.load(name).graph(1), fact("fastspeech2")
    outputs, embeds = 3 * 256, 2 * 9 * 384  # of the predictors; of pitch and energy
    assert _matrices(graph) - outputs - embeds == int(counted["params"])
    assert graph.macs - 189 * (outputs + embeds) == int(counted["macs_forward"])


def test_fastspeech2_speaks_or_is_taught():
    speaking, taught = zoo.fastspeech2().graph(2), zoo.fastspeech2_training().graph(2)
    assert speaking.inputs == ("symbols",)
    assert set(taught.inputs) == {"symbols", "pitch.given", "energy.given"}
    shapes = [speaking.tensors[name].shape for name in speaking.outputs]
    assert shapes == [(2, 870, 80), (2, 870, 80), (2, 189), (2, 189), (2, 189)]
    (repeated,) = [op for op in speaking.ops if op.name == "lengths"]
    assert isinstance(repeated.params, Gather)
    assert (repeated.params.rows, repeated.params.indices) == (2 * 189, 2 * 870)


def test_fastspeech2_computes_mish_and_norms_as_tensorflow_does():
    speaking, taught = zoo.fastspeech2().graph(1), zoo.fastspeech2_training().graph(1)

    def functions(graph: Graph, prefix: str) -> list[str]:
        return [op.function for op in graph.ops if op.name.startswith(prefix)]

    act = "decoder.0.conv1.act"
    choices = ["less", "select", "less", "select"]
    assert functions(speaking, act) == ["exp", "add", "log", *choices, "tanh", "mul"]
    assert functions(taught, act) == ["softplus", "tanh", "mul"]
    norms = [f"postnet.norm{layer}" for layer in range(5)]
    assert [functions(taught, name) for name in norms] == 5 * [["layer"]]
    for name, features in zip(norms, (512, 512, 512, 512, 80), strict=True):
        ops = {op.name: op for op in speaking.ops if op.name.startswith(name)}
        # Of every element: x - m, its square, inverse, inverse x m, minus shift, x inverse, sum.
        whole = [op for op in ops.values() if op.kind == "elementwise"]
        made = [speaking.tensors[op.outputs[0]].elements for op in whole]
        assert made.count(870 * features) == 7
        sums = [op.params for op in ops.values() if op.kind == "reduce"]
        assert [(s.outer, s.reduced) for s in sums] == 2 * [(870, features)]


def test_fastpitch_counts_by_hand():
    graph = zoo.fastpitch().graph(1)
    block = 384 * 3 * 64 + 64 * 384 + 2 * 3 * 384 * 1536
    predictor = 3 * 384 * 256 + 3 * 256 * 256 + 256
    rest = 148 * 384 + 3 * 384 + 384 * 80
    assert _matrices(graph) == 12 * block + 2 * predictor + rest
    (stretched,) = [op.params for op in graph.ops if op.name == "lengths"]
    assert (stretched.m, stretched.k, stretched.n) == (870, 189, 384)
    assert not stretched.weights_operand


def test_conformer_counts():
    small, medium = zoo.conformer_small().graph(1), zoo.conformer_medium().graph(1)
    # One projection less (keys and values share it), one more (positions).
    assert _matrices(small, "encoder.") == int(fact("conformer_small")["params"])
    # The paper's 10.3 M less what 32 instead of 144 features save before the encoder, where the
    # second convolution leaves 19 bands; the facts give the medium one within 5 %.
    convolutions = 9 * (144 - 32) + 9 * (144**2 - 32**2) + 2 * (144 - 32)
    saved = convolutions + 144 * 19 * (144 - 32)
    assert small.parameters == pytest.approx(10.3e6 - saved, rel=0.05)
    keys, values = (
        [op.inputs[1] for op in medium.ops if op.name == f"encoder.3.attention.{part}"]
        for part in ("key", "value")
    )
    assert keys == values == ["encoder.3.attention.key.weight"]
    counted = fact("conformer_medium")
    assert medium.parameters == pytest.approx(int(counted["params"]), rel=0.05)
    assert medium.macs == pytest.approx(int(counted["macs_forward"]), rel=0.05)


def test_conformer_structure():
    graph = zoo.conformer_medium().graph(2)
    depthwise = [
        op.params for op in graph.ops if isinstance(op.params, Conv) and op.params.groups > 1
    ]
    assert [(p.groups, p.kernel, p.field) for p in depthwise] == [(256, (15,), (304,))] * 12
    (ctc,) = [op.params for op in graph.ops if isinstance(op.params, AlignmentLoss)]
    assert (ctc.batch, ctc.steps, ctc.labels, ctc.classes) == (2, 304, 48, 4233)
    shifted = [op for op in zoo.conformer_small().graph(1).ops if op.name.endswith(".skew")]
    assert len(shifted) == 16
    assert not any(op.name.endswith(".skew") for op in graph.ops)


def test_transducer_counts_by_hand():
    graph = zoo.transformer_transducer().graph(1)
    layer = 4 * 256 * 256 + 2 * 256 * 1024
    encoder = 240 * 256 * 16 + 12 * layer
    prediction = 1023 * 512 + 4 * 512 * (512 + 512)
    joint = (256 + 512) * 512 + 512 * 1024
    assert _matrices(graph) == encoder + prediction + joint
    heads = [op for op in graph.ops if op.name.endswith(".scores")]
    assert len(heads) == 12 * 8
    products = [op.params for op in graph.ops if op.name.endswith(".output") and "joint" in op.name]
    assert sum(p.m for p in products) == 330 * 126
    assert all(isinstance(p, MatMul) and p.m == 15 * 126 for p in products)
    (lstm,) = [op.params for op in graph.ops if isinstance(op.params, Recurrent)]
    assert (lstm.steps, lstm.hidden) == (126, 512)
    large = zoo.transformer_transducer_large().graph(1)
    assert sum(isinstance(op.params, Recurrent) for op in large.ops) == 2


def test_deepvoice3_counts_by_hand():
    graph = zoo.deepvoice3().graph(1)

    def block(features, *, speaker):
        return 5 * features * 2 * features + (16 * features if speaker else 0)

    embeddings = 108 * 16 + 120 * 256
    dense = 256 * 128 + 128 * 256 + 80 * 128 + 128 * 256 + 256 * 160 + 256 + 256 * 256 + 256 * 513
    speakers = 16 * (256 + 256 + 80 + 128)
    blocks = 7 * block(128, speaker=True) + 4 * block(256, speaker=True)
    blocks += 6 * block(256, speaker=False)
    assert _matrices(graph) == embeddings + dense + speakers + blocks + 2 * 4 * 256 * 256
    causal = [op.params for op in graph.ops if op.name.startswith("decoder.") and op.kind == "conv"]
    assert {(p.padding_lower, p.padding_upper) for p in causal} == {((4,), (0,))}


def test_recurrent_network_is_two_loops():
    graph = zoo.lstm_2_layers().graph(1)
    first, second = [op.params for op in graph.ops if isinstance(op.params, Recurrent)]
    assert (first.features, first.sequence) == (16, True)
    assert (second.features, second.sequence) == (256, False)


def test_latency_cells_that_are_rates():
    """One IPU's milliseconds per item: four over the rate of four IPUs, in the published cells."""
    rows = {row.row_id: row for row in load_rows()}
    for run_id in (f"results.inference.03{number}" for number in (4, 5, 6, 7)):
        rate, cell = rows[run_id].value, rows[f"{run_id}.latency"]
        assert cell.value == pytest.approx(4000 / rate, abs=0.01)
        report = SimpleNamespace(throughput=rate, latency=1.0)
        assert metric_of(report, cell) == pytest.approx(4000 / rate)
    assert not rows["results.inference.058"].run.latency_per_item
