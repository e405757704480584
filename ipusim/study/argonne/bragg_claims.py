"""What the Argonne slides say of BraggNN's speed, beside what is predicted.

The slides give ratios and one time, whose GPU they do not name. Arithmetic on them says which GPU
it can have been; no prediction is needed for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pandas as pd

from ipusim.study.argonne.dataflow import (
    GpuRun,
    load_dataflow,
    simulate_flow,
    training_seconds,
)
from ipusim.study.data.published import load_claims
from ipusim.study.verdicts.compare import error_percent, verdict_of
from ipusim.study.verdicts.compare_gpu import conformal_ratios, gpu_compare

REFERENCE, GOAL, OUT_OF_THE_BOX, AGAINST_A100, AGAINST_V100 = (
    f"argonne.claims.AR{number}" for number in (41, 42, 44, 45, 46)
)


@cache
def _published() -> dict[str, tuple[float, float]]:
    """Return the BraggNN claims by row id, as the two ends of what they say."""
    claims = load_claims("argonne")
    values = dict(zip(claims["row_id"], claims["value"], strict=True))
    ends = {}
    for row_id in (REFERENCE, GOAL, OUT_OF_THE_BOX, AGAINST_A100, AGAINST_V100):
        low, _, high = values[row_id].partition("-")
        ends[row_id] = (float(low), float(high or low))
    return ends


def goal_seconds() -> float:
    """Return the time to train that the slides aim at."""
    return _published()[GOAL][0]


def reference_frame() -> pd.DataFrame:
    """Work out what the slides' time of 800 s means for each GPU that it may belong to.

    Returns
    -------
    pandas.DataFrame
        Per candidate ("V100", "A100"): the time of the final version that its ratio gives (s), the
        time of the other GPU that follows from the other ratio (s), the times of the first version
        from the ratio of 3 to 4 (s), and whether the final version meets the goal.
    """
    known = _published()
    reference, goal = known[REFERENCE][0], goal_seconds()
    ratios = {"V100": known[AGAINST_V100][0], "A100": known[AGAINST_A100][0]}
    low, high = known[OUT_OF_THE_BOX]
    lines = []
    for board, ratio in ratios.items():
        final = reference / ratio
        v100 = final * ratios["V100"]
        lines.append(
            {
                "candidate": board,
                "final_s": final,
                "v100_s": v100,
                "a100_s": final * ratios["A100"],
                "first_fast_s": v100 / high,
                "first_slow_s": v100 / low,
                "meets_goal": final < goal,
            }
        )
    return pd.DataFrame(lines)


def implied_seconds() -> dict[str, tuple[float, float]]:
    """Return the times that follow if the 800 s are those of a V100, as two ends each."""
    line = reference_frame().set_index("candidate").loc["V100"]
    final = float(line["final_s"])
    return {
        "V100": (float(line["v100_s"]),) * 2,
        "A100": (float(line["a100_s"]),) * 2,
        "stock": (float(line["first_fast_s"]), float(line["first_slow_s"])),
        "on_chip": (final, final),
    }


def board_factors(run: GpuRun) -> tuple[float, float]:
    """Return the 80 % interval of a board's step, as factors on the predicted seconds.

    From published training rows of the same stack, leave one model out (`conformal_ratios`).
    """
    frame = gpu_compare()
    known = frame[(frame["stack"] == run.report.stack) & (frame["mode"] == "training")]
    low, high = conformal_ratios(known)
    return 1 / high, 1 / low


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """One claim: of which board's time it speaks, divided by which dataflow's, if at all."""

    row_id: str
    text: str
    unit: str
    board: str
    flow: str
    reason: str


_CLAIMS = (
    _Claim(
        row_id=REFERENCE,
        text="GPU, 500 epochs at batch 512",
        unit="s",
        board="V100",
        flow="",
        reason="predicted for a V100, to which the time must belong; nearly all of it is the start "
        "of 176 kernels, each a few microseconds of work, and the GPU model was fitted on networks "
        "with kernels a hundred times longer",
    ),
    _Claim(
        row_id=OUT_OF_THE_BOX,
        text="V100 over version 1",
        unit="x",
        board="V100",
        flow="stock",
        reason="version 1 is bound by the loader and takes as long as published (200 to 267 s); "
        "the ratio is low because the V100 is",
    ),
    _Claim(
        row_id=AGAINST_V100,
        text="V100 over version 3, more than",
        unit="x",
        board="V100",
        flow="on_chip",
        reason="the chip's time; the loader no longer matters",
    ),
    _Claim(
        row_id=AGAINST_A100,
        text="A100 over version 3, more than",
        unit="x",
        board="A100",
        flow="on_chip",
        reason="stack and precision of the A100 are assumed",
    ),
    _Claim(
        row_id=GOAL,
        text="version 3, 500 epochs, less than",
        unit="s",
        board="",
        flow="on_chip",
        reason="a goal, met already by version 2b",
    ),
)


def _fitting_value(claim: _Claim, predicted: float) -> float:
    """Return the value nearest to the prediction that fits the words of a claim."""
    low, high = _published()[claim.row_id]
    if claim.row_id in (AGAINST_A100, AGAINST_V100):
        high = math.inf
    elif claim.row_id == GOAL:
        low = 0.0
    return min(max(predicted, low), high)


def ratio_frame(
    boards: Mapping[str, GpuRun], *, chip: str = "GC200", precision: str = "32.32"
) -> pd.DataFrame:
    """Compare times and ratios of the slides with the predicted ones.

    Parameters
    ----------
    boards : mapping of str to GpuRun
        "V100" and "A100".
    chip, precision : str
        Of the IPU; the slides say Mk2, so GC200.

    Returns
    -------
    pandas.DataFrame
        Per claim: row_id, claim, unit, published (as printed), predicted, low80 and high80 (from
        the interval of the GPU alone; NaN where no GPU enters), error_percent and verdict against
        the nearest value that fits the words ("3-4", "more than"), reason.
    """
    flows = {
        name: training_seconds(simulate_flow(load_dataflow(name), chip=chip, precision=precision))
        for name in {claim.flow for claim in _CLAIMS if claim.flow}
    }
    printed = load_claims("argonne").set_index("row_id")["value"]
    lines = []
    for claim in _CLAIMS:
        if not claim.board:
            predicted, low, high = flows[claim.flow], math.nan, math.nan
        else:
            divisor = flows[claim.flow] if claim.flow else 1.0
            predicted = boards[claim.board].training_s / divisor
            low, high = (predicted * factor for factor in board_factors(boards[claim.board]))
        fitting = _fitting_value(claim, predicted)
        lines.append(
            {
                "row_id": claim.row_id,
                "claim": claim.text,
                "unit": claim.unit,
                "published": printed[claim.row_id],
                "predicted": predicted,
                "low80": low,
                "high80": high,
                "error_percent": error_percent(predicted, fitting),
                "verdict": verdict_of(predicted, fitting),
                "reason": claim.reason,
            }
        )
    return pd.DataFrame(lines)
