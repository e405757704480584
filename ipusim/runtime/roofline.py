"""The baseline that every comparison prints beside the simulation: peak rates and nothing else."""

from __future__ import annotations

from ipusim.compiler.stacks import PARTIALS_BYTES
from ipusim.runtime.compile import graph_job, graphs
from ipusim.runtime.host.io import host_io
from ipusim.runtime.options.spec import RunConfig
from ipusim.workload.model import Model


def roofline_step_s(model: Model, config: RunConfig) -> tuple[float, int]:
    """Return the least seconds of one step, and the items of a replica in it.

    The largest of: arithmetic at the peak of the data type; every activation and parameter moved
    once through tile memory; every input of a convolution or product received once over the
    exchange; the host link. A training step is that for every micro-batch, forward and backward,
    shared evenly by the chips of a replica.
    """
    graph = graphs(graph_job(model, config)).micro_batch
    times = config.micro_batches
    chip = config.system.chip
    dtype = "float32" if config.precision == "32.32" else "float16"
    partials = "float32" if dtype == "float32" or PARTIALS_BYTES[config.partials] == 4 else dtype
    compute = 2 * graph.macs / chip.peak_flops_per_s(dtype, partials)
    moved = sum(graph.tensors[name].bytes for op in graph.ops for name in (*op.inputs, *op.outputs))
    received = sum(
        graph.tensors[name].bytes
        for op in graph.ops
        if op.kind in ("conv", "matmul", "recurrent")
        for name in op.inputs
    )
    on_chip = max(compute, moved / chip.sram_bytes_per_s, received / chip.exchange_bytes_per_s)
    step = times * max(on_chip / config.ipus_per_replica, host_io(graph, config).sustained_s)
    items = config.items(graph)
    return step, times * items
