"""Inside the Qwant prediction: parts of the latency, blocks of the network.

What is predicted here is the specification tier: nothing in it is fitted.
"""

import re
from collections.abc import Mapping, Sequence

import pandas as pd

from ipusim.report import Report
from ipusim.study.breakdown import by_group
from ipusim.study.qwant.study import latency_rows, report_for

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


def latency_parts(batch_sizes: Sequence[int], **changes: str) -> pd.DataFrame:
    """Split the latency of every batch size of the card into what it is made of.

    `changes` are system and precision, where other than in the report, as for `rows_for`. Per batch
    size, in milliseconds: the columns of `PARTS`, ``waiting_ms`` (where the host link alone limits
    the rate of steps), their sum ``latency_ms`` and ``published_ms``.
    """
    lines = []
    for row in latency_rows(batch_sizes, **changes):
        report = report_for(row.run.micro_batch or 1, **changes)
        parts = _parts_ms(report)
        total = _SECONDS_TO_MS * report.result.latency_s
        # rounded: a difference of sums, else noise would be printed
        waiting = round(max(0.0, total - sum(parts.values())), 9)
        whole = {"waiting_ms": waiting, "latency_ms": total, "published_ms": row.value}
        lines.append({"batch_size": row.run.items_per_step} | parts | whole)
    return pd.DataFrame(lines)


def _parts_ms(report: Report) -> dict[str, float]:
    """Return the parts of one step in the order of `PARTS`."""
    program, io = report.result.program, report.result.io
    compute = {"conv": 0, "norm": 0, "other": 0}
    for op in program.ops:
        kind = op.kind if op.kind in compute else "other"
        compute[kind] += sum(step.repeats * step.compute_cycles for step in op.steps)
    phases = program.phase_cycles()
    cycles_to_ms = _SECONDS_TO_MS / report.config.system.chip.clock_hz
    return {
        "host_work_ms": _SECONDS_TO_MS * io.work_s,
        "transfers_ms": _SECONDS_TO_MS * io.exposed_s,
        "sync_ms": cycles_to_ms * phases["sync"],
        "exchange_ms": cycles_to_ms * phases["exchange"],
        "copies_ms": cycles_to_ms * phases["copy"],
        **{f"{kind}_compute_ms": cycles_to_ms * cycles for kind, cycles in compute.items()},
    }


def block_profiles(micro_batches: Sequence[int], **changes: str) -> dict[int, pd.DataFrame]:
    """Add up the device time of every residual block, at several micro-batches (items per IPU).

    `changes` are system and precision, where other than in the report. Per micro-batch
    `ipusim.study.breakdown.by_group` of the blocks ("stem", "2.1" for the first block of stage 2 of
    the ResNeXt paper, ..., "head"), with their stage.
    """
    profiles = {}
    for size in micro_batches:
        layers = report_for(size, **changes).layers
        blocks = by_group(layers, [_block_of(op.op, op.kind) for op in layers.itertuples()])
        profiles[size] = blocks.assign(stage=blocks["group"].str.split(".").str[0])
    return profiles


def _block_of(op: str, kind: str) -> str:
    """Return the block of an operation by the name that the zoo gives it."""
    found = _BLOCK.match(op)
    if found:
        return f"{int(found[1]) + 1}.{int(found[2]) + 1}"
    return "head" if kind in _HEAD_KINDS or op.startswith(("avgpool", "fc")) else "stem"


def stage_frame(profiles: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """Compare the stages of the network at several micro-batches (`block_profiles`).

    Per stage: share of the multiply-accumulates, then per micro-batch time (microseconds), share of
    the device time and utilisation (percent).
    """
    shown = pd.DataFrame()
    for micro_batch, profile in profiles.items():
        useful = profile["utilisation_percent"] * profile["time_us"]
        sums = profile.assign(useful=useful).groupby("stage", sort=False)
        totals = sums[["time_us", "macs", "useful"]].sum()
        time, macs = totals["time_us"], totals["macs"]
        if shown.empty:
            shown = pd.DataFrame({"macs_percent": 100.0 * macs / macs.sum()})
        shown[f"time_us_{micro_batch}"] = time
        shown[f"time_{micro_batch}_percent"] = 100.0 * time / time.sum()
        shown[f"utilisation_{micro_batch}_percent"] = totals["useful"] / time
    return shown.reset_index()
