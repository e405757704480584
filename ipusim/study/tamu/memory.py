"""Which micro-batch still fits one IPU, beside what the TAMU study says."""

import dataclasses
from collections.abc import Sequence

import pandas as pd

from ipusim.study.data.runs import RunConfiguration, load_run
from ipusim.study.predict import report_of

RESNET_RUN = "tamu.table3.07"
AUTOENCODER_RUN = "tamu.table4.06"
BY_CONSTRUCTION = (AUTOENCODER_RUN,)
"""Runs whose assumed network was chosen so that the stated micro-batch is the largest."""
STATED_LARGEST = {RESNET_RUN: 20, AUTOENCODER_RUN: 10}
"""Largest micro-batch of one GC200 by the text (claims TA21 and TA23)."""
_BYTES = ("always_live_bytes", "peak_tile_bytes", "tile_bytes")


def at_micro_batch(run: RunConfiguration, micro_batch: int) -> RunConfiguration:
    """Return a run with another micro-batch."""
    return dataclasses.replace(run, run_id=f"{run.run_id}.{micro_batch}", micro_batch=micro_batch)


def memory_by_micro_batch(
    micro_batches: Sequence[int], *, run_id: str = RESNET_RUN
) -> pd.DataFrame:
    """Simulate the memory of one IPU over the micro-batch (images), all else as in the run.

    Bytes are those of the fullest tile, used is their peak in percent of what a tile has.
    """
    run, lines = load_run(run_id), []
    for size in sorted(micro_batches):
        report = report_of(at_micro_batch(run, size), tier="specification")
        memory = report.result.memory
        line = {"run_id": run_id, "micro_batch": size}
        line |= {name: getattr(memory, name) for name in _BYTES}
        line |= {"used_percent": 100.0 * memory.peak_tile_bytes / memory.tile_bytes}
        line |= {"fits": report.fits, "peak_op": memory.peak_op}
        lines.append(line | {"throughput_images_per_s": float(report.throughput)})
    return pd.DataFrame(lines)


def largest_fits(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Put the stated largest micro-batch beside the largest that fits with every smaller one."""
    lines = []
    for frame in frames:
        run = load_run(frame["run_id"].iloc[0])
        stated, tried = STATED_LARGEST[run.run_id], frame.set_index("micro_batch").sort_index()
        # up to which all fit; 0 if the smallest does not
        fitting = max([0, *tried.index[tried["fits"].astype(bool).cummin()]])
        reading = _reading(stated, fitting, max(tried.index))
        lines.append(
            {
                "network": run.model,
                "stated": stated,
                "used_percent": tried["used_percent"].get(stated, float("nan")),
                "simulated": fitting,
                "tested_up_to": max(tried.index),
                "reading": reading + (", by construction" if run.run_id in BY_CONSTRUCTION else ""),
            }
        )
    return pd.DataFrame(lines)


def _reading(stated: int, fitting: int, tried: int) -> str:
    if not fitting:
        return "none of those tried fits"
    if fitting == tried and fitting > stated:
        return "the model leaves more room than the study found"
    if abs(fitting - stated) <= 2:
        return "agrees within two"
    if fitting > stated:
        return f"the model lets {fitting - stated} images more fit"
    return f"the model lets {stated - fitting} images fewer fit"
