"""What a document says in its text, recomputed: two sides, their ratio, its interval, a verdict.

A document prints ratios, not the numbers behind them. What is put in their place, and what of it is
assumed, stands in ``data/runs/claims_<study>.toml``: per claim its quantity, and per part the IPU
side and what it is compared with (`Sides.find` says how a side is named).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from ipusim.api import simulate
from ipusim.errors import DataError
from ipusim.files import read
from ipusim.runtime.gpu.step import simulate_gpu
from ipusim.study.data.published import PublishedRow, load_claims, rows_by_id
from ipusim.study.data.runs import load_run
from ipusim.study.verdicts.compare import NOT_MODELLED, PREDICTED, TIME_METRICS
from ipusim.study.verdicts.compare_gpu import conformal_ratios, gpu_compare
from ipusim.study.verdicts.errors import error_percent, verdict_of

AT_LEAST = ("over", "more than", "greater than")
AT_MOST = ("less than",)
"""First words of a qualifier of claims that only bound: what lies beyond agrees with them."""
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One run, or one phase of it, on the IPU and on each machine that may be meant beside it."""

    ipu: dict[str, Any]
    gpus: tuple[dict[str, Any], ...] = ()
    # to be done, where times are compared; of rates, an item in items of the other (a pack)
    ipu_items: float = 1.0
    gpu_items: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What stands behind one claim; times of several parts add up.

    ``program_ratio`` is of the chip's program alone, the host not asked between steps; ``gain`` a
    ratio of rates less one, in percent, of which a document states the largest.
    """

    key: str  # its identifier; a suffix tells the networks of one claim apart ("AR10.bert")
    quantity: Literal[
        "throughput_ratio",
        "program_ratio",
        "latency_ratio",
        "time_ratio",
        "throughput",
        "time",
        "hours",
        "gain",
        "none",
    ]
    parts: tuple[Part, ...] = ()
    prices: tuple[str, ...] = ()  # claims whose quotient the ratio is multiplied with
    title: str = ""
    assumed: str = ""  # what the document does not state
    source: str = ""
    note: str = ""
    not_modelled: str = ""  # why nothing is compared, without parts

    @property
    def claim_id(self) -> str:
        """Identifier of the claim in data/published."""
        return self.key.partition(".")[0]


def load_specs(study: str) -> tuple[Claim, ...]:
    """Return what stands behind the claims of a study, in the order of its file."""
    specs = read(Claim, f"runs/claims_{study}.toml")
    for spec in specs:
        if bool(spec.parts) == bool(spec.not_modelled):
            raise DataError(
                f"The claim {spec.key!r} of {study} needs either parts or a reason why it is not "
                "modelled: correct it."
            )
    return specs


NUMBERS = ("value", "low80", "high80", "published", "bare")
"""What a side says of its rate or time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison: a rate or a time with its 80 % interval; NaN where not known."""

    value: float = math.nan  # simulated or modelled
    low80: float = math.nan  # equal ends count as exact
    high80: float = math.nan
    published: float = math.nan  # as printed elsewhere
    bare: float = math.nan  # without any cost of a software stack; only GPUs have one of their own
    is_time: bool = False  # seconds of an item, not items per second
    batch: int = 1  # items of a step
    chips: int = 1  # or boards, that do the work; 0 where the document does not say
    name: str = ""  # for a reader
    missing: str = ""  # why there is no prediction
    fits: bool = True

    def map(self, change: Callable[[float], float]) -> Side:
        """Return the side with all its numbers changed alike."""
        changed = {name: change(getattr(self, name)) for name in NUMBERS}
        low, high = sorted((changed.pop("low80"), changed.pop("high80")))
        return replace(self, low80=low, high80=high, **changed)

    def seconds(self, items: float) -> Side:
        """Return the time for so many items."""
        changed = self.map(lambda value: items * value if self.is_time else items / value)
        return replace(changed, is_time=True)


def add(sides: Sequence[Side]) -> Side:
    """Add times that follow one another; the errors of phases of one network go together."""
    sums = {name: sum(getattr(side, name) for side in sides) for name in NUMBERS}
    return replace(sides[0], **sums, name=" + ".join(dict.fromkeys(side.name for side in sides)))


def ratio(above: Side, below: Side) -> Side:
    """Divide two sides; their errors are independent, so their spreads add up in squares."""
    value = above.value / below.value
    up_low, up_high, down_low, down_high = (
        math.log(end / side.value) for side in (above, below) for end in (side.low80, side.high80)
    )
    bare = [side.value if math.isnan(side.bare) else side.bare for side in (above, below)]
    return Side(
        value=value,
        low80=value * math.exp(-math.hypot(up_low, down_high)),
        high80=value * math.exp(math.hypot(up_high, down_low)),
        published=above.published / below.published,
        bare=bare[0] / bare[1],
    )


def allowed(text: str, qualifier: str) -> tuple[float, float]:
    """Return what a claim allows: "5" is one value, "3-4" a range, "over 5" a bound, words NaN."""
    low, _, high = text.partition("-")
    ends = pd.to_numeric(pd.Series([low, high or low]), errors="coerce")
    least, most = float(ends[0]), float(ends[1])
    if qualifier.startswith(AT_LEAST):
        return least, math.inf
    return (0.0, most) if qualifier.startswith(AT_MOST) else (least, most)


def judge(predicted: float, ends: tuple[float, float]) -> tuple[float, str]:
    """Return error in percent and verdict against the nearest value that fits the claim's words."""
    if math.isnan(ends[0]):
        return math.nan, ""
    fitting = min(max(predicted, ends[0]), ends[1])
    return error_percent(predicted, fitting), verdict_of(predicted, fitting)


class Sides:
    """The sides of the claims of a study, each computed once.

    ``frame`` holds verdicts on `study_rows`, ``own`` how kinds of sides are computed that only this
    study has.
    """

    def __init__(
        self,
        study: str,
        *,
        frame: pd.DataFrame | None = None,
        own: Mapping[str, Callable[[Any], Side]] | None = None,
    ) -> None:
        self.study = study
        self._own = own or {}
        self._known: dict[str, Side] = {}
        lines = {} if frame is None else {line["row_id"]: line for line in frame.to_dict("records")}
        self._rows = {
            row.row_id: _of_row(row, lines[row.row_id])
            for row in (study_rows(study) if lines else ())
        }

    @cached_property
    def gpus(self) -> pd.DataFrame:
        """Published and predicted GPU rows."""
        return gpu_compare()

    def find(self, options: Mapping[str, Any], *, program: bool = False) -> Side:
        """Return a side by what names it, with `program` as steps per second of the program alone.

        ``{"row": ...}`` is a published row of an IPU or a GPU, or a run of which nothing is
        published (``.latency`` for its latency); ``{"run": ...}`` a run simulated without a
        published value; ``{"claim": ...}`` hours that the document states itself; arguments of
        `simulate_gpu` where "gpu" is among them, ``machines`` of them without a loss; else
        arguments of `simulate`.
        """
        key = repr((sorted(options.items()), program))
        if key not in self._known:
            self._known[key] = self._find(dict(options), program)
        return self._known[key]

    def _find(self, options: dict[str, Any], program: bool) -> Side:
        kind = next(iter(options))
        if kind in self._own:
            return self._own[kind](options[kind])
        if kind == "row":
            row_id = options["row"]
            return self._rows[row_id] if row_id in self._rows else self._gpu_row(row_id)
        if kind == "claim":
            hours = float(load_claims(self.study).loc[options["claim"], "value"])
            name = f"the blog's {hours:g} hours"
            seconds = hours * _HOUR_S
            return around(seconds, is_time=True, name=name, published=seconds, chips=0)
        if "gpu" in options:
            return self._modelled_gpu(options, program)
        if kind == "run":
            run = load_run(options.pop("run"))
            options = {"model": run.model, **run.options(), **options}
        report = simulate(**options, as_if_it_fits=True)
        rate, name = report.throughput, f"{report.chip}, modelled"
        common = {"chips": report.config.active_ipus, "fits": report.fits, "name": name}
        # Its program alone, and a run without an interval, are exact.
        if program:
            return around(report.config.replicas / report.program_s, **common)
        if rate.low80 is None or rate.high80 is None:
            return around(rate.value, **common)
        return Side(value=rate.value, low80=rate.low80, high80=rate.high80, **common)

    def _gpu_row(self, row_id: str) -> Side:
        """Return a published GPU row, which is a measurement and counts as exact."""
        line = self.gpus[self.gpus["row_id"] == row_id]
        if line.empty:
            raise DataError(
                f"The claims of {self.study} name the row {row_id!r}, which does not exist: "
                f"correct claims_{self.study}.toml."
            )
        row = line.iloc[0]
        return around(
            float(row["published"]),
            published=float(row["published"]),
            bare=float(row["specification"]),
            batch=int(row["batch"]),
            chips=int(row["gpus"]),
            name=f"{row['gpu']}, {row_id}",
        )

    def _modelled_gpu(self, options: dict[str, Any], program: bool) -> Side:
        """Return a modelled GPU, which errs as the published rows of its mode do."""
        machines = options.pop("machines", 1)
        report = simulate_gpu(**options)
        rate = machines * (1 / report.step_s if program else report.throughput)
        return around(
            rate,
            conformal_ratios(self.gpus, mode=report.mode),
            bare=machines * simulate_gpu(**options, op_s=0.0).throughput,
            batch=report.batch,
            chips=machines * report.gpus,
            name=f"{report.gpu}, modelled",
        )


def around(value: float, factors: tuple[float, float] = (1.0, 1.0), **given: Any) -> Side:
    """Return a side whose interval is from factors on its value, by default exact."""
    low, high = factors
    return Side(value=value, low80=low * value, high80=high * value, **given)


def _of_row(row: PublishedRow, line: Mapping[str, Any]) -> Side:
    """Return a row of verdicts, times in seconds."""
    scale = 1e-3 if row.unit == "ms" else 1.0
    return Side(
        value=scale * line["calibrated"],
        low80=scale * line["low80"],
        high80=scale * line["high80"],
        published=scale * line["published"],
        is_time=row.metric in TIME_METRICS,
        chips=row.run.chips,
        name=row.row_id,
        missing="" if line["status"] == PREDICTED else line["note"],
    )


def study_rows(study: str) -> tuple[PublishedRow, ...]:
    """Return the rows on the IPU side of a study's claims; NaN where nothing is published."""
    known = rows_by_id()
    parts = [part for spec in load_specs(study) for part in spec.parts]
    names = dict.fromkeys(part.ipu["row"] for part in parts if "row" in part.ipu)
    return tuple(known[name] if name in known else _row_of_run(study, name) for name in names)


def _row_of_run(study: str, name: str) -> PublishedRow:
    run_id = name.removesuffix(".latency")
    metric, unit = ("throughput", "items/s") if run_id == name else ("latency", "ms")
    texts = dict.fromkeys(("table", "printed", "source_line"), "")
    words = {"row_id": name, "study": study, "metric": metric, "unit": unit, "label": run_id}
    return PublishedRow(run=load_run(run_id), value=math.nan, **words, **texts)


def compare(claim: Claim, sides: Sides, candidate: int = 0) -> tuple[Side, Side, Side]:
    """Return what a claim compares: the result, its IPU side, the other (NaN if there is none)."""
    program = claim.quantity == "program_ratio"
    ipus = [sides.find(part.ipu, program=program) for part in claim.parts]
    known = [part for part in claim.parts if part.gpus]
    others = [sides.find(part.gpus[candidate], program=program) for part in known]
    if claim.quantity in ("throughput_ratio", "program_ratio", "gain"):
        items = claim.parts[0].ipu_items / claim.parts[0].gpu_items
        result = ratio(ipus[0].map(lambda value: items * value), others[0])
        if claim.quantity == "gain":
            result = result.map(lambda value: 100.0 * (value - 1.0))
        return result, ipus[0], others[0]
    if claim.quantity == "throughput":
        return ipus[0], ipus[0], Side()
    unit = _HOUR_S if claim.quantity == "hours" else 1.0
    pairs = zip(ipus, claim.parts, strict=True)
    own = add([side.seconds(part.ipu_items / unit) for side, part in pairs])
    if not others:
        return own, own, Side()
    batch = claim.quantity == "latency_ratio"
    pairs = zip(others, known, strict=True)
    other = add([side.seconds(side.batch if batch else part.gpu_items) for side, part in pairs])
    return ratio(other, own), own, other


def claims_frame(study: str, sides: Sides | None = None) -> pd.DataFrame:
    """Recompute every claim that a study has a specification of, per candidate machine a line.

    ``from_published`` has published numbers on both sides; ``against_bare_gpu`` a GPU model that
    charges nothing for its software, the fastest that any software could be; ``per_chip`` the
    prediction for as many IPUs as boards; ``implied_gpu_rate`` the GPU's items per second that
    would make the claim true of the simulated IPU. Error and verdict are those of `judge`; a claim
    with nothing to compare says why.
    """
    sides = sides or Sides(study)
    printed = load_claims(study)[["value", "qualifier"]].T.to_dict("list")
    lines = []
    for spec in load_specs(study):
        if spec.claim_id not in printed:
            raise DataError(
                f"claims_{study}.toml speaks of the claim {spec.claim_id!r}, which is none of the "
                "published ones: correct it."
            )
        text, qualifier = printed[spec.claim_id]
        head = {
            "key": spec.key,
            "claim_id": spec.claim_id,
            "row_id": f"{study}.claims.{spec.claim_id}",
            "title": spec.title,
            "quantity": spec.quantity,
            "printed": text,
            "qualifier": qualifier,
            "claimed": float(pd.to_numeric(text, errors="coerce")),  # some are words
            "assumed": spec.assumed,
            "source": spec.source,
        }
        prices = [float(printed[name][0]) for name in spec.prices]
        factor = prices[0] / prices[1] if prices else 1.0
        # machines that may be meant on the other side, at least one line each
        candidates = max([1, *(len(part.gpus) for part in spec.parts)])
        lines += [head | _line(spec, head, factor, sides, at) for at in range(candidates)]
    gains = [line for line in lines if line["quantity"] == "gain"]
    for line in gains:
        same = [other["predicted"] for other in gains if other["claim_id"] == line["claim_id"]]
        if line["predicted"] < max(same):
            line |= {"error_percent": math.nan, "verdict": ""}
    return pd.DataFrame(lines)


def _line(
    spec: Claim, head: Mapping[str, Any], factor: float, sides: Sides, candidate: int
) -> dict[str, Any]:
    """Predict one line of `claims_frame`; `factor` is the quotient of prices."""
    of_rows = [sides.find(part.ipu).missing for part in spec.parts if "row" in part.ipu]
    missing = [*filter(None, (spec.not_modelled, *of_rows))]
    if missing:
        note = "; ".join(filter(None, (*missing, spec.note)))
        return {"gpu_side": "", "verdict": "", "status": NOT_MODELLED, "note": note}
    result, own, other = compare(spec, sides, candidate)
    result = result.map(lambda value: factor * value)
    error, verdict = judge(result.value, allowed(head["printed"], head["qualifier"]))
    of_rates = spec.quantity == "throughput_ratio"
    of_machines = other.chips > 0 and spec.quantity in ("throughput_ratio", "time_ratio")
    exact = result.low80 == result.high80  # no side has an interval
    return {
        "predicted": result.value,
        "low80": math.nan if exact else result.low80,
        "high80": math.nan if exact else result.high80,
        "from_published": result.published,
        "against_bare_gpu": math.nan if math.isnan(other.bare) else result.bare,
        "per_chip": result.value * other.chips / own.chips if of_machines else math.nan,
        "ipu_rate": own.value,
        "gpu_rate": other.value,
        "gpu_side": other.name,
        "gpus": other.chips,
        "implied_gpu_rate": own.value / head["claimed"] if of_rates else math.nan,
        "error_percent": error,
        "verdict": verdict,
        "status": PREDICTED,
        "fits": own.fits,
        "note": spec.note,
    }
