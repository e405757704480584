"""The MK2 benchmark blog: each claimed ratio from a simulated IPU and a published or modelled GPU.

The blog prints ratios, not the numbers behind them. What is put in their place, and what of it is
assumed, stands in ``data/runs/mk2_comparisons.csv``: one line per claim, or one per phase where
times are added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pandas as pd

from ipusim import files
from ipusim.errors import DataError
from ipusim.files import number_cell, read_records
from ipusim.runtime.gpu.step import simulate_gpu
from ipusim.study.data.published import PublishedRow, load_claims, load_rows
from ipusim.study.data.runs import load_run
from ipusim.study.predict import Predictor
from ipusim.study.verdicts.compare import (
    NOT_MODELLED,
    PREDICTED,
    error_percent,
    verdict_of,
    verdicts,
)
from ipusim.study.verdicts.compare_gpu import conformal_ratios, gpu_compare

STUDY = "mk2"
FILE = "mk2_comparisons.csv"
QUANTITIES = (
    "throughput_ratio",
    "latency_ratio",
    "time_ratio",
    "hours_ratio",
    "throughput",
    "hours",
    "version",
)
"""What a claim compares: rates, latencies, times for given items, hours of a run; or one alone."""
AT_LEAST = ("over", "more than", "greater than (qualitative)")
AT_MOST = ("less than",)
"""Qualifiers of claims that only bound: a prediction beyond the bound agrees with them."""
GPU_HOURS_CLAIM = "GB17"
"""The hours on a GPU that the blog states itself, the other side of ``hours_ratio``."""

COLUMNS = (
    "claim_id",
    "model",
    "task",
    "metric",
    "unit",
    "qualifier",
    "claimed",
    "predicted",
    "low80",
    "high80",
    "from_published",
    "against_bare_gpu",
    "per_chip",
    "gpu_side",
    "implied_gpu_rate",
    "error_percent",
    "verdict",
    "status",
    "assumed",
    "note",
)

_SECONDS_PER_HOUR = 3600.0
_NEAREST = ("row_id", "gpu", "framework", "precision", "batch", "published")
_GPU_OPTIONS = ("gpu", "gpu_mode", "gpu_precision", "gpu_framework", "gpu_optimizer")
_COUNTS = {"gpus": "gpus", "gpu_batch": "batch"}
_TEXTS = ("claim_id", "quantity", "ipu", "gpu_row", "gpu_model", "source", "not_modelled", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What stands behind a claim, or behind one phase of it.

    Attributes
    ----------
    claim_id, quantity : str
        Which claim, and what it compares (`QUANTITIES`).
    ipu : str
        Published row whose run is simulated, or a run of which nothing is published, with the
        suffix ``.latency`` for its latency.
    ipu_items, gpu_items : float
        Items to be done, where times are compared; 1 otherwise.
    gpu_row : str
        Published GPU row; empty where the GPU is only modelled.
    gpu_model : str
        Name in the zoo, for a GPU without a published row.
    gpu_options : dict
        Arguments of `simulate_gpu` for it.
    assumed : tuple of str
        Fields that the blog does not state.
    source, not_modelled, note : str
        Where this comes from, why there is nothing to compare, what a reader must know.
    """

    claim_id: str
    quantity: str
    ipu: str
    ipu_items: float
    gpu_items: float
    gpu_row: str
    gpu_model: str
    gpu_options: dict[str, str | int]
    assumed: tuple[str, ...]
    source: str
    not_modelled: str
    note: str


def _parse(record: dict[str, str], path: Path) -> Comparison:
    if record["quantity"] not in QUANTITIES:
        raise DataError(
            f"The cell 'quantity' of claim {record['claim_id']!r} in {path.name} is "
            f"{record['quantity']!r}: use one of {', '.join(QUANTITIES)}."
        )
    named = record | {"row_id": record["claim_id"]}
    items = {
        column: float(number_cell(named, column, path, float)) if record[column] else 1.0
        for column in ("ipu_items", "gpu_items")
    }
    options: dict[str, str | int] = {
        column.removeprefix("gpu_"): record[column] for column in _GPU_OPTIONS if record[column]
    }
    for column, name in _COUNTS.items():
        if record[column]:
            options[name] = int(number_cell(named, column, path, int))
    return Comparison(
        **{name: record[name] for name in _TEXTS},
        **items,
        gpu_options=options,
        assumed=tuple(record["assumed"].split()),
    )


@lru_cache(maxsize=4)
def _load(path: Path) -> tuple[Comparison, ...]:
    columns = (*_TEXTS, "ipu_items", "gpu_items", *_GPU_OPTIONS, *_COUNTS, "assumed")
    return tuple(_parse(record, path) for record in read_records(path, columns))


def load_comparisons() -> tuple[Comparison, ...]:
    """Return what stands behind each claim, in the order of the claims.

    Raises
    ------
    DataError
        If the file is missing or damaged.
    """
    return _load(files.data_dir() / "runs" / FILE)


def study_rows() -> tuple[PublishedRow, ...]:
    """Return the rows on the IPU side of the claims.

    Returns
    -------
    tuple of PublishedRow
        Rows of the results page; then, with the value NaN, throughputs of runs of which nothing is
        published.

    Raises
    ------
    DataError
        If a data file is missing or damaged.
    UnknownNameError
        If a comparison names neither a published row nor a run.
    """
    known = {row.row_id: row for row in load_rows()}
    rows = {
        part.ipu: known[part.ipu] if part.ipu in known else _row_of_run(part.ipu)
        for part in load_comparisons()
        if part.ipu
    }
    return tuple(rows.values())


def _row_of_run(name: str) -> PublishedRow:
    """Return the row that stands for a number of a run: its throughput, or ``<run>.latency``."""
    run_id = name.removesuffix(".latency")
    metric, unit = ("throughput", "items/s") if run_id == name else ("latency", "ms")
    return PublishedRow(
        row_id=name,
        run=load_run(run_id),
        study=STUDY,
        table="",
        metric=metric,
        unit=unit,
        value=math.nan,
        printed="",
        label=run_id,
        source_line="",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One side of a comparison: a rate, a latency or a time; NaN where it is not known.

    Attributes
    ----------
    predicted, low80, high80 : float
        Simulated or modelled, with its 80 % interval.
    published : float
        As printed elsewhere.
    bare : float
        The prediction without any cost of a software stack; only GPUs have one of their own.
    chips : int
        Chips, or boards, that do the work.
    name : str
        What it is, for a reader.
    missing : str
        Why there is no prediction; empty where there is one.
    """

    predicted: float = math.nan
    low80: float = math.nan
    high80: float = math.nan
    published: float = math.nan
    bare: float = math.nan
    chips: int = 1
    name: str = ""
    missing: str = ""

    def as_time(self, items: float, *, rate: bool) -> _Side:
        """Return the time for so many items, from a rate or from the time of one."""

        def convert(value: float) -> float:
            return items / value if rate else items * value

        ends = sorted((convert(self.low80), convert(self.high80)))
        return _Side(
            predicted=convert(self.predicted),
            low80=ends[0],
            high80=ends[1],
            published=convert(self.published),
            bare=convert(self.bare),
            chips=self.chips,
            name=self.name,
            missing=self.missing,
        )

    @property
    def spread(self) -> tuple[float, float]:
        """Logarithms of the ends of the interval over the prediction; NaN without an interval."""
        if not (self.low80 > 0 and self.predicted > 0):
            return math.nan, math.nan
        return math.log(self.low80 / self.predicted), math.log(self.high80 / self.predicted)


def _add(sides: Sequence[_Side]) -> _Side:
    """Add times that follow one another; the errors of phases of one network go together."""
    return _Side(
        predicted=sum(side.predicted for side in sides),
        low80=sum(side.low80 for side in sides),
        high80=sum(side.high80 for side in sides),
        published=sum(side.published for side in sides),
        bare=sum(side.bare for side in sides),
        chips=sides[0].chips,
        name=" + ".join(dict.fromkeys(side.name for side in sides)),
        missing="; ".join(dict.fromkeys(side.missing for side in sides if side.missing)),
    )


def _ratio(above: _Side, below: _Side) -> _Side:
    """Divide two sides; their errors are independent, so their spreads add up in squares."""
    predicted = above.predicted / below.predicted
    bare = (_bare(above), _bare(below))
    up_low, up_high = above.spread
    down_low, down_high = below.spread
    return _Side(
        predicted=predicted,
        low80=predicted * math.exp(-math.hypot(up_low, down_high)),
        high80=predicted * math.exp(math.hypot(up_high, down_low)),
        published=above.published / below.published,
        bare=bare[0] / bare[1],
    )


def _bare(side: _Side) -> float:
    return side.predicted if math.isnan(side.bare) else side.bare


def _ipu_sides(frame: pd.DataFrame) -> dict[str, _Side]:
    """Return the IPU side of every row, in its own unit; times in seconds."""
    lines = {line["row_id"]: line for line in frame.to_dict("records")}
    sides = {}
    for row in study_rows():
        line = lines[row.row_id]
        scale = 1e-3 if row.unit == "ms" else 1.0
        sides[row.row_id] = _Side(
            predicted=scale * line["calibrated"],
            low80=scale * line["low80"],
            high80=scale * line["high80"],
            published=scale * line["published"],
            chips=row.run.chips,
            name=row.row_id,
            missing="" if line["status"] == PREDICTED else line["note"],
        )
    return sides


def _gpu_side(part: Comparison, gpus: pd.DataFrame) -> tuple[_Side, float]:
    """Return the rate of the GPU side, and the items of one of its steps.

    A published row counts as exact: it is a measurement, and so has no interval.
    """
    if not part.gpu_row:
        report = simulate_gpu(part.gpu_model, **part.gpu_options)
        low, high = conformal_ratios(gpus[gpus["mode"] == report.mode])
        side = _Side(
            predicted=report.throughput,
            low80=low * report.throughput,
            high80=high * report.throughput,
            bare=simulate_gpu(part.gpu_model, **part.gpu_options, op_s=0.0).throughput,
            chips=report.gpus,
            name=f"{report.gpu}, modelled",
        )
        return side, report.batch
    line = gpus[gpus["row_id"] == part.gpu_row]
    if line.empty:
        raise DataError(
            f"The comparison of claim {part.claim_id!r} names the GPU row {part.gpu_row!r}, which "
            f"does not exist: correct {FILE}."
        )
    row = line.iloc[0]
    value = float(row["published"])
    side = _Side(
        predicted=value,
        low80=value,
        high80=value,
        published=value,
        bare=float(row["specification"]),
        chips=int(row["gpus"]),
        name=f"{row['gpu']}, {part.gpu_row}",
    )
    return side, int(row["batch"])


def _hours_on_gpu(claims: pd.DataFrame) -> _Side:
    hours = float(claims.set_index("claim_id").loc[GPU_HOURS_CLAIM, "ratio_or_value"])
    name = f"the blog's {hours:g} hours"
    return _Side(predicted=hours, low80=hours, high80=hours, published=hours, name=name)


def _compare(
    parts: Sequence[Comparison],
    ipus: dict[str, _Side],
    gpus: pd.DataFrame,
    claims: pd.DataFrame,
) -> tuple[_Side, _Side, _Side]:
    """Return what a claim compares: the result, its IPU side, its GPU side."""
    first = parts[0]
    quantity = first.quantity
    if quantity == "throughput":
        return ipus[first.ipu], ipus[first.ipu], _Side()
    if quantity in ("hours", "hours_ratio"):
        own = ipus[first.ipu].as_time(first.ipu_items / _SECONDS_PER_HOUR, rate=False)
        if quantity == "hours":
            return own, own, _Side()
        other = _hours_on_gpu(claims)
        return _ratio(other, own), own, other
    sides = [_gpu_side(part, gpus) for part in parts]
    if quantity == "throughput_ratio":
        own, other = ipus[first.ipu], sides[0][0]
        return _ratio(own, other), own, other
    if quantity == "latency_ratio":
        own = ipus[first.ipu]
        other = sides[0][0].as_time(sides[0][1], rate=True)
    else:
        own = _add([ipus[part.ipu].as_time(part.ipu_items, rate=True) for part in parts])
        other = _add(
            [
                side.as_time(part.gpu_items, rate=True)
                for part, (side, _) in zip(parts, sides, strict=True)
            ]
        )
    return _ratio(other, own), own, other


def judge(predicted: float, claimed: float, qualifier: str) -> tuple[float, str]:
    """Return the error of a prediction against a claim in percent, and its verdict.

    Parameters
    ----------
    predicted, claimed : float
        In the same unit.
    qualifier : str
        Where the claim is a bound (`AT_LEAST`, `AT_MOST`), a prediction beyond it is a hit.
    """
    error = error_percent(predicted, claimed)
    agrees = (qualifier in AT_LEAST and error >= 0) or (qualifier in AT_MOST and error <= 0)
    return error, "hit" if agrees else verdict_of(predicted, claimed)


def compare_claims(
    *, frame: pd.DataFrame | None = None, predictor: Predictor | None = None
) -> pd.DataFrame:
    """Recompute every claim of the blog.

    Parameters
    ----------
    frame : pandas.DataFrame, optional
        Verdicts on `study_rows`, by default computed.
    predictor : Predictor, optional
        By default the real one.

    Returns
    -------
    pandas.DataFrame
        One line per claim, columns `COLUMNS`: the claim as printed; ``predicted`` with the
        simulated IPU and the published GPU (or the modelled one where none is published);
        ``from_published`` with published numbers on both sides; ``against_bare_gpu`` with a GPU
        model that charges nothing for its software, the fastest that any software could be;
        ``per_chip`` the prediction for as many IPUs as boards, of rates and times;
        ``implied_gpu_rate`` the GPU's items per second that would make the claim true of the
        simulated IPU; error and verdict as `judge` says. A claim with nothing to compare says why.

    Raises
    ------
    DataError
        If a data file is missing or damaged.
    """
    if frame is None:
        frame = verdicts(study_rows(), predictor=predictor)
    claims = load_claims(STUDY)
    ipus, gpus = _ipu_sides(frame), gpu_compare()
    parts_of: dict[str, list[Comparison]] = {}
    for part in load_comparisons():
        parts_of.setdefault(part.claim_id, []).append(part)
    lines = []
    for claim in claims.to_dict("records"):
        parts = parts_of.get(claim["claim_id"])
        if parts is None:
            raise DataError(f"The claim {claim['claim_id']!r} has no line in {FILE}: add one.")
        lines.append(_line(claim, parts, ipus, gpus, claims))
    return pd.DataFrame(lines, columns=list(COLUMNS))


def _line(
    claim: dict[str, str],
    parts: Sequence[Comparison],
    ipus: dict[str, _Side],
    gpus: pd.DataFrame,
    claims: pd.DataFrame,
) -> dict[str, float | str]:
    claimed = float(pd.to_numeric(claim["ratio_or_value"], errors="coerce"))  # some are words
    line: dict[str, float | str] = {
        **{name: claim[name] for name in ("claim_id", "model", "task", "metric", "unit")},
        "qualifier": claim["qualifier"],
        "claimed": claimed,
        "assumed": " ".join(dict.fromkeys(name for part in parts for name in part.assumed)),
        "gpu_side": "",
    }
    note = "; ".join(dict.fromkeys(part.note for part in parts if part.note))
    missing = parts[0].not_modelled
    missing = missing or "; ".join(filter(None, (ipus[part.ipu].missing for part in parts)))
    if missing:
        return line | {
            "verdict": "",
            "status": NOT_MODELLED,
            "note": "; ".join(filter(None, (missing, note))),
        }
    result, own, other = _compare(parts, ipus, gpus, claims)
    error, verdict = judge(result.predicted, claimed, claim["qualifier"])
    of_machines = parts[0].quantity in ("throughput_ratio", "time_ratio")
    of_rates = parts[0].quantity == "throughput_ratio"
    alone = math.isnan(other.predicted)
    return line | {
        "predicted": result.predicted,
        "low80": result.low80,
        "high80": result.high80,
        "from_published": result.published,
        "against_bare_gpu": math.nan if alone or math.isnan(other.bare) else result.bare,
        "per_chip": result.predicted * other.chips / own.chips if of_machines else math.nan,
        "gpu_side": other.name,
        "implied_gpu_rate": own.predicted / claimed if of_rates else math.nan,
        "error_percent": error,
        "verdict": verdict,
        "status": PREDICTED,
        "note": note,
    }


def chip_arithmetic(frame: pd.DataFrame) -> pd.DataFrame:
    """Divide claimed ratios of throughput by claimed ratios of latency of the same network.

    One batch at a time, a machine of n chips has n times the throughput over latency of one chip:
    the quotient counts the chips that stand on one side of the comparison.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `compare_claims`.

    Returns
    -------
    pandas.DataFrame
        Per network with both claims: model, throughput_ratio, latency_ratio, quotient, and
        predicted_quotient of the predictions.
    """
    lowest = frame[frame["metric"].str.contains("ratio") & (frame["task"] == "inference")]
    lines = []
    for model, group in lowest.groupby("model", sort=False):
        latency = group[group["metric"].str.startswith("latency")]
        rate = group[group["metric"].str.startswith("throughput")]
        if latency.empty or rate.empty:
            continue
        both = rate.iloc[0], latency.iloc[0]
        lines.append(
            {
                "model": model,
                "throughput_ratio": both[0]["claimed"],
                "latency_ratio": both[1]["claimed"],
                "quotient": both[0]["claimed"] / both[1]["claimed"],
                "predicted_quotient": both[0]["predicted"] / both[1]["predicted"],
            }
        )
    return pd.DataFrame(lines)


def implied_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Find the published GPU row that comes nearest to what each claim implies.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `compare_claims`.

    Returns
    -------
    pandas.DataFrame
        Per claim on throughput against a published GPU row: claim_id, model, implied_gpu_rate
        (items/s), and of the nearest row of the same network, mode and number of boards:
        row_id, gpu, framework, precision, batch, published (items/s), difference_percent.
    """
    gpus = gpu_compare().set_index("row_id", drop=False)
    named = {part.claim_id: part.gpu_row for part in load_comparisons() if part.gpu_row}
    lines = []
    for claim in frame[frame["implied_gpu_rate"].notna()].to_dict("records"):
        if claim["claim_id"] not in named:
            continue
        own = gpus.loc[named[claim["claim_id"]]]
        alike = gpus[
            (gpus["model"] == own["model"])
            & (gpus["task"] == own["task"])
            & (gpus["gpus"] == own["gpus"])
        ]
        error = 100.0 * (alike["published"] / claim["implied_gpu_rate"] - 1.0)
        nearest = alike.loc[error.abs().idxmin()]
        lines.append(
            {
                "claim_id": claim["claim_id"],
                "model": claim["model"],
                "implied_gpu_rate": claim["implied_gpu_rate"],
                **{name: nearest[name] for name in _NEAREST},
                "difference_percent": error[nearest["row_id"]],
            }
        )
    return pd.DataFrame(lines)
