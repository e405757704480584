"""Data between host and chip in one step: bytes, and the seconds that the step waits for them."""

from __future__ import annotations

from dataclasses import dataclass

from ipusim.runtime.run_config import RunConfig
from ipusim.workload.graph import DTYPE_BYTES, Graph, arriving_dtype

HOST_PASSES = 2
"""Passes over the input in the thread of the host that hands it over: prepare (normalise, collect
the samples of a call), and copy into the stream buffer (Qwant report 2020, section 3.1.2: latency
contains pre-processing; [A] for later stacks, taken after seeing that three networks on machines
fed by two processes all stop at the same bytes per second)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostIo:
    """Host transfers of one replica and step.

    Attributes
    ----------
    input_bytes, output_bytes : int
        Bytes to and from the chip.
    work_s : float
        Seconds that the host spends on the batch inside the step.
    exposed_s : float
        Seconds of transfer that nothing hides.
    sustained_s : float
        Seconds between two steps that host and link need at least, however deep the queue.
    """

    input_bytes: int
    output_bytes: int
    work_s: float
    exposed_s: float
    sustained_s: float


def host_io(graph: Graph, config: RunConfig) -> HostIo:
    """Return the host transfers of one step.

    Parameters
    ----------
    graph : Graph
        For one micro-batch.
    config : RunConfig

    Returns
    -------
    HostIo

    Notes
    -----
    One batch in flight: the whole way from host memory is waited for, at the rate that the chips
    of a machine leave each other. More than one: the host has filled the machine's buffer, and
    the chip waits only to read that; the link still bounds the rate of steps. Overlapped: the
    transfer runs on tiles of its own and only bounds the rate. Each waited-for direction pays the
    latency of an empty transfer (Jia et al. 2019, JIA-172).

    Where the number of host processes is known, each makes `HOST_PASSES` over the batches of its
    replicas, one after the other. With one batch in flight that is waited for: the callback that
    fills the stream runs when the chip asks. Otherwise it bounds the rate like the link, into whose
    buffer it writes.
    """
    system = config.system
    inputs = 0
    for name in graph.inputs:
        tensor = graph.tensors[name]
        inputs += tensor.elements * DTYPE_BYTES[arriving_dtype(tensor, config.host_dtype)]
    outputs = graph.output_bytes
    # Of a replica over several chips one reads and one writes at a time.
    machine = min(config.active_ipus, system.ipus_per_machine)
    link = system.host_bytes_per_s(max(1, machine // config.ipus_per_replica))
    sustained = max(inputs, outputs) / link
    handed = inputs * (config.replicas // config.instances if config.instances else 1)
    handing = HOST_PASSES * 2 * handed / system.host_core_bytes_per_s
    work = 0.0
    prepared = config.stack.host_work_in_step and config.host_dtype in ("float16", "float32")
    if prepared or (config.instances and config.batches_in_flight == 1):
        work = handing
    elif config.instances:
        sustained = max(sustained, handing)
    if config.overlap_io:
        exposed = 0.0
    else:
        rate = link
        if config.batches_in_flight > 1:
            rate = max(link, system.buffer_link_bytes_per_s_per_ipu)
        exposed = (inputs + outputs) / rate + 2 * system.host_link_latency_s
    return HostIo(
        input_bytes=inputs,
        output_bytes=outputs,
        work_s=work,
        exposed_s=exposed,
        sustained_s=sustained,
    )
