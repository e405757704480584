"""Inside a training step of the TAMU study: its parts, and what each costs when IPUs are added."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ipusim.study.breakdown import by_group
from ipusim.study.data.runs import load_run
from ipusim.study.predict import report_of
from ipusim.study.specs import load_spec
from ipusim.study.tamu.memory import RESNET_RUN, at_micro_batch
from ipusim.study.tamu.scaling import run_at
from ipusim.study.tamu.study import STUDY, TENSORFLOW_SERIES
from ipusim.view import values


def parts_by_ipus(
    ipus: Sequence[int], *, series: str = TENSORFLOW_SERIES, tier: str = "calibrated"
) -> pd.DataFrame:
    """Split the time per micro-batch, updates spread over it, on several numbers of IPUs."""
    tables = []
    for count in sorted(ipus):
        report = report_of(run_at(count, series), tier=tier)
        accumulation = report.config.gradient_accumulation
        each = report.parts["time_ms"] / accumulation
        about = {"ipus": count, "accumulation": accumulation}
        tables.append(report.parts.assign(**about, time_ms=each))
    return pd.concat(tables, ignore_index=True)


def mechanisms(parts: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Say by how much each mechanism slows several IPUs down against one, in percent."""
    known = published.sort_values("instances").drop_duplicates("ipus").set_index("ipus")
    times = parts.pivot(index="ipus", columns="part", values="time_ms").fillna(0.0)
    grown = 100.0 * (times - times.loc[1]) / times.loc[1].sum()
    slowdown = known["published_slowdown"].reindex(times.index)
    frame = pd.DataFrame(
        {
            "accumulation": parts.groupby("ipus")["accumulation"].first(),
            "published_slowdown_percent": 100.0 * (slowdown - 1.0),
            "predicted_slowdown_percent": grown.sum(axis=1),
            **{
                column: grown.reindex(columns=list(names), fill_value=0.0).sum(axis=1)
                for column, names in load_spec(STUDY)["mechanisms"].items()
            },
        }
    )
    return frame.reset_index()


def device_work(micro_batches: Sequence[int], *, tier: str = "calibrated") -> pd.DataFrame:
    """Split the time of one IPU on micro-batches (images) of Table 3 by the kind of work."""
    run, kinds, tables = load_run(RESNET_RUN), load_spec(STUDY)["work"], []
    for size in micro_batches:
        report = report_of(at_micro_batch(run, size), tier=tier)
        layers = report.layers[report.layers["phase"] != "update"]
        work = np.select([values(layers, only) for only in kinds.values()], list(kinds), "")
        sums = by_group(layers, work)
        sums = sums.assign(label=f"micro-batch {size}", time_ms=1e-3 * sums["time_us"])
        tables.append(sums.sort_values("group", key=lambda names: names.map(list(kinds).index)))
    shown = pd.concat(tables, ignore_index=True).rename(columns={"group": "part"})
    return shown[["label", "part", "time_ms", "share_percent"]]


def device_work_frame(work: pd.DataFrame) -> pd.DataFrame:
    """Return `device_work` as milliseconds per kind of work, with their sum; a column per bar."""
    frame = work.pivot(index="part", columns="label", values="time_ms")[work["label"].unique()]
    kinds = [name for name in load_spec(STUDY)["work"] if name in frame.index]
    frame = frame.loc[kinds].rename_axis(columns=None)
    frame.loc["together"] = frame.sum()
    return frame.rename_axis("work").reset_index()
