"""IPUs beside GPUs in the TAMU study: Figures 1 and 2, images per second and watt, Table 4."""

from __future__ import annotations

import pandas as pd

from ipusim.errors import resolve_name
from ipusim.machine.gpu import load_gpu_node
from ipusim.runtime.gpu.step import simulate_gpu
from ipusim.study.data.published import load_claims, load_rows
from ipusim.study.tamu.gpus import tamu_gpu_figure
from ipusim.study.tamu.scaling import SCALED_MICRO_BATCH
from ipusim.study.tamu.study import PYTORCH_SERIES, STUDY, TENSORFLOW_SERIES, table_frame
from ipusim.study.verdicts.compare import PREDICTED, error_percent, verdict_of

IPU = "GC200 IPU"
PLATFORMS = {
    IPU: IPU,
    "Grace T4": "T4",
    "Grace RTX 6000": "RTX 6000",
    "Expanse V100": "V100",
    "Grace A100": "A100 (Grace)",
    "LoneStar6": "A100 (LoneStar6)",
    "DGX A100": "DGX A100",
}
"""Machines as the study names them, in the order of its figures."""

_FIGURES = {
    "pytorch": ("Table 1", PYTORCH_SERIES),
    "tensorflow": ("Table 3", TENSORFLOW_SERIES),
}
_WATTS = {
    # claim, device, number of devices, whether the host is in the number
    "one GC200": ("TA01", IPU, 1, "no"),
    "IPU-POD16": ("TA03", IPU, 16, "no"),
    "DGX A100": ("TA02", "DGX A100", 8, "yes"),
}

AUTOENCODER = "tamu_autoencoder"
EPOCH_IMAGES = 70_000
"""Images to which all times of Table 4 are scaled (claim TA24)."""
GPU_NODE = "Grace A100"
"""Table 4 says A100; the study's own are PCIe boards in Grace, two a node."""
GPU_STACK = "tf1-20.06"
"""The nearest stack without XLA to the TensorFlow 2.4 that the study used. [assumed]"""
GPU_PRECISION = "tf32"
"""Default of TensorFlow 2.4 for float32 on A100."""


def bars(frame: pd.DataFrame, framework: str) -> pd.DataFrame:
    """Collect the bars of Figure 1 or Figure 2.

    Parameters
    ----------
    frame : pandas.DataFrame
        From `ipusim.study.verdicts.compare.verdicts` on `ipusim.study.tamu.study.study_rows`.
    framework : {"pytorch", "tensorflow"}
        Figure 1 or Figure 2.

    Returns
    -------
    pandas.DataFrame
        One line per platform and number of devices: platform, devices, predicted throughput
        (images/s) with its 80 % interval (NaN where there is none), the published one (NaN where
        there is none), where that comes from, and the error in percent.

    Raises
    ------
    UnknownNameError
        If there is no such framework.
    """
    name = resolve_name("framework", framework, _FIGURES)
    both = pd.concat([_ipu_bars(frame, name), _gpu_bars(name)], ignore_index=True)
    pairs = zip(both["predicted"], both["published"], strict=True)
    return both.assign(error_percent=[error_percent(*pair) for pair in pairs])


def _ipu_bars(frame: pd.DataFrame, framework: str) -> pd.DataFrame:
    """Return the runs of Table 1 or 3; of several with as many IPUs the fewest instances."""
    table, series = _FIGURES[framework]
    chosen = table_frame(frame, table)
    chosen = chosen[chosen["series"] == series]
    if framework == "tensorflow":
        chosen = chosen[chosen["micro_batch"] == SCALED_MICRO_BATCH]
    chosen = chosen.sort_values(["chips", "instances"]).drop_duplicates("chips")
    return pd.DataFrame(
        {
            "platform": IPU,
            "devices": chosen["chips"].astype(int).to_numpy(),
            "predicted": chosen["calibrated"].to_numpy(),
            "low80": chosen["low80"].to_numpy(),
            "high80": chosen["high80"].to_numpy(),
            "published": chosen["published"].to_numpy(),
            "published_source": f"TAMU {table}",
        }
    )


def _gpu_bars(framework: str) -> pd.DataFrame:
    gpus = tamu_gpu_figure(framework)
    return pd.DataFrame(
        {
            "platform": [PLATFORMS[system] for system in gpus["system"]],
            "devices": gpus["gpus"],
            "predicted": gpus["predicted_img_s"],
            "low80": gpus["low80_img_s"],
            "high80": gpus["high80_img_s"],
            "published": gpus["published_img_s"],
            "published_source": [
                f"NVIDIA, {anchor}" if row else anchor
                for row, anchor in zip(gpus["published_row"], gpus["anchor"], strict=True)
            ],
        }
    )


def per_watt(figures: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Divide throughput by the powers that the study quotes.

    Parameters
    ----------
    figures : dict of str to pandas.DataFrame
        Framework to `bars`.

    Returns
    -------
    pandas.DataFrame
        Per framework and machine: devices, watts (as quoted), whether the host is in them,
        predicted and published images/s/W, and the predicted interval.
    """
    claims = {claim["claim_id"]: claim for claim in load_claims(STUDY).to_dict("records")}
    lines = []
    for framework, frame in figures.items():
        for machine, (claim, platform, devices, host) in _WATTS.items():
            bar = frame[(frame["platform"] == platform) & (frame["devices"] == devices)]
            watts = float(claims[claim]["value"])
            line = bar.iloc[0]
            lines.append(
                {
                    "framework": framework,
                    "machine": machine,
                    "devices": devices,
                    "quoted_w": watts,
                    "host_in_it": host,
                    **{
                        name: line[name] / watts
                        for name in ("predicted", "low80", "high80", "published")
                    },
                }
            )
    return pd.DataFrame(lines)


def table4_gpus() -> pd.DataFrame:
    """Predict the GPU rows of Table 4 on the same assumed network as its IPU rows.

    The printed micro-batch is taken as that of all boards together: at 10 a step takes 37 ms on one
    board and on two, which only a shared batch explains.

    Returns
    -------
    pandas.DataFrame
        Per row: row_id, boards, printed batch, batch per board, published and predicted throughput
        (images/s), error, verdict, and the parts of the predicted step (ms).
    """
    most = load_gpu_node(GPU_NODE).gpus
    lines = []
    for row in load_rows(study=STUDY, table="Table 4", metric="throughput"):
        if row.run.model is not None:
            continue
        boards = min(row.run.chips, most)
        printed = row.run.micro_batch or 1
        report = simulate_gpu(
            AUTOENCODER,
            GPU_NODE,
            gpus=boards,
            batch=max(1, printed // boards),
            precision=GPU_PRECISION,
            framework=GPU_STACK,
            optimizer=_optimizer(),
        )
        lines.append(
            {
                "row_id": row.row_id,
                "boards": boards,
                "printed_batch": printed,
                "batch_per_board": report.batch,
                "published": row.value,
                "predicted": report.throughput,
                "error_percent": error_percent(report.throughput, row.value),
                "verdict": verdict_of(report.throughput, row.value),
                "step_ms": 1e3 * report.step_s,
                "published_step_ms": 1e3 * printed / row.value,
                **{f"{part}_ms": 1e3 * seconds for part, seconds in report.parts.items()},
            }
        )
    return pd.DataFrame(lines)


def _optimizer() -> str:
    """Return the optimiser that the IPU rows of Table 4 assume."""
    rows = load_rows(study=STUDY, table="Table 4", metric="throughput")
    return next(row.run.optimizer for row in rows if row.run.model == AUTOENCODER) or "sgd"


def with_gpus(frame: pd.DataFrame, gpus: pd.DataFrame) -> pd.DataFrame:
    """Return verdicts whose GPU rows of Table 4, rates and times, are those of `table4_gpus`."""
    predicted = dict(zip(gpus["row_id"], gpus["predicted"], strict=True))
    rows = {row.row_id: row for row in load_rows(study=STUDY, table="Table 4")}
    rates = {row.run.run_id: predicted[name] for name, row in rows.items() if name in predicted}
    filled = frame.set_index("row_id", drop=False)
    for row in rows.values():
        rate = rates.get(row.run.run_id)
        if rate is None or row.row_id not in filled.index:
            continue
        value = rate if row.metric == "throughput" else EPOCH_IMAGES / rate
        filled.loc[row.row_id, ["calibrated", "verdict", "status", "note"]] = [
            value,
            verdict_of(value, row.value),
            PREDICTED,
            f"GPU model, {GPU_STACK}, {GPU_PRECISION}; the network is assumed",
        ]
    return filled.reset_index(drop=True)


def crossover(frame: pd.DataFrame) -> pd.DataFrame:
    """Compare one IPU with one A100 at batch 10: images/s as published and predicted."""
    table4 = table_frame(frame, "Table 4")
    small = table4[(table4["micro_batch"] == 10) & (table4["chips"] == 1)]
    is_ipu = small["label"].str.contains("IPU")
    lines = []
    for name in ("published", "calibrated"):
        ipu, gpu = (float(part[name].iloc[0]) for part in (small[is_ipu], small[~is_ipu]))
        lines.append({"numbers": name, "one_ipu": ipu, "one_a100": gpu, "ratio": ipu / gpu})
    return pd.DataFrame(lines)
