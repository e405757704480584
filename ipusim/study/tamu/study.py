"""The TAMU study (PEARC'22): training on 1 to 64 IPUs, Tables 1 to 4."""

import math
from collections.abc import Mapping

import pandas as pd

from ipusim.study.assumptions import plain
from ipusim.study.audit import tamu_work
from ipusim.study.data.published import PublishedRow, by_metric, load_rows
from ipusim.study.data.runs import load_run
from ipusim.study.predict import first_epoch_items_per_s, report_of
from ipusim.study.verdicts.errors import errors_of, verdicts_of
from ipusim.study.verdicts.summary import with_error

STUDY = "tamu"
TENSORFLOW_SERIES = "tamu-resnet50-tensorflow"
"""Table 3: ResNet-50, micro-batch 2 to 20 on one IPU, then 20 on 1 to 64 IPUs."""
PYTORCH_SERIES = "tamu-resnet50-pytorch"
"""Table 1: ResNet-50 on 1 to 16 IPUs."""
RESULTS_SERIES = "results-resnet50-tensorflow-classic"
"""The same program as Table 3 on the results page of Graphcore, 4 to 256 IPUs."""

RUNS = {"Table 1": "tamu.table1.05", "Table 3": "tamu.table3.11", "Table 4": "tamu.table4.10"}
"""Runs on 16 IPUs whose options `run_frame` shows."""
IMAGENET_IMAGES = 1_281_167
"""Training images of ImageNet 2012, an epoch of Tables 1 and 3."""


def study_rows() -> tuple[PublishedRow, ...]:
    """Return every row of Tables 1 to 4, then those of the results page that carry Table 3 on."""
    own = load_rows(study=STUDY)
    beside = load_rows(study="results", metric="throughput")
    return (*own, *(row for row in beside if row.run.series == RESULTS_SERIES))


def table_frame(frame: pd.DataFrame, table: str) -> pd.DataFrame:
    """Select the rates of one of Tables 1 to 4 from the verdicts, with the calibrated error."""
    ids = [row.row_id for row in load_rows(study=STUDY, table=table, metric="throughput")]
    return with_error(frame[frame["row_id"].isin(ids)]).reset_index(drop=True)


def micro_batch_panels(frame: pd.DataFrame) -> pd.DataFrame:
    """Return throughput and time per micro-batch of Table 3 on one IPU, from the verdicts."""
    own = table_frame(frame, "Table 3").query("chips == 1")
    shown = ["published", "specification", "calibrated", "low80", "high80"]
    rates = own[["micro_batch", *shown]].astype(float).assign(roofline=math.nan)
    times = rates.assign(**{name: 1e3 * rates["micro_batch"] / rates[name] for name in shown})
    drawn = {("Throughput of one IPU", "images/s"): rates, ("Time per micro-batch", "ms"): times}
    named = pd.concat(drawn, names=["title", "unit"]).reset_index(["title", "unit"])
    return named.rename(columns={"micro_batch": "batch_size"})


def times_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Predict the training times of Table 3, whose number of images the paper does not state.

    The images are those that throughput x time of most rows comes to (data/audits.toml), so the
    error is that of the rate but for rows in which the two do not belong together.
    """
    work = tamu_work("Table 3").set_index("row_id")
    rates = frame.set_index("row_id").loc[work.index, ["calibrated", "low80", "high80"]]
    seconds = rates.astype(float).rdiv(work["usual_images"], axis=0)
    shown = pd.DataFrame({"label": work["label"], "published": work["time_s"]})
    shown["predicted"] = seconds["calibrated"]
    shown["low80"], shown["high80"] = seconds["high80"], seconds["low80"]
    verdicts = verdicts_of(shown.assign(metric="epoch_time"))
    return shown.assign(error_percent=errors_of(shown), verdict=verdicts)


def first_epoch_frame(frame: pd.DataFrame, images: int = IMAGENET_IMAGES) -> pd.DataFrame:
    """Predict the first-epoch column of Table 1 from the calibrated rates of the second epoch.

    The published epochs differ by seconds that are predicted to be the compilation.
    """
    table1 = load_rows(study=STUDY, table="Table 1")
    both = by_metric(table1, "throughput_epoch1", "throughput")
    rates = both["row_id"].str.removesuffix(".epoch1").map(frame.set_index("row_id")["calibrated"])
    compile_s = [report_of(run, tier="specification").compile_s for run in both["run"]]
    known = zip(rates, compile_s, strict=True)
    first, second = both["throughput_epoch1"], both["throughput"]
    shown = pd.DataFrame(
        {
            "row_id": both["row_id"],
            "chips": [run.chips for run in both["run"]],
            "instances": [run.instances for run in both["run"]],
            "published_difference_s": images / first - images / second,
            "compile_s": compile_s,
            "published": first,
            "predicted": [first_epoch_items_per_s(images, *pair) for pair in known],
        }
    )
    verdicts = verdicts_of(shown.assign(metric="throughput_epoch1"))
    return shown.assign(error_percent=errors_of(shown), verdict=verdicts)


def run_frame(runs: Mapping[str, str]) -> pd.DataFrame:
    """Return how runs (run_id by heading) are configured, and which values are assumed."""
    known = {name: load_run(run_id) for name, run_id in runs.items()}
    options = dict.fromkeys(name for run in known.values() for name in run.options())
    return pd.DataFrame(
        {
            "option": name.replace("_", " "),
            **{
                column: plain(getattr(run, name)) + (" (assumed)" if name in run.assumed else "")
                for column, run in known.items()
            },
        }
        for name in ("model", *options)
    )
