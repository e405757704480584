"""The ledger: how far every kind of published row is from its prediction, and where it is worst."""

import math
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
import pandas as pd

from ipusim.files import read_tables
from ipusim.machine.system import system_names
from ipusim.study import audit
from ipusim.study.data.published import rows_by_id
from ipusim.study.evidence import operations
from ipusim.study.evidence.memory import network_memory_table
from ipusim.study.predict import ALL_TIERS, SOURCED
from ipusim.study.verdicts.compare import (
    NOT_MODELLED,
    PREDICTED,
    tests_in,
    tier_summary,
    time_ratio,
    with_errors,
)
from ipusim.study.verdicts.errors import (
    HIT_PERCENT,
    error_figures,
    errors_by_group,
    errors_of,
    sizes_of,
)
from ipusim.study.verdicts.intervals import coverage_table
from ipusim.study.verdicts.summary import classes
from ipusim.view import values, view

FILE = "studies/fidelity.toml"


def time_errors(frame: pd.DataFrame, tier: str = "calibrated") -> pd.DataFrame:
    """Return the predicted rows that are a matter of time, with the error of their time.

    ``ratio`` is predicted over published time: above 1 the prediction is slower than the machine.
    """
    used = frame[frame["status"] == PREDICTED]
    rows = zip(used["metric"], used["published"], used[tier], strict=True)
    ratios = [1.0 / time_ratio(*row) for row in rows]
    return used.assign(ratio=ratios).dropna(subset=["ratio"])


def ledger(frame: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Return the `tier_summary` of `verdicts` by columns, on rows that all tiers predict."""
    tiers = [tier for tier in ALL_TIERS if tier in frame]
    return tier_summary(frame[frame[tiers].notna().all(axis=1)], by)


def judged(frame: pd.DataFrame, tier: str = "calibrated") -> pd.DataFrame:
    """Return the rows that are a test of the model with their ``size_percent``."""
    tests = tests_in(frame)
    return tests.assign(size_percent=sizes_of(tests, tier))


def families_apart(frame: pd.DataFrame) -> pd.DataFrame:
    """Summarise errors where a pooled median would hide networks that nobody tuned.

    Of the rows that are a test, calibrated: the median and 90th percentile of their `judged` sizes,
    the median with each run counted once by its worst value and that of the families' medians; the
    medians of the specification tier, and of that without what was adopted where `verdicts` has it;
    bias of time; hits, those of them that rest on times of the host's work that hold for no other
    program, and the share of values inside their interval. All in percent.
    """
    tests = judged(frame)
    chosen = read_tables(FILE)["groups"].items()
    groups = {"all": tests, **classes(tests)}
    groups |= {name: view(tests, {"only": only}) for name, only in chosen}
    return pd.DataFrame({"group": name} | _figures_of_group(rows) for name, rows in groups.items())


def _figures_of_group(used: pd.DataFrame) -> dict[str, float]:
    sizes = used["size_percent"]
    families = sizes.groupby(used["family"]).median()
    free = judged(used, "specification")["size_percent"].median()
    sourced = judged(used, SOURCED)["size_percent"].median() if SOURCED in used else math.nan
    times = time_errors(used)["ratio"]
    return {
        "rows": len(used),
        "runs": used["run_id"].nunique(),
        "families": len(families),
        "sourced_median_percent": sourced,
        "specification_median_percent": free,
        **error_figures(sizes, "median", "p90"),
        "bias_percent": 100.0 * (times.mean() - 1.0),
        "median_of_runs_percent": sizes.groupby(used["run_id"]).max().median(),
        "median_of_families_percent": families.median(),
        "hits": (sizes <= HIT_PERCENT).sum(),
        "timed_hits": ((sizes <= HIT_PERCENT) & ~used["transferable"]).sum(),
        "inside_percent": coverage_table(used)["inside_percent"].iloc[-1],
    }


def coverage_of_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Count rows of `verdicts` on IPUs and the predicted ones, by study and table and in all."""
    on_ipus = frame[frame["system"].isin(system_names())]
    known = on_ipus.assign(predicted=on_ipus["status"] == PREDICTED)
    whole = known.assign(study="all", table="")
    groups = pd.concat([known, whole]).groupby(["study", "table"], sort=False)["predicted"]
    counted = groups.agg(rows="size", predicted="sum", predicted_percent="mean").reset_index()
    return counted.assign(predicted_percent=100.0 * counted["predicted_percent"])


def not_predicted(frame: pd.DataFrame) -> pd.DataFrame:
    """List why rows of `verdicts` on IPUs are not predicted: a line per family and reason."""
    left = frame[(frame["status"] == NOT_MODELLED) & frame["system"].isin(system_names())]
    groups = left.groupby(["family", "note"], sort=False)["row_id"]
    listed = groups.agg(rows="size", first_row="first").reset_index()
    return listed.rename(columns={"note": "why"})[["family", "rows", "first_row", "why"]]


def worst_rows(frame: pd.DataFrame, count: int) -> pd.DataFrame:
    """List the verdicts that the calibrated tier misses most, largest error of time first."""
    used = with_errors(time_errors(frame))
    order = np.argsort(-np.abs(np.log(used["ratio"].to_numpy(dtype=np.float64))), kind="stable")
    return used.iloc[order[:count]].reset_index(drop=True)


def bow_pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Compare how much faster a Bow system is than the Classic one with the same run.

    Of the predicted pairs that print the same (model, variant, framework, batch) on as many IPUs
    and were run the same way (``same_run`` of `FILE`); ``within`` is within 10 %.
    """
    pairs = audit.bow_over_classic()
    predicted = frame[frame["status"] == PREDICTED].set_index("row_id")["calibrated"]
    bow, classic = (pairs[name] for name in ("bow_row", "classic_row"))
    runs, same = rows_by_id(), attrgetter(*read_tables(FILE)["same_run"])
    alike = [same(runs[a].run) == same(runs[b].run) for a, b in zip(bow, classic, strict=True)]
    shown = pd.DataFrame(
        {
            "bow_row": bow,
            "classic_row": classic,
            "family": [runs[name].family for name in bow],
            "mode": [runs[name].run.mode for name in bow],
            "label": pairs["label"],
            "published_ratio": pairs["ratio"],
            "predicted_ratio": bow.map(predicted) / classic.map(predicted),
            "clock_ratio": pairs["clock_ratio"],
        }
    )
    shown["error_percent"] = errors_of(shown, "predicted_ratio", "published_ratio")
    shown["within"] = shown["error_percent"].abs() <= HIT_PERCENT
    return shown[alike].dropna(subset=["predicted_ratio"]).reset_index(drop=True)


def figures_of_merit(
    frame: pd.DataFrame, scaling: pd.DataFrame, pairs: pd.DataFrame, inside: pd.DataFrame
) -> pd.DataFrame:
    """Set what was asked of the model (``goals`` of `FILE`) beside what it reaches, in percent."""
    calibrated, free = (judged(frame, tier) for tier in ("calibrated", "specification"))
    sizes = calibrated["size_percent"]
    reached = {
        "predicted": coverage_of_rows(frame).iloc[-1]["predicted_percent"],
        "median": sizes.median(),
        "p90": sizes.quantile(0.9),
        "specification": free["size_percent"].median(),
        "inference": sizes[calibrated["mode"] == "inference"].median(),
        "slowdown": scaling["left_out_error_percent"].abs().median(),
        "inside": inside.set_index("kind").loc["all", "inside_percent"],
        "pairs": 100.0 * pairs["within"].mean(),
    }
    goals = pd.DataFrame(read_tables(FILE)["goals"])
    value, bound = goals["of"].map(reached), goals["bound"]
    most = goals["sign"] == "<="
    shown = goals[["figure"]].assign(bound=values(goals, "{sign} {bound:g} %"), value_percent=value)
    return shown.assign(met=(most & (value <= bound)) | (~most & (value >= bound)))


def scaling_summary(scaling: pd.DataFrame) -> pd.DataFrame:
    """Summarise `ipusim.study.fit.scale_out.scaling_table`, by series and in all."""
    errors = scaling.assign(error_percent=scaling["left_out_error_percent"])
    whole = errors.sort_values("series", kind="stable")
    groups = pd.concat([whole, errors.assign(series="all")])
    table = errors_by_group(groups, ["series"], "median", "max", "bias")
    table.insert(2, "most_ipus", groups.groupby("series", sort=False)["ipus"].max().to_numpy())
    return table


def layers_frame() -> pd.DataFrame:
    """Return the absolute errors below whole runs: vertices, operations, layers of Mk1, memory."""
    lines = []
    for layer, table in (
        ("vertices on silicon", operations.vertices_table()),
        *(("operations in IPUModel", operations.operations_table(one)) for one in operations.ALL),
        ("layers on silicon, Mk1", operations.mk1_layers_table()),
        ("memory of compiled networks", network_memory_table()),
    ):
        named = table[[name for name in _NAMED_BY if name in table]].astype(str)
        head = pd.DataFrame({"layer": layer, "what": named.agg(", ".join, axis=1)})
        lines.append(head.join(table.reindex(columns=["rows", *_LAYER_ERRORS])))
    return pd.concat(lines, ignore_index=True).rename(columns=_LAYER_ERRORS)


_NAMED_BY = ("vertex", "operation", "chip", "snapshot", "stage", "category", "use")
_LAYER_ERRORS = {f"{name}_abs_error_percent": f"{name}_percent" for name in
                 ("median", "mean", "p90", "max")}  # fmt: skip


def errors_by_family(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the `time_errors` of `verdicts`, with ``free``, that of the specification tier."""
    return time_errors(frame).assign(free=time_errors(frame, "specification")["ratio"])


def slowdowns(scaling: pd.DataFrame) -> pd.DataFrame:
    """Return the `scaling_table` with its networks."""
    rows = rows_by_id()
    return scaling.assign(network=[rows[name].family for name in scaling.get("row_id", ())])
