"""Tables and the figure of the MK2 notebook."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ipusim.errors import StudyError
from ipusim.study.book.charts import OKABE_ITO, figure_style
from ipusim.study.mk2.claims import AT_LEAST, load_comparisons
from ipusim.study.table import Table
from ipusim.study.verdicts.compare import PREDICTED

RATIO_UNITS = ("x", "x lower", "x faster")


def claims_table(frame: pd.DataFrame) -> Table:
    """Show each claim beside its prediction.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.mk2.claims.compare_claims`.
    """
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
    """Show what each ratio becomes with other numbers on either side, and chip for chip.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.mk2.claims.compare_claims`.
    """
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
    """Show the rows of `ipusim.study.mk2.claims.implied_rows`."""
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
    """Show the quotients of `ipusim.study.mk2.claims.chip_arithmetic`."""
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
    lines = [
        {
            "claim": part.claim_id,
            "ipu": part.ipu,
            "gpu": part.gpu_row or " ".join(map(str, (part.gpu_model, *part.gpu_options.values()))),
            "assumed": " ".join(part.assumed),
            "source": part.source or part.not_modelled,
        }
        for part in load_comparisons()
    ]
    return Table(
        pd.DataFrame(lines),
        caption="What stands on either side of each claim",
        columns={name: name for name in ("claim", "ipu", "gpu", "assumed", "source")},
    )


def claims_figure(frame: pd.DataFrame) -> Figure:
    """Draw the ratios: claimed, predicted with its interval, and with published numbers.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.mk2.claims.compare_claims`.

    Returns
    -------
    matplotlib.figure.Figure
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
    with figure_style():
        figure = Figure(figsize=(9.2, 1.6 + 0.42 * len(shown)))
        axis = figure.subplots()
        bare = shown["against_bare_gpu"]
        axis.scatter(
            bare, places, marker="|", s=120, color=OKABE_ITO["grey"], label="GPU without software"
        )
        known = np.isfinite(shown["low80"])
        axis.hlines(
            places[known],
            shown["low80"][known],
            shown["high80"][known],
            color=OKABE_ITO["vermilion"],
            linewidth=1.4,
        )
        axis.scatter(
            shown["predicted"],
            places,
            marker="s",
            s=52,
            facecolor="none",
            edgecolor=OKABE_ITO["vermilion"],
            linewidth=1.6,
            label="predicted (80 % interval)",
        )
        axis.scatter(
            shown["from_published"],
            places,
            marker="^",
            color=OKABE_ITO["blue"],
            s=26,
            label="published on both sides",
        )
        axis.scatter(shown["claimed"], places, color="black", s=34, label="claimed", zorder=4)
        for place, claim in zip(places, shown.to_dict("records"), strict=True):
            if claim["qualifier"] in AT_LEAST:
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
