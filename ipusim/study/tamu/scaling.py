"""Scaling of ResNet-50 training in the TAMU study: efficiency and slowdown against one IPU."""

import dataclasses
from collections.abc import Sequence

import pandas as pd

from ipusim.api import simulate
from ipusim.machine.system import load_system
from ipusim.study.cached import PooledPredictor
from ipusim.study.data.runs import RunConfiguration, load_run, load_runs
from ipusim.study.fit.samples import samples_of
from ipusim.study.fit.scale_out import scaling_rows, scaling_table
from ipusim.study.predict import report_of
from ipusim.study.tamu.study import PYTORCH_SERIES, RESULTS_SERIES, TENSORFLOW_SERIES

SCALED_MICRO_BATCH = 20
"""Images per IPU of every run of Table 3 on more than one IPU."""
SYSTEMS = ("IPU-POD16", "IPU-POD64", "IPU-POD128", "IPU-POD256")
SERIES_NAMES = {
    TENSORFLOW_SERIES: "TAMU Table 3, TensorFlow",
    RESULTS_SERIES: "results page, TensorFlow",
    PYTORCH_SERIES: "TAMU Table 1, PyTorch",
}


def _scaled_runs(series: str) -> list[RunConfiguration]:
    """Return the runs of a series that differ in the number of IPUs, by that number."""
    runs = [run for run in load_runs().values() if run.series == series]
    if series == TENSORFLOW_SERIES:
        runs = [run for run in runs if run.micro_batch == SCALED_MICRO_BATCH]
    return sorted(runs, key=lambda run: (run.chips, run.instances or 0))


def run_at(ipus: int, series: str = TENSORFLOW_SERIES) -> RunConfiguration:
    """Return the run of a series (a name of `SERIES_NAMES`) on any number of IPUs.

    The published run where there is one, with the fewest instances of several; otherwise the next
    smaller one with more replicas and instances in proportion, on the smallest POD that holds them.
    """
    smaller = (run for run in _scaled_runs(series) if run.chips <= ipus)
    template = max(smaller, key=lambda run: (run.chips, -(run.instances or 0)))
    had = template.chips
    if had == ipus:
        return template
    fitting = [name for name in SYSTEMS if load_system(name).ipus >= ipus]
    wanted = (template.instances or 1) * ipus // had
    return dataclasses.replace(
        template,
        run_id=f"{series}.{ipus}",
        system=template.system if load_system(template.system).ipus >= ipus else fitting[0],
        replicas=ipus,
        instances=max(n for n in range(1, max(wanted, 1) + 1) if ipus % n == 0),
        note=f"not measured: the run on {had} IPUs carried on",
    )


def scaling_line(ipus: Sequence[int], *, tier: str = "calibrated") -> pd.DataFrame:
    """Simulate the run of Table 3 on many numbers of IPUs, 1 among them, published or not."""
    published = {run.chips for run in _scaled_runs(TENSORFLOW_SERIES)}
    runs = {count: run_at(count) for count in sorted(ipus)}
    rates = [float(report_of(run, tier=tier).throughput) for run in runs.values()]
    frame = pd.DataFrame(
        {
            "ipus": list(runs),
            "system": [run.system for run in runs.values()],
            "accumulation": [run.gradient_accumulation for run in runs.values()],
            "throughput_images_per_s": rates,
        }
    )
    each = frame["throughput_images_per_s"] / frame["ipus"]
    frame["efficiency_percent"] = 100.0 * each / each.iloc[0]
    return frame.assign(published=frame["ipus"].isin(published))


def scaling_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Compare the slowdown of every published scaling row with the predicted one.

    The slowdown is the time that one IPU needs per image and IPU of the larger system, over that of
    one IPU alone: 1 is perfect scaling. The rows of the results page have no run on one IPU and
    share that of Table 3, whose program they are.
    """
    own = frame["series"].ne(TENSORFLOW_SERIES) | frame["micro_batch"].eq(SCALED_MICRO_BATCH)
    known = frame["series"].isin(list(SERIES_NAMES)) & frame["metric"].eq("throughput")
    rows = frame[known & own.fillna(False)]
    rows = rows.assign(series=rows["series"].map(SERIES_NAMES), predicted=rows["calibrated"])
    rows = rows.astype({"chips": int}).rename(columns={"chips": "ipus"})
    rows = rows.sort_values(["series", "ipus"], kind="stable", ignore_index=True)
    alone = rows[rows["ipus"] == 1].set_index("series")
    alone.loc[SERIES_NAMES[RESULTS_SERIES]] = alone.loc[SERIES_NAMES[TENSORFLOW_SERIES]]
    one = alone.loc[rows["series"]].reset_index(drop=True)
    shown = rows[["row_id", "series", "ipus", "instances", "published", "predicted"]]
    kinds = ("published", "predicted")
    shares = {kind: rows[kind] / rows["ipus"] / one[kind] for kind in kinds}
    return shown.assign(
        **{f"{kind}_efficiency_percent": 100.0 * shares[kind] for kind in kinds},
        **{f"{kind}_slowdown": 1.0 / shares[kind] for kind in kinds},
        slowdown_error_percent=100.0 * (shares["published"] / shares["predicted"] - 1.0),
    )


def with_other_host(rows: pd.DataFrame) -> pd.DataFrame:
    """Add to rows of `scaling_frame` what is predicted with the other rates of the host.

    ``other_host``, and its efficiency, are with the rates before those of data/adopted.csv: cores
    decode at their base clock, and copies of the host bound nothing.
    """
    ratios = []
    for run in map(load_run, rows["row_id"]):
        other = load_system(run.system, adopted=False).host
        system = dataclasses.replace(load_system(run.system), host=other)
        report = simulate(run.model, **run.options() | {"system": system}, as_if_it_fits=True)
        ratios.append(float(report.throughput) / float(report_of(run).throughput))
    predicted = rows[["predicted", "predicted_efficiency_percent"]]
    names = ("other_host", "other_host_efficiency_percent")
    return rows.assign(**dict(zip(names, predicted.mul(ratios, axis=0).to_numpy().T, strict=True)))


def constants_frame() -> pd.DataFrame:
    """Return what the two fitted latencies of scale-out explain, with and without the series."""
    frame = scaling_table(samples_of(scaling_rows(), PooledPredictor()))
    study, words = (frame["series"].str.split("-", n=1).str[part] for part in (0, 1))
    titles = {"argonne": "Argonne", "results": "results page", "tamu": "TAMU"}
    others = study.replace(titles) + ", " + words.str.replace("-", " ")
    return frame.assign(series=frame["series"].map(SERIES_NAMES).fillna(others))


def of_series(frame: pd.DataFrame, series: str) -> pd.DataFrame:
    """Return the rows of one series (a key of `SERIES_NAMES`) of `scaling_frame`."""
    return frame[frame["series"] == SERIES_NAMES[series]]
