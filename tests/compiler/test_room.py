"""What is far beyond the memory of a chip is refused before it is planned; the rest is profiled."""

import time

import pytest

from ipusim import api
from ipusim.compiler.memory import BEYOND, require_room
from ipusim.errors import ConfigError
from ipusim.machine import load_chip
from ipusim.workload import zoo


@pytest.mark.parametrize("micro_batch", [1024, 20_000, 2**40])
def test_a_request_far_beyond_memory_is_refused_in_a_second(micro_batch):
    begin = time.process_time()
    with pytest.raises(ConfigError, match=r"needs at least [\d,.e+]+ GB at once and a GC200 has"):
        api.simulate("resnet50", micro_batch=micro_batch)
    assert time.process_time() - begin < 1


def test_the_bound_counts_operands_and_results_of_convolutions_and_products():
    chip = load_chip("GC200")

    def needed(items: int) -> int:
        graph = zoo.load("braggnn").graph(items)
        return max(
            sum(graph.tensors[name].bytes for name in {*op.inputs, *op.outputs})
            for op in graph.ops
            if op.kind in ("conv", "matmul")
        )

    many = 100_000
    items = many * BEYOND * chip.tiles * chip.bytes_per_tile // needed(many)
    require_room(zoo.load("braggnn").graph(int(0.95 * items)), chip)
    with pytest.raises(ConfigError):
        require_room(zoo.load("braggnn").graph(int(1.05 * items)), chip)
