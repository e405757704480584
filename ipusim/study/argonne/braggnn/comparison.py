"""The same training in several arithmetics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ipusim.errors import resolve_name
from ipusim.numerics.arithmetic import ArithmeticOptions
from ipusim.study.argonne.braggnn.peaks import PeakOptions, Peaks, simulate_peaks
from ipusim.study.argonne.braggnn.training import (
    FULL,
    QUICK,
    STANDARD,
    Schedule,
    TrainedBragg,
    TrainingOptions,
    train_bragg,
)

SCHEDULES = {"quick": QUICK, "standard": STANDARD, "full": FULL}

ARITHMETICS = (
    ArithmeticOptions(precision="32.32"),
    ArithmeticOptions(precision="16.32"),
    ArithmeticOptions(precision="16.16"),
    ArithmeticOptions(precision="16.16", stochastic_rounding=False),
)
"""The fp32 reference, fp32 masters, and all in half, with and without stochastic rounding."""

_TEST_SEED = 1_000_003  # added to the seed: held-out peaks come from a stream of their own


def named_schedule(name: str) -> Schedule:
    """Return a schedule by name: "quick", "standard" or "full"."""
    return SCHEDULES[resolve_name("schedule", name, SCHEDULES)]


def simulate_sets(
    schedule: Schedule, seed: int, options: PeakOptions | None = None
) -> tuple[Peaks, Peaks]:
    """Return the training and the held-out peaks of a schedule."""
    training = simulate_peaks(schedule.train_peaks, seed, options)
    held_out = simulate_peaks(schedule.test_peaks, seed + _TEST_SEED, options)
    return training, held_out


def train_in_each(
    peaks: Peaks,
    schedule: Schedule,
    *,
    arithmetics: Sequence[ArithmeticOptions] = ARITHMETICS,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: bool = False,
) -> list[TrainedBragg]:
    """Train once per arithmetic, in their order, everything else alike.

    With a `folder` each run keeps its checkpoint there, and a second call goes on where the first
    stopped. The seed is that of initial weights, order and shifts, the same for every run.
    """
    trained = []
    for arithmetic in arithmetics:
        options = TrainingOptions(arithmetic=arithmetic, schedule=schedule, seed=seed)
        path = None
        if folder is not None:
            label = re.sub(r"[^a-z0-9.]+", "-", arithmetic.describe())
            path = Path(folder) / f"braggnn-{label}-{schedule.steps}-steps-seed-{seed}.npz"
        trained.append(train_bragg(peaks, options, checkpoint=path, progress=progress))
    return trained
