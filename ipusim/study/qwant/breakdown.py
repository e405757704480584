"""Inside the Qwant prediction: parts of the latency, blocks of the network.

What is predicted here is the specification tier: nothing in it is fitted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from ipusim.runtime.options.spec import RunConfig
from ipusim.runtime.step import StepResult
from ipusim.study.qwant.study import (
    PUBLISHED_PRECISION,
    PUBLISHED_SYSTEM,
    report_for,
    rows_for,
)

PARTS = {
    "host_work_ms": "host prepares the batch",
    "transfers_ms": "host link",
    "sync_ms": "sync",
    "exchange_ms": "exchange",
    "copies_ms": "copies on the tile",
    "conv_compute_ms": "convolutions, compute",
    "norm_compute_ms": "normalisation, compute",
    "other_compute_ms": "other compute",
}
"""Columns of `latency_parts` that add up to the latency, with what they are."""

PHASES = {
    "compute_us": "compute",
    "copy_us": "copies on the tile",
    "exchange_us": "exchange",
    "sync_us": "sync",
}
"""Columns of `block_profile` that add up to the time of a block."""

_BLOCK = re.compile(r"^layer(\d)\.(\d+)\.")
_HEAD_KINDS = ("reduce", "matmul", "softmax")
_SECONDS_TO_MS = 1e3


def latency_parts(
    batch_sizes: Sequence[int],
    *,
    system: str = PUBLISHED_SYSTEM,
    precision: str = PUBLISHED_PRECISION,
) -> pd.DataFrame:
    """Split the latency of every batch size into what it is made of.

    Parameters
    ----------
    batch_sizes : sequence of int
        Batch sizes of the card.
    system, precision : str
        As in the report, or something else.

    Returns
    -------
    pandas.DataFrame
        Per batch size, in milliseconds: the columns of `PARTS`, ``waiting_ms`` (where the host
        link alone limits the rate of steps), their sum ``latency_ms`` and ``published_ms``.

    Raises
    ------
    ConfigError, UnknownNameError
        As `ipusim.study.qwant.study.rows_for`.
    """
    lines = []
    for row in rows_for(batch_sizes, system=system, precision=precision):
        if row.metric != "latency":
            continue
        report = report_for(row.run.micro_batch or 1, system=system, precision=precision)
        parts = _parts_ms(report.result, report.config)
        total = _SECONDS_TO_MS * report.result.latency_s
        lines.append(
            {
                "batch_size": row.run.items_per_step,
                **parts,
                # rounded: a difference of sums, else noise would be printed
                "waiting_ms": round(max(0.0, total - sum(parts.values())), 9),
                "latency_ms": total,
                "published_ms": row.value,
            }
        )
    return pd.DataFrame(lines)


def _parts_ms(result: StepResult, config: RunConfig) -> dict[str, float]:
    """Return the parts of one step in the order of `PARTS`."""
    program = result.program
    compute = {"conv": 0, "norm": 0, "other": 0}
    for op in program.ops:
        kind = op.kind if op.kind in compute else "other"
        compute[kind] += sum(step.repeats * step.compute_cycles for step in op.steps)
    phases = program.phase_cycles()
    cycles_to_ms = _SECONDS_TO_MS / config.system.chip.clock_hz
    return {
        "host_work_ms": _SECONDS_TO_MS * result.io.work_s,
        "transfers_ms": _SECONDS_TO_MS * result.io.exposed_s,
        "sync_ms": cycles_to_ms * phases["sync"],
        "exchange_ms": cycles_to_ms * phases["exchange"],
        "copies_ms": cycles_to_ms * phases["copy"],
        **{f"{kind}_compute_ms": cycles_to_ms * cycles for kind, cycles in compute.items()},
    }


def block_profiles(
    micro_batches: Sequence[int],
    *,
    system: str = PUBLISHED_SYSTEM,
    precision: str = PUBLISHED_PRECISION,
) -> dict[int, pd.DataFrame]:
    """Simulate several micro-batches and return the profile of each.

    Parameters
    ----------
    micro_batches : sequence of int
        Items per IPU.
    system, precision : str
        As in the report, or something else.

    Returns
    -------
    dict of int to pandas.DataFrame
        Micro-batch to `block_profile`.
    """
    return {
        size: block_profile(report_for(size, system=system, precision=precision).layers)
        for size in micro_batches
    }


def block_profile(layers: pd.DataFrame) -> pd.DataFrame:
    """Add up the device time of every residual block, in the order of the network.

    Parameters
    ----------
    layers : pandas.DataFrame
        ``report.layers`` of a residual network.

    Returns
    -------
    pandas.DataFrame
        Columns block (``"stem"``, ``"2.1"`` for the first block of stage 2 of the ResNeXt paper,
        ..., ``"head"``), stage, the columns of `PHASES` (microseconds), time_us, macs and
        utilisation_percent (of the peak of the chip's convolution units).
    """
    labelled = layers.assign(block=[_block_of(op.op, op.kind) for op in layers.itertuples()])
    us_per_cycle = layers["time_us"].sum() / max(1, layers["cycles"].sum())
    # work / utilisation is what the chip could have done in the same cycles
    possible = labelled["utilisation_percent"] / 100.0 * labelled["cycles"]
    labelled = labelled.assign(useful_cycles=possible)
    summed = labelled.groupby("block", sort=False)[
        [
            "cycles", "useful_cycles", "macs", "time_us",
            *(f"{name.removesuffix('_us')}_cycles" for name in PHASES),
        ]
    ].sum()  # fmt: skip
    return pd.DataFrame(
        {
            "block": list(summed.index),
            "stage": [name.split(".")[0] for name in summed.index],
            **{
                name: us_per_cycle * summed[f"{name.removesuffix('_us')}_cycles"].to_numpy()
                for name in PHASES
            },
            "time_us": summed["time_us"].to_numpy(),
            "macs": summed["macs"].to_numpy(),
            "utilisation_percent": (100.0 * summed["useful_cycles"] / summed["cycles"]).to_numpy(),
        }
    )


def _block_of(op: str, kind: str) -> str:
    """Return the block of an operation by the name that the zoo gives it."""
    found = _BLOCK.match(op)
    if found:
        return f"{int(found[1]) + 1}.{int(found[2]) + 1}"
    return "head" if kind in _HEAD_KINDS or op.startswith(("avgpool", "fc")) else "stem"


def stage_frame(profiles: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """Compare the stages of the network at several micro-batches.

    Parameters
    ----------
    profiles : mapping of int to pandas.DataFrame
        Micro-batch to `block_profile`.

    Returns
    -------
    pandas.DataFrame
        Per stage: share of the multiply-accumulates, then per micro-batch time (microseconds),
        share of the device time and utilisation (percent).
    """
    shown = None
    for micro_batch, profile in profiles.items():
        useful = profile["utilisation_percent"] * profile["time_us"]
        sums = profile.assign(useful=useful).groupby("stage", sort=False)
        totals = sums[["time_us", "macs", "useful"]].sum()
        if shown is None:
            shown = pd.DataFrame({"macs_percent": 100.0 * totals["macs"] / totals["macs"].sum()})
        time = totals["time_us"]
        shown[f"time_us_{micro_batch}"] = time
        shown[f"time_{micro_batch}_percent"] = 100.0 * time / time.sum()
        shown[f"utilisation_{micro_batch}_percent"] = totals["useful"] / time
    return shown.reset_index()
