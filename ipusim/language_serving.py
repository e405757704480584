"""Serving a language model: a prompt is read at once, then each new token from a cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ipusim.api import names_options, simulate
from ipusim.errors import check_name
from ipusim.workload.zoo.registry import find

if TYPE_CHECKING:
    import pandas as pd

SERVED = ("gpt2_small", "gpt2_medium", "gpt2_large")
"""Networks whose builder keeps keys and values on the chip."""


@names_options
def serving(
    model: str = "gpt2_small",
    *,
    micro_batch: int | Iterable[int] = (1, 4, 16),
    context: int | Iterable[int] = (256, 1024),
    prompt: int | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Predict prefill and decode of a language model with its cache on the chip.

    Parameters
    ----------
    model : {"gpt2_small", "gpt2_medium", "gpt2_large"}
    micro_batch : int or iterable of int
        Sequences per replica that are served together.
    context : int or iterable of int
        Tokens that the cache has room for; every new token attends to all of them.
    prompt : int, optional
        Tokens of a prompt; by default half of the context.
    **options
        Options of `simulate`.

    Returns
    -------
    pandas.DataFrame
        Per micro-batch and context: cache (MB of a replica), prefill (ms), decode (ms per token),
        tokens per second of all replicas while they decode, and of each sequence, and whether
        prefill and decode fit; NaN where they do not.

    Raises
    ------
    UnknownNameError
        If the model keeps no cache.
    IpuSimError
        As `simulate`.

    Notes
    -----
    A network of your own is served the same way where it takes its past as inputs: give their
    length with ``dims``; the past then crosses the host link in every step.

    Examples
    --------
    >>> table = ipusim.serving("gpt2_small", micro_batch=[1, 4], context=64)
    >>> table["cache_mb"].round(2).tolist()
    [2.36, 9.44]
    """
    import pandas as pd

    check_name("model with a cache", model, SERVED)
    network = find(model)
    rows = []
    for length, size in itertools.product(_listed(context), _listed(micro_batch)):
        first = network(sequence_length=prompt or max(1, length // 2), context=length)
        filled = simulate(first, micro_batch=size, **options)
        decoded = simulate(network(context=length, decode=True), micro_batch=size, **options)
        stored = decoded.result.graph.with_role("state")
        rows.append(
            {
                "model": model,
                "context": length,
                "micro_batch": size,
                "cache_mb": sum(tensor.bytes for tensor in stored) / 1e6,
                "prefill_ms": 1e3 * filled.latency.value,
                "decode_ms": 1e3 * decoded.latency.value,
                "tokens_per_s": decoded.throughput.value,
                "tokens_per_s_each": 1 / decoded.latency.value,
                "fits": filled.fits and decoded.fits,
            }
        )
    return pd.DataFrame(rows)


def _listed(value: int | Iterable[int]) -> list[int]:
    return list(value) if isinstance(value, Iterable) else [value]
