"""What the host can feed: items per second that its processes decode, prepare and pass on."""

import math

from ipusim.errors import ConfigError, resolve_name
from ipusim.machine.system import System

DECODING = {
    "imagenet_jpeg": "decoded_images_per_s_per_core",
    "imagenet_pillow": "pillow_images_per_s_per_core",
    "imagenet_ten_crops": "ten_crop_images_per_s_per_core",
}
"""The rate of a `Host` at which a core decodes the images of a data set."""

DATASETS = (*DECODING, "generated", "tokens", "memory", "prepared")
"""JPEG images of which the crop alone is decoded, then resized to uint8 (TensorFlow; PyTorch's CNNs
from SDK 2.5 on, graphcore/examples@v2.5.0:applications/pytorch/cnns/datasets/optimised_jpeg.py);
the same decoded whole by Pillow and then cropped (CNNs before, makefile of v2.4.0, and what else
reads images in PyTorch); by Pillow with ten crops of each, whose colours are changed (DINO, arXiv
2104.14294); data made once on the host or the chip; token ids read as they are; ready items copied
from host memory; items that a worker prepares in a time that the caller states."""

LOADERS = ("processes", "threads")
"""How an instance prepares data: worker processes (PyTorch) or a thread pool (TensorFlow)."""

WORKERS_PER_INSTANCE = 14
"""Worker processes of the vendor script: one NUMA node of 16 cores less 2 service processes
(graphcore/examples applications/pytorch/cnns/train/rn50_pod16.sh)."""


def items_per_s(
    system: System,
    instances: int,
    dataset: str,
    *,
    workers_per_instance: int = WORKERS_PER_INSTANCE,
    item_bytes: int | None = None,
    item_s: float | None = None,
    loader: str = "processes",
    servers: int | None = None,
) -> float:
    """Return the rate at which `instances` host processes can feed the system, or infinity.

    The processes (``poprun --num-instances``) are spread evenly over the servers, by default as few
    as give every instance a NUMA node of its own, within the numbers that the system is published
    with. Each has so many workers. A thread pool uses every core that its instance has instead, but
    for "prepared" items, of `item_s` seconds of one worker: one thread at a time, if they call
    Python, whose interpreter is locked (tf.numpy_function). `item_bytes` are needed for "memory";
    where given, decoded images are passed on by the one process of an instance that collects them,
    if its loader has processes.

    With at most one instance per NUMA node an instance owns whole nodes, and its memory is local.
    With more, the instances share the nodes and are swapped among them (TAMU PEARC 2022, section
    3.1): every busy process gets an equal share of the cores, and memory accesses go to any node,
    which stretches the part of the work that waits for memory by the mean NUMA distance.
    Hyper-threads are taken to add nothing. [assumed: decoding keeps a core's units busy]
    """
    dataset = resolve_name("data set", dataset, DATASETS)
    loader = resolve_name("loader", loader, LOADERS)
    host = system.host
    if servers is None:
        wanted = -(-instances // host.numa_nodes)
        machines = min(max(wanted, system.host_servers), system.host_servers_max)
    else:
        machines = servers
    if dataset == "memory" and (item_bytes is None or item_bytes < 1):
        raise ConfigError(
            f"Items of {item_bytes} bytes cannot be copied from memory: give item_bytes, 1 or more."
        )
    if dataset == "prepared" and not (item_s and math.isfinite(item_s) and item_s > 0):
        raise ConfigError(
            f"Items that take {item_s} seconds cannot be prepared: give loader_item_s, above 0."
        )

    cores, nodes = machines * host.cores, machines * host.numa_nodes
    bound = instances <= nodes
    own_cores = nodes // instances * host.cores_per_node if bound else cores / instances
    if loader == "threads" and dataset != "prepared":
        workers = max(1, math.floor(own_cores) - host.service_processes)
    else:
        workers = workers_per_instance
    processes = workers + host.service_processes
    working = instances * workers * min(1.0, own_cores / processes)
    slowdown = 1.0 if bound else host.swapping_slowdown
    if dataset in ("generated", "tokens"):
        return math.inf
    if dataset == "prepared":
        return working / item_s / slowdown
    if dataset == "memory":
        return working * host.core_bytes_per_s / (2 * item_bytes) / slowdown
    efficiency = host.worker_process_efficiency if loader == "processes" else 1.0
    rate = working * getattr(host, DECODING[dataset]) * efficiency / slowdown
    if loader == "processes" and item_bytes:
        rate = min(rate, instances * host.loader_bytes_per_s / item_bytes)
    return rate
