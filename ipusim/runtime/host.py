"""The host: what passes between it and the chips in a step, and what its processes can prepare."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ipusim.errors import ConfigError
from ipusim.runtime.options.spec import DECODING, RunConfig
from ipusim.workload.graph import DTYPE_BYTES, Graph, arriving_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class HostIo:
    """Host transfers of one replica and step.

    `work_s` are the seconds that the host spends on the batch of a replica inside the step,
    `rearranged_s` those in which it puts the batch into the chip's order, `exposed_s` those of
    transfer that nothing hides, `sustained_s` those between two steps that host and link need at
    least, however deep the queue.
    """

    input_bytes: int
    output_bytes: int
    work_s: float
    rearranged_s: float
    exposed_s: float
    sustained_s: float


def host_io(graph: Graph, config: RunConfig) -> HostIo:
    """Return the host transfers of one step.

    Notes
    -----
    One batch in flight: the whole way from host memory is waited for, at the rate that the chips
    of a machine leave each other. More than one: the host has filled the machine's buffer, and
    the chip waits only to read that; the link still bounds the rate of steps. Overlapped: the
    transfer runs on tiles of its own and only bounds the rate. Each waited-for direction pays the
    latency of an empty transfer (Jia et al. 2019, JIA-172).

    Where the number of host processes is known, one thread of each copies the batches of its
    replicas into their stream buffers, one after the other: one pass, since what the loader does
    is over before the clock starts (graphcore/popart@sdk/poplar/3.3.0:willow/src/popx/devicex.cpp
    InputDatastream::read; sessionoptions.hpp rearrangeStreamsOnHost false; the clock in
    graphcore/examples@v3.3.0:vision/cnns/pytorch/inference/run_benchmark.py; the same at v2.4.0).
    That bounds the rate like the link. With one batch in flight a replica waits for its own copy
    besides, for the callback runs when the chip asks; the replicas of a process ask independently
    (engineoptionscreator.cpp: target.syncReplicasIndependently). [A] looked up after seeing
    residuals.

    In training, whose processes are always known, the copies go on while the chips work and bound
    the rate alone: Poplar reads one batch ahead (graphcore/popart docs/user_guide/
    hostio_optimisation.rst). [A] looked up after seeing residuals.

    A stack with `host_work_in_step` prepares the batch in the step too, another pass.

    Streams are rearranged on the chip, which costs little on so many tiles, or by one thread of the
    host "at the expense of latency" (graphcore/tensorflow tensorflow/python/ipu/config.py,
    always_rearrange_copies_on_the_host). [A] after seeing residuals: each element by itself, when
    the transfer is due, even one beside the chip's work: such streams may share one buffer
    (driver/tools/send_recv_runtime_util.cc, CanPoplarSendBuffersOverlap).
    """
    system = config.system
    inputs = arriving_bytes(graph, config, graph.inputs)
    outputs = graph.output_bytes
    # Of a replica over several chips one reads and one writes at a time.
    machine = min(config.active_ipus, system.ipus_per_machine)
    link = system.host_bytes_per_s(max(1, machine // config.ipus_per_replica))
    sustained = max(inputs, outputs) / link
    sharing = replicas_per_process(config)
    copy = _copy_bytes(inputs, sharing, config) / system.host.core_bytes_per_s
    work = 0.0
    if config.instances:
        sustained = max(sustained, sharing * copy)
    if config.stack.host_work_in_step and config.host_dtype in ("float16", "float32"):
        work = 2 * copy
    elif config.instances and config.batches_in_flight == 1 and not config.training:
        work = copy
    rearranged = 0.0
    if config.rearrange_on_host:
        streamed = sum(graph.tensors[name].elements for name in (*graph.inputs, *graph.outputs))
        rearranged = streamed / system.host.rearranged_elements_per_s
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
        rearranged_s=rearranged,
        exposed_s=exposed,
        sustained_s=sustained,
    )


def replicas_per_process(config: RunConfig) -> int:
    """Return how many replicas a host process feeds."""
    return max(1, config.replicas // config.instances) if config.instances else 1


def arriving_bytes(graph: Graph, config: RunConfig, names: Iterable[str]) -> int:
    """Return the bytes of some inputs of a graph, as they come from the host."""
    tensors = [graph.tensors[name] for name in names]
    return sum(
        tensor.elements * DTYPE_BYTES[arriving_dtype(tensor, config.host_dtype)]
        for tensor in tensors
    )


def _copy_bytes(inputs: int, sharing: int, config: RunConfig) -> int:
    """Bytes that a core reads and writes to copy one batch into the stream buffer of a replica."""
    # In flight of an overlapped step are what the buffers hold, a batch that is loaded and one
    # that is computed; otherwise there is one buffer.
    depth = max(1, math.ceil(config.batches_in_flight) - 2) if config.overlap_io else 1
    # Every byte is read and written; where the buffers of the `sharing` replicas of a process do
    # not stay in the cache, a line is also read before it is written to (write allocation). Timed
    # once out of fresh batches of a PyTorch loader on an EPYC of 2.45 GHz, that is 23 us for one
    # image of 224 x 224 bytes and 2,331 us for 64 of them into six buffers; the two counts give 25
    # and 2,408.
    passes = 2 if depth * sharing * inputs <= config.system.host.core_cache_bytes else 3
    return passes * inputs


def fed_items_per_s(config: RunConfig, item_bytes: int) -> float:
    """Return the rate at which host processes can feed all replicas of a training, or infinity.

    The processes (``poprun --num-instances``) are spread evenly over the servers, by default as few
    as give every instance a NUMA node of its own, within the numbers that the system is published
    with. Each has so many workers. A thread pool uses every core that its instance has instead, but
    for "prepared" items, of `loader_item_s` of one worker: one thread at a time, if they call
    Python, whose interpreter is locked (tf.numpy_function). Decoded images, and items from memory,
    are passed on by the one process of an instance that collects them, if its loader has processes.

    With at most one instance per NUMA node an instance owns whole nodes, and its memory is local.
    With more, the instances share the nodes and are swapped among them (TAMU PEARC 2022, section
    3.1): every busy process gets an equal share of the cores, and memory accesses go to any node,
    which stretches the part of the work that waits for memory by the mean NUMA distance.
    Hyper-threads are taken to add nothing. [assumed: decoding keeps a core's units busy]
    """
    system, dataset, instances = config.system, config.dataset, config.instances
    host, threads = system.host, config.framework.loader == "threads"
    if dataset in ("generated", "tokens"):
        return math.inf
    if dataset == "memory" and item_bytes < 1:
        raise ConfigError(
            f"Items of {item_bytes} bytes cannot be copied from memory: use another dataset."
        )
    if dataset == "prepared" and not config.loader_item_s:
        raise ConfigError(
            f"Items that take {config.loader_item_s} seconds cannot be prepared: give "
            "loader_item_s, above 0."
        )
    wanted = max(-(-instances // host.numa_nodes), system.host_servers)
    servers = config.host_servers or min(wanted, system.host_servers_max)
    cores, nodes = servers * host.cores, servers * host.numa_nodes
    bound = instances <= nodes
    own_cores = nodes // instances * host.cores_per_node if bound else cores / instances
    workers = config.loader_workers
    if threads and dataset != "prepared":
        workers = max(1, math.floor(own_cores) - host.service_processes)
    processes = workers + host.service_processes
    working = instances * workers * min(1.0, own_cores / processes)
    slowdown = 1.0 if bound else host.swapping_slowdown
    if dataset == "prepared":
        return working / config.loader_item_s / slowdown
    if dataset == "memory":
        each = host.core_bytes_per_s / (2 * item_bytes)
    else:
        each = getattr(host, DECODING[dataset])
        each *= 1.0 if threads else host.worker_process_efficiency
    rate = working * each / slowdown
    if item_bytes and not threads:
        rate = min(rate, instances * host.loader_bytes_per_s / item_bytes)
    return rate
