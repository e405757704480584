"""The MK2 benchmark blog: each claimed ratio beside what is predicted, tables and figure.

What stands behind a claim is in ``data/runs/claims_mk2.toml``; `ipusim.study.claims` recomputes it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ipusim.errors import StudyError
from ipusim.study import claims as engine
from ipusim.study.book.charts import OKABE_ITO, figure_style
from ipusim.study.claims import AT_LEAST, Part, load_specs
from ipusim.study.data.published import PublishedRow, load_claims
from ipusim.study.predict import Predictor
from ipusim.study.table import Table
from ipusim.study.verdicts.compare import PREDICTED, error_percent, verdicts
from ipusim.study.verdicts.compare_gpu import gpu_compare

STUDY = "mk2"
RATIO_UNITS = ("x", "x lower", "x faster")
_NEAREST = ("row_id", "gpu", "framework", "precision", "batch", "published")


def study_rows() -> tuple[PublishedRow, ...]:
    """Return the rows on the IPU side of the claims."""
    return engine.study_rows(STUDY)


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
        `ipusim.study.claims.claims_frame` with the model, task, metric and unit that the blog
        prints; the error is against the number printed, also where that is only a bound.

    Raises
    ------
    DataError
        If a data file is missing or damaged.
    """
    if frame is None:
        frame = verdicts(study_rows(), predictor=predictor)
    compared = engine.claims_frame(STUDY, engine.Sides(STUDY, frame=frame))
    printed = load_claims(STUDY).set_index("claim_id").loc[compared["claim_id"]]
    for name in ("model", "task", "metric", "unit"):
        compared[name] = printed[name].to_numpy()
    compared["error_percent"] = [
        error_percent(predicted, claimed)
        for predicted, claimed in zip(compared["predicted"], compared["claimed"], strict=True)
    ]
    return compared.drop(columns="row_id")  # the blog names its claims


def chip_arithmetic(frame: pd.DataFrame) -> pd.DataFrame:
    """Divide claimed ratios of throughput by claimed ratios of latency of the same network.

    One batch at a time, a machine of n chips has n times the throughput over latency of one chip:
    the quotient counts the chips that stand on one side of the comparison.

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
        above, below = rate.iloc[0], latency.iloc[0]
        lines.append(
            {
                "model": model,
                "throughput_ratio": above["claimed"],
                "latency_ratio": below["claimed"],
                "quotient": above["claimed"] / below["claimed"],
                "predicted_quotient": above["predicted"] / below["predicted"],
            }
        )
    return pd.DataFrame(lines)


def implied_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Find the published GPU row that comes nearest to what each claim implies.

    Returns
    -------
    pandas.DataFrame
        Per claim on throughput against a published GPU row: claim_id, model, implied_gpu_rate
        (items/s), and of the nearest row of the same network, mode and number of boards:
        row_id, gpu, framework, precision, batch, published (items/s), difference_percent.
    """
    gpus = gpu_compare().set_index("row_id", drop=False)
    named = {
        spec.key: part.gpus[0]["row"]
        for spec in load_specs(STUDY)
        for part in spec.parts
        if part.gpus and "row" in part.gpus[0]
    }
    lines = []
    for claim in frame[frame["implied_gpu_rate"].notna()].to_dict("records"):
        if claim["key"] not in named:
            continue
        own = gpus.loc[named[claim["key"]]]
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


def claims_table(frame: pd.DataFrame) -> Table:
    """Show each claim beside its prediction."""
    columns = {
        "claim_id": "claim",
        "model": "model",
        "task": "task",
        "metric": "metric",
        "qualifier": "claimed as",
        "claimed": "claimed",
        "predicted": "predicted",
    }
    if frame["low80"].notna().any():
        columns |= {"low80": "low 80 %", "high80": "high 80 %"}
    columns |= {"error_percent": "error %", "verdict": "verdict", "note": "note"}
    return Table(frame, caption="Claims of the blog and what is predicted", columns=columns)


def ratios(frame: pd.DataFrame) -> pd.DataFrame:
    """Select the predicted claims that are ratios between an IPU system and a GPU."""
    return frame[(frame["status"] == PREDICTED) & frame["unit"].isin(RATIO_UNITS)]


def arithmetic_table(frame: pd.DataFrame) -> Table:
    """Show what each ratio becomes with other numbers on either side, and chip for chip."""
    return Table(
        ratios(frame),
        caption="The same ratios with other numbers on either side",
        columns={
            "claim_id": "claim",
            "model": "model",
            "task": "task",
            "claimed": "claimed",
            "predicted": "predicted",
            "from_published": "both published",
            "against_bare_gpu": "GPU without software",
            "per_chip": "per chip",
            "implied_gpu_rate": "GPU items/s if true",
            "gpu_side": "GPU",
        },
    )


def implied_table(nearest: pd.DataFrame) -> Table:
    """Show the rows of `implied_rows`."""
    return Table(
        nearest,
        caption="The published GPU row nearest to what a claim implies",
        columns={
            "claim_id": "claim",
            "model": "model",
            "implied_gpu_rate": "items/s if true",
            "published": "nearest, items/s",
            "difference_percent": "difference %",
            "row_id": "row",
            "gpu": "GPU",
            "framework": "framework",
            "precision": "precision",
            "batch": "batch",
        },
    )


def quotient_table(quotients: pd.DataFrame) -> Table:
    """Show the quotients of `chip_arithmetic`."""
    return Table(
        quotients,
        caption="Ratio of throughput over ratio of latency",
        columns={
            "model": "model",
            "throughput_ratio": "throughput, claimed",
            "latency_ratio": "latency, claimed",
            "quotient": "quotient, claimed",
            "predicted_quotient": "quotient, predicted",
        },
    )


def sources_table() -> Table:
    """Show which runs stand behind each claim, and what of that is assumed."""
    lines = []
    for spec in load_specs(STUDY):
        # one line per part; a claim that is not modelled has the line of its reason
        for part in spec.parts or (None,):
            lines.append(
                {
                    "claim": spec.key,
                    "ipu": part.ipu["row"] if part else "",
                    "gpu": _words(part),
                    "assumed": spec.assumed,
                    "source": spec.source or spec.not_modelled,
                }
            )
    return Table(
        pd.DataFrame(lines),
        caption="What stands on either side of each claim",
        columns={name: name for name in ("claim", "ipu", "gpu", "assumed", "source")},
    )


def _words(part: Part | None) -> str:
    """Name the GPU side of a part; hours that the blog states itself are no run."""
    gpus = [gpu for gpu in (part.gpus if part else ()) if "claim" not in gpu]
    return " ".join(str(value) for gpu in gpus for value in gpu.values())


def claims_figure(frame: pd.DataFrame) -> Figure:
    """Draw the ratios: claimed, predicted with its interval, and with published numbers.

    One line per claim on a logarithmic axis; an arrow marks a claim that is a lower bound.

    Raises
    ------
    StudyError
        If no ratio is predicted.
    """
    shown = ratios(frame)
    if shown.empty:
        raise StudyError("No ratio of the blog is predicted: there is nothing to draw.")
    places = np.arange(len(shown))[::-1]
    red = OKABE_ITO["vermilion"]
    hollow = {"s": 52, "facecolor": "none", "edgecolor": red, "linewidth": 1.6}
    marks = {
        "against_bare_gpu": {"marker": "|", "s": 120, "color": OKABE_ITO["grey"]},
        "predicted": {"marker": "s", **hollow},
        "from_published": {"marker": "^", "color": OKABE_ITO["blue"], "s": 26},
        "claimed": {"color": "black", "s": 34, "zorder": 4},
    }
    labels = {
        "against_bare_gpu": "GPU without software",
        "predicted": "predicted (80 % interval)",
        "from_published": "published on both sides",
        "claimed": "claimed",
    }
    with figure_style():
        figure = Figure(figsize=(9.2, 1.6 + 0.42 * len(shown)))
        axis = figure.subplots()
        known = np.isfinite(shown["low80"])
        axis.hlines(
            places[known], shown["low80"][known], shown["high80"][known], color=red, linewidth=1.4
        )
        for column, mark in marks.items():
            axis.scatter(shown[column], places, label=labels[column], **mark)
        for place, claim in zip(places, shown.to_dict("records"), strict=True):
            if claim["qualifier"].startswith(AT_LEAST):
                axis.annotate(
                    "",
                    xy=(1.28 * claim["claimed"], place),
                    xytext=(claim["claimed"], place),
                    arrowprops={"arrowstyle": "->", "color": "black"},
                )
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
        axis.set_yticks(places, [_name(claim) for claim in shown.to_dict("records")])
        axis.set_xlabel("IPU system over GPU (log scale)")
        axis.set_title("The ratios of the MK2 blog")
        figure.legend(loc="outside lower center", ncols=4)
    return figure


def _name(claim: dict[str, str]) -> str:
    kind = claim["metric"].split(" ")[0]
    return f"{claim['model']}, {claim['task']}, {kind}"
