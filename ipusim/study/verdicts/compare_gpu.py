"""Published GPU rows against their predictions, each with a constant that never saw its model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pandas as pd

from ipusim.study.data.gpu_rows import GpuRow, load_gpu_rows, modelled_gpu_rows
from ipusim.study.fit.gpu import GpuSample, fit_kernel_cost, gpu_samples
from ipusim.study.verdicts.conformal import conformal_bounds
from ipusim.study.verdicts.errors import error_figures

GPU_COLUMNS = (
    "row_id",
    "network",
    "model",
    "task",
    "gpu",
    "gpus",
    "framework",
    "stack",
    "mode",
    "precision",
    "batch",
    "unit",
    "published",
    "specification",
    "predicted",
    "error_percent",
    "fitted_rows",
    "left_out",
    "flag",
)


@lru_cache(maxsize=1)
def _samples() -> tuple[GpuSample, ...]:
    """Return the samples of every modelled row; they take seconds to predict."""
    return gpu_samples(modelled_gpu_rows())


def _line(row: GpuRow) -> dict[str, object]:
    return {
        "row_id": row.row_id,
        "network": row.network,
        "model": row.model,
        "task": row.task,
        "gpu": row.options.get("gpu", row.gpu),
        "gpus": row.gpus,
        "framework": row.framework,
        "stack": row.stack,
        "mode": row.options.get("mode", ""),
        "precision": row.options.get("precision", row.printed_precision),
        "batch": row.batch,
        "unit": row.unit,
        "published": row.published,
        "left_out": row.left_out,
        "flag": row.flag,
    }


def gpu_compare(samples: Sequence[GpuSample] | None = None) -> pd.DataFrame:
    """Compare every published GPU row with what is predicted for it.

    One line per row, columns `GPU_COLUMNS`, values in ``unit`` per second of all boards:
    ``specification`` has nothing fitted, ``predicted`` the constant of the row's stack fitted
    without the row's own model (``fitted_rows`` says on how many rows; 0 leaves the constant at 0).
    Rows that nothing is predicted for say why in ``left_out``.
    """
    known = _samples() if samples is None else tuple(samples)
    by_id = {item.row_id: item for item in known}
    costs = {
        key: fit_kernel_cost(key[0], known, without_network=key[1])
        for key in {(item.stack, item.network) for item in known}
    }
    lines = []
    for row in load_gpu_rows():
        line = _line(row)
        sample = by_id.get(row.row_id)
        if sample is not None:
            items = row.gpus * row.batch
            cost = costs[sample.stack, sample.network]
            predicted = items / sample.step_s(cost.value_s)
            line |= {
                "specification": items / sample.step_s(0.0),
                "predicted": predicted,
                "error_percent": 100.0 * (predicted / row.published - 1.0),
                "fitted_rows": len(cost.rows),
            }
        lines.append(line)
    frame = pd.DataFrame(lines, columns=list(GPU_COLUMNS))
    return frame.astype({"fitted_rows": "Int64"})


def gpu_summary(frame: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Summarise `gpu_compare` by group, leave one model out; the median without constant too."""
    used = frame[frame["left_out"] == ""]
    groups = used.groupby(list(by), sort=True) if by else [((), used)]
    lines = []
    for key, group in groups:
        free = 100.0 * (group["specification"] / group["published"] - 1.0).abs()
        lines.append(
            {
                **dict(zip(by, key, strict=True)),
                "rows": len(group),
                **error_figures(group["error_percent"], "median", "mean", "max", "bias"),
                "specification_median_abs_error_percent": float(free.median()),
            }
        )
    return pd.DataFrame(lines)


def conformal_ratios(frame: pd.DataFrame, coverage: float = 0.8) -> tuple[float, float]:
    """Return the factors on a prediction between which a new measurement is expected.

    `study.verdicts.conformal.conformal_bounds` of published over predicted, leave one model out,
    over the rows of `gpu_compare`; those left out are ignored.
    """
    used = frame[frame["left_out"] == ""]
    return conformal_bounds(used["published"] / used["predicted"], coverage)
