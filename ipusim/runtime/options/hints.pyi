# Written by docs/refresh.py from the table of options in spec.py.
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

class RunOptions(TypedDict, total=False):
    system: str | None
    stack: str | None
    framework: str | None
    adopted: bool | None
    mode: str | None
    micro_batch: int | None
    replicas: int | None
    ipus_per_replica: int | None
    precision: str | None
    partials: str | None
    convolution_partials: str | None
    available_memory_proportion: float | None
    stable_norm: bool | None
    serial_products: Sequence[str] | None
    host_dtype: str | None
    overlap_io: bool | None
    io_tiles: int | None
    rearrange_on_host: bool | None
    batches_in_flight: float | None
    device_iterations: int | None
    instances: int | None
    loader_item_s: float | None
    serial_item_s: float | None
    pipeline_splits: Sequence[str] | None
    stage_ipus: Sequence[int] | None
    schedule: str | None
    phases: int | None
    phase_splits: Sequence[str] | None
    phase_liveness: str | None
    load_schedule: str | None
    weights: str | None
    activations: str | None
    accumulators: str | None
    micro_batches_per_phase: int | None
    gradient_accumulation: int | None
    accumulator_dtype: str | None
    running_mean: bool | None
    loss: str | None
    optimizer: str | None
    optimizer_state: str | None
    replicated_tensor_sharding: bool | None
    least_sharded_elements: int | None
    sharding_domain: int | None
    recompute: str | Sequence[str] | None
    batch_norm_span: int | None
    merge_gradients_bytes: int | None
    host_servers: int | None
    loader_workers: int | None
    dataset: str | None

class ModelOptions(RunOptions, total=False):
    shapes: Mapping[str, Any] | None
    dims: Mapping[str, Any] | None
    values: Mapping[str, Any] | None
    allow_unknown: bool
