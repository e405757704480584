"""Language models with a cache on the chip: prefill, then one token at a time."""

import pytest

import ipusim
from ipusim.errors import IpuSimError, WorkloadError

HEADS_TIMES_SIZE, LAYERS, HALF = 768, 12, 2


def test_the_cache_holds_keys_and_values_of_every_layer():
    graph = ipusim.zoo.gpt2_small(context=256, decode=True).graph(2)
    stored = graph.with_role("state")
    assert sum(t.bytes for t in stored) == 2 * LAYERS * 2 * 256 * HEADS_TIMES_SIZE * HALF
    scores = next(op for op in graph.ops if op.name == "h.0.attention.scores")
    assert (scores.params.m, scores.params.n) == (1, 256)
    assert graph.tensors[graph.outputs[0]].shape == (2, 1)


def test_a_prompt_fills_the_cache_and_scores_one_token():
    graph = ipusim.zoo.gpt2_small(sequence_length=128, context=256).graph(1)
    plain = ipusim.zoo.gpt2_small(sequence_length=128).graph(1)
    writes = [op for op in graph.ops if op.function == "write"]
    assert len(writes) == 2 * LAYERS and writes[0].params.indices == 128
    assert graph.parameters == plain.parameters
    head = next(op for op in graph.ops if op.name == "lm_head")
    assert head.params.m == 1


@pytest.mark.parametrize("options", [{"decode": True}, {"context": 2000}, {"context": -1}])
def test_a_cache_that_makes_no_sense_is_refused(options):
    with pytest.raises(WorkloadError):
        ipusim.zoo.gpt2_small(**options).graph(1)


def test_more_sequences_give_more_tokens_per_second_until_memory_is_full():
    frame = ipusim.serving(micro_batch=[1, 4, 16], context=64, system="IPU-M2000", replicas=1)
    one, four, many = frame.itertuples()
    assert one.fits and four.fits and many.fits
    assert many.tokens_per_s > four.tokens_per_s > one.tokens_per_s > 0
    # One row alone has no groups, and comes into order element by element.
    assert many.tokens_per_s_each < four.tokens_per_s_each
    assert four.cache_mb == pytest.approx(4 * one.cache_mb)
    with pytest.raises(IpuSimError, match="gpt2_small"):
        ipusim.serving("resnet50")
