"""The ratios on the Argonne slides that are not BraggNN's: each with what is predicted, and why.

Which runs stand behind a ratio, and what of them is assumed, is in data/runs/argonne_claims.toml.
Where the slides do not name the GPU, every candidate has a line of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pandas as pd

from ipusim.api import simulate
from ipusim.errors import DataError
from ipusim.files import read_tables
from ipusim.report import Report
from ipusim.runtime.gpu.step import simulate_gpu
from ipusim.study.data.published import load_claims
from ipusim.study.data.runs import load_run
from ipusim.study.table import Table
from ipusim.study.verdicts.compare import error_percent, verdict_of
from ipusim.study.verdicts.compare_gpu import conformal_ratios, gpu_compare

FILE = "runs/argonne_claims.toml"
QUANTITIES = ("throughput", "program")
"""Items per second; or steps per second of the chip's program alone, where the host is not asked
between steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What stands behind one claim.

    Attributes
    ----------
    claim_id, title : str
    ipu : dict
        Arguments of `simulate`, the model among them.
    gpus : tuple of dict
        Arguments of `simulate_gpu` for each candidate, or ``row``, a published one.
    quantity : str
        One of `QUANTITIES`.
    prices : tuple of str
        Claims whose quotient the ratio is multiplied with; empty for none.
    assumed, source, reason : str
    """

    claim_id: str
    title: str
    ipu: dict[str, Any]
    gpus: tuple[dict[str, Any], ...]
    assumed: str
    source: str
    reason: str
    quantity: str = "throughput"
    prices: tuple[str, ...] = field(default=())


@cache
def load_other_claims() -> tuple[Claim, ...]:
    """Return what stands behind each claim.

    Raises
    ------
    DataError
        If the file is missing or damaged.
    """
    claims = []
    for claim_id, table in read_tables(FILE).items():
        entries = dict(table)
        run_id = entries.pop("run", "")
        if run_id:
            run = load_run(run_id)
            entries["ipu"] = {"model": run.model, **run.options()}
        try:
            claim = Claim(
                claim_id=claim_id,
                gpus=tuple(entries.pop("gpus")),
                prices=tuple(entries.pop("prices", ())),
                **entries,
            )
        except (KeyError, TypeError) as error:
            raise DataError(f"The claim {claim_id!r} in {FILE} is damaged ({error}).") from error
        if claim.quantity not in QUANTITIES:
            raise DataError(
                f"The claim {claim_id!r} in {FILE} has the quantity {claim.quantity!r}: use one of "
                f"{', '.join(QUANTITIES)}."
            )
        claims.append(claim)
    return tuple(claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    """The GPU side: its name, its rate, and the ends of the rate as factors."""

    name: str
    rate: float
    low: float = 1.0
    high: float = 1.0


def _gpu_side(claim: Claim, options: dict[str, Any]) -> _Gpu:
    """Return a candidate: a published row is exact, a modelled one errs as those rows do."""
    frame = gpu_compare()
    if "row" in options:
        rows = frame[frame["row_id"] == options["row"]]
        if rows.empty:
            raise DataError(f"The GPU row {options['row']!r} named in {FILE} does not exist.")
        row = rows.iloc[0]
        return _Gpu(name=f"{row['gpus']} x {row['gpu']}, published", rate=float(row["published"]))
    report = simulate_gpu(**options)
    low, high = conformal_ratios(frame[frame["mode"] == report.mode])
    return _Gpu(
        name=f"{report.gpus} x {report.gpu}, modelled",
        rate=1 / report.step_s if claim.quantity == "program" else report.throughput,
        low=low,
        high=high,
    )


def _ipu_rate(claim: Claim, report: Report) -> tuple[float, float, float]:
    """Return the rate of the IPU side and the ends of its interval; NaN without one."""
    if claim.quantity == "program":
        parts = report.result.parts_s
        seconds = parts["device"] + parts.get("weight update", 0.0)
        return report.config.replicas / seconds, math.nan, math.nan
    rate = report.throughput
    low, high = rate.low80, rate.high80
    return rate.value, math.nan if low is None else low, math.nan if high is None else high


def _spread(value: float, low: float, high: float) -> tuple[float, float]:
    """Return the logarithms of the ends of an interval over its value; 0 where there is none."""
    if math.isnan(low):
        return 0.0, 0.0
    return math.log(low / value), math.log(high / value)


def claims_frame() -> pd.DataFrame:
    """Predict every ratio.

    Returns
    -------
    pandas.DataFrame
        Per claim and candidate GPU: row_id, title, gpu, published ratio (NaN where the slide has a
        bar without a number), ipu_rate and gpu_rate (items/s, or steps/s), predicted, low80 and
        high80 (errors of both sides taken as independent; of the GPU alone where the IPU has no
        interval), error_percent, verdict, fits (whether the IPU run does), assumed, source, reason.

    Raises
    ------
    DataError
        If a data file is damaged.
    """
    printed = load_claims("argonne").set_index("row_id")["value"]
    reports: dict[str, Report] = {}
    lines = []
    for claim in load_other_claims():
        row_id = f"argonne.claims.{claim.claim_id}"
        published = float(pd.to_numeric(printed[row_id], errors="coerce"))
        key = repr(sorted(claim.ipu.items()))
        if key not in reports:
            reports[key] = simulate(**claim.ipu)
        own, own_low, own_high = _ipu_rate(claim, reports[key])
        factor = 1.0
        if claim.prices:
            above, below = claim.prices
            factor = float(printed[above]) / float(printed[below])
        for options in claim.gpus:
            other = _gpu_side(claim, options)
            predicted = factor * own / other.rate
            down, up = _spread(own, own_low, own_high)
            lines.append(
                {
                    "row_id": row_id,
                    "title": claim.title,
                    "gpu": other.name,
                    "published": published,
                    "ipu_rate": own,
                    "gpu_rate": other.rate,
                    "predicted": predicted,
                    "low80": predicted * math.exp(-math.hypot(down, math.log(other.high))),
                    "high80": predicted * math.exp(math.hypot(up, math.log(other.low))),
                    "error_percent": error_percent(predicted, published),
                    "verdict": verdict_of(predicted, published),
                    "fits": reports[key].fits,
                    "assumed": claim.assumed,
                    "source": claim.source,
                    "reason": claim.reason,
                }
            )
    return pd.DataFrame(lines)


def claims_table(frame: pd.DataFrame) -> Table:
    """Show `claims_frame`: ratios with intervals and verdicts."""
    return Table(
        frame,
        caption="Other ratios on the slides, one line per GPU that may be meant",
        columns={
            "row_id": "row",
            "title": "claim",
            "gpu": "GPU taken",
            "published": "slide, x",
            "predicted": "predicted, x",
            "low80": "low 80 %",
            "high80": "high 80 %",
            "error_percent": "error %",
            "verdict": "verdict",
            "fits": "fits the IPU",
        },
        digits=3,
    )


def reasons_table(frame: pd.DataFrame) -> Table:
    """Show what `claims_frame` says of each claim in words, once per claim."""
    return Table(
        frame.drop_duplicates("row_id"),
        caption="What these predictions rest on",
        columns={"title": "claim", "assumed": "assumed", "source": "source", "reason": "reason"},
    )


def uno_frame(batches: tuple[int, ...] = (32, 128, 512, 2048)) -> pd.DataFrame:
    """Show what bounds Uno on one IPU: a step by its parts, over the batch.

    Returns
    -------
    pandas.DataFrame
        Per batch: batch, kB per sample that cross the link, device_ms, transfers_ms, other_ms,
        step_ms, link_percent (transfers over device), samples_per_s, and link_samples_per_s, the
        most that the link alone could pass on.
    """
    (claim,) = (item for item in load_other_claims() if item.ipu["model"] == "uno")
    lines = []
    for batch in batches:
        report = simulate(**(claim.ipu | {"micro_batch": batch}))
        parts, step = report.result.parts_s, report.result.step_s
        device, transfers = parts["device"], parts["transfers"]
        item_bytes = report.result.io.input_bytes / batch
        lines.append(
            {
                "batch": batch,
                "kb_per_sample": 1e-3 * item_bytes,
                "device_ms": 1e3 * device,
                "transfers_ms": 1e3 * transfers,
                "other_ms": 1e3 * (step - device - transfers),
                "step_ms": 1e3 * step,
                "link_percent": 100 * transfers / device,
                "samples_per_s": report.throughput.value,
                "link_samples_per_s": report.config.system.host_bytes_per_s(1) / item_bytes,
            }
        )
    return pd.DataFrame(lines)
