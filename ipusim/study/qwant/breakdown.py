"""Inside the Qwant prediction: parts of the latency, blocks of the network, and their figures.

What is predicted here is the specification tier: nothing in it is fitted.
"""

import re
from collections.abc import Sequence

import pandas as pd

from ipusim.study.breakdown import by_group
from ipusim.study.qwant.study import latency_rows, report_for

_COMPUTE = ("conv", "norm", "other")
"""Kinds of compute that are told apart, all others being "other"."""
_BLOCK = re.compile(r"^layer(\d)\.(\d+)\.")
_HEAD_KINDS = ("reduce", "matmul", "softmax")


def latency_parts(batch_sizes: Sequence[int], **changes: str) -> pd.DataFrame:
    """Split the latency (ms) of every batch size of the card; `changes` are those of `rows_for`."""
    lines = []
    for row in latency_rows(batch_sizes, **changes):
        report = report_for(row.run.micro_batch or 1, **changes)
        kinds = report.layers["kind"]
        work = kinds.where(kinds.isin(_COMPUTE), "other")
        device, io = 1e-3 * by_group(report.layers, work).set_index("group"), report.result.io
        parts = {
            "host_work_ms": 1e3 * io.work_s,
            "transfers_ms": 1e3 * io.exposed_s,
            "sync_ms": device["sync_us"].sum(),
            "exchange_ms": device["exchange_us"].sum(),
            "copies_ms": device["copy_us"].sum(),
            **{f"{kind}_compute_ms": device["compute_us"].get(kind, 0.0) for kind in _COMPUTE},
        }
        total = 1e3 * report.result.latency_s
        # rounded: a difference of sums, else noise would be printed
        waiting = round(max(0.0, total - sum(parts.values())), 9)
        whole = {"waiting_ms": waiting, "latency_ms": total, "published_ms": row.value}
        lines.append({"batch_size": row.run.items_per_step} | parts | whole)
    return pd.DataFrame(lines)


def block_profiles(micro_batches: Sequence[int], **changes: str) -> pd.DataFrame:
    """Add up the device time of every residual block, at several micro-batches (items per IPU).

    `changes` are those of `rows_for`. Blocks are "stem", "2.1" for the first block of stage 2 of
    the ResNeXt paper, ..., "head".
    """
    profiles = []
    for size in micro_batches:
        layers = report_for(size, **changes).layers
        blocks = by_group(layers, [_block_of(op.op, op.kind) for op in layers.itertuples()])
        stages = blocks["group"].str.split(".").str[0]
        profiles.append(blocks.assign(stage=stages, micro_batch=size))
    return pd.concat(profiles)


def _block_of(op: str, kind: str) -> str:
    """Return the block of an operation by the name that the zoo gives it."""
    found = _BLOCK.match(op)
    if found:
        return f"{int(found[1]) + 1}.{int(found[2]) + 1}"
    return "head" if kind in _HEAD_KINDS or op.startswith(("avgpool", "fc")) else "stem"


def stage_frame(profiles: pd.DataFrame) -> pd.DataFrame:
    """Compare the stages of the network at several micro-batches (`block_profiles`)."""
    shown = pd.DataFrame()
    for micro_batch, profile in profiles.groupby("micro_batch", sort=False):
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
