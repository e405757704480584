"""The GPUs of the TAMU study's Figures 1 and 2: ResNet-50 training, with mixed precision.

The figures are charts without numbers. Their GPU bars are predicted here, with an interval from
rows that were published elsewhere, and such a row stands beside a bar where there is one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from ipusim.errors import resolve_name
from ipusim.machine.gpu import load_gpu_node
from ipusim.runtime.gpu.step import simulate_gpu
from ipusim.study.verdicts.compare_gpu import conformal_ratios, gpu_compare

MODEL = "resnet50"
PRINTED_MODEL = "ResNet-50 v1.5"
BATCH = 256
"""TAMU section 3.3.2 for TensorFlow; configs.yml of NVIDIA/DeepLearningExamples for PyTorch."""
COUNTS = (1, 2, 4, 8)
SYSTEMS = ("Grace T4", "Grace RTX 6000", "Expanse V100", "Grace A100", "LoneStar6", "DGX A100")
COLUMNS = (
    "figure",
    "system",
    "gpu",
    "gpus",
    "batch",
    "stack",
    "predicted_img_s",
    "low80_img_s",
    "high80_img_s",
    "published_img_s",
    "published_row",
    "anchor",
    "predicted_on_anchor_img_s",
    "boards_tdp_w",
    "machine_tdp_w",
    "predicted_img_s_per_board_w",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """One figure: its stack, and for each machine the board whose published rows stand beside."""

    name: str
    stack: str
    boards: dict[str, str]


FIGURES = {
    "pytorch": _Figure(
        name="Figure 1",
        stack="pytorch-21",
        boards={"Expanse V100": "V100 SXM2 32GB", "DGX A100": "A100 SXM 80GB"},
    ),
    "tensorflow": _Figure(
        name="Figure 2",
        stack="tf1-20.06-xla",
        boards={"Expanse V100": "V100 SXM2 16GB", "DGX A100": "A100 SXM 40GB"},
    ),
}
_ANCHORS = {
    "Grace T4": "none: no mixed-precision training of ResNet-50 on T4 is published",
    "Grace RTX 6000": "none with this stack: Lambda's 646 img/s on one board is PyTorch 1.4",
    "Grace A100": "none with this stack: Lambda's rows on A100 PCIe are PyTorch 1.7 and 1.13",
}
_ANCHORS["LoneStar6"] = _ANCHORS["Grace A100"]


def _published(frame: pd.DataFrame, figure: _Figure, board: str, gpus: int) -> tuple[float, str]:
    """Return the published throughput of a board with the figure's stack, and its row."""
    found = frame[
        (frame["model"] == PRINTED_MODEL)
        & (frame["stack"] == figure.stack)
        & (frame["mode"] == "training")
        & (frame["precision"] == "mixed")
        & (frame["gpu"] == board)
        & (frame["gpus"] == gpus)
        & (frame["batch"] == BATCH)
    ]
    if found.empty:
        return math.nan, ""
    return float(found["published"].iloc[0]), str(found["row_id"].iloc[0])


def _on_anchor(figure: _Figure, board: str, gpus: int) -> float:
    """Predict the published run itself, in images per second."""
    report = simulate_gpu(MODEL, board, gpus=gpus, batch=BATCH, framework=figure.stack)
    return report.throughput


def _anchor(figure: _Figure, system: str, gpu: str, row: str) -> str:
    board = figure.boards.get(system)
    if board is None:
        return _ANCHORS[system]
    if not row:
        return "none at this number of boards"
    return "same stack and board" if board == gpu else f"same stack, measured on {board}"


def tamu_gpu_figure(framework: str = "pytorch", *, coverage: float = 0.8) -> pd.DataFrame:
    """Predict the GPU bars of Figure 1 or Figure 2.

    Parameters
    ----------
    framework : {"pytorch", "tensorflow"}
        Figure 1 or Figure 2.
    coverage : float
        Share of measurements that the interval should hold.

    Returns
    -------
    pandas.DataFrame
        One line per machine and number of boards (1, 2, 4, 8 and all of the machine), columns
        `COLUMNS`; throughput in images per second, power in watts. ``anchor`` says whether a
        published number stands beside the bar, and on which board it was measured;
        ``predicted_on_anchor_img_s`` is the prediction for that very run. The interval
        comes from the training rows of the same stack, leave one model out; where a machine has no
        anchor it assumes that the board errs like those that have one.

    Raises
    ------
    UnknownNameError
        If there is no such framework.
    StudyError
        If the coverage is out of range.
    """
    figure = FIGURES[resolve_name("framework", framework, FIGURES)]
    frame = gpu_compare()
    known = frame[(frame["stack"] == figure.stack) & (frame["mode"] == "training")]
    low, high = conformal_ratios(known, coverage)
    lines = []
    for system in SYSTEMS:
        node = load_gpu_node(system)
        for gpus in sorted({*(count for count in COUNTS if count <= node.gpus), node.gpus}):
            report = simulate_gpu(
                MODEL, system, gpus=gpus, batch=BATCH, framework=figure.stack, precision="mixed"
            )
            board = figure.boards.get(system, "")
            value, row = _published(frame, figure, board, gpus)
            lines.append(
                {
                    "figure": figure.name,
                    "system": system,
                    "gpu": report.gpu,
                    "gpus": gpus,
                    "batch": BATCH,
                    "stack": report.stack,
                    "predicted_img_s": report.throughput,
                    "low80_img_s": report.throughput * low,
                    "high80_img_s": report.throughput * high,
                    "published_img_s": value,
                    "published_row": row,
                    "anchor": _anchor(figure, system, report.gpu, row),
                    "predicted_on_anchor_img_s": (
                        _on_anchor(figure, board, gpus) if row else math.nan
                    ),
                    "boards_tdp_w": report.tdp_w,
                    "machine_tdp_w": node.tdp_w if gpus == node.gpus else math.nan,
                    "predicted_img_s_per_board_w": report.throughput / report.tdp_w,
                }
            )
    return pd.DataFrame(lines, columns=list(COLUMNS))
