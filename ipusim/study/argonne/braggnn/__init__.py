"""BraggNN for real: synthetic diffraction peaks, training in IPU arithmetic, errors in pixels.

>>> from ipusim.study.argonne import braggnn as bragg
>>> peaks = bragg.simulate_peaks(1000, seed=0)
>>> patches, targets = bragg.prepare_patches(peaks.crops, peaks.centres)
>>> patches.shape, targets.shape
((1000, 1, 11, 11), (1000, 2))
"""

from ipusim.study.argonne.braggnn.comparison import (
    ARITHMETICS,
    named_schedule,
    simulate_sets,
    train_in_each,
)
from ipusim.study.argonne.braggnn.evaluation import (
    conventional_errors,
    error_table,
    loss_table,
    predicted_pixels,
    training_errors,
)
from ipusim.study.argonne.braggnn.patches import prepare_patches
from ipusim.study.argonne.braggnn.peaks import Peaks, simulate_peaks
from ipusim.study.argonne.braggnn.pseudo_voigt import fit_centres
from ipusim.study.argonne.braggnn.training import QUICK, Schedule, TrainedBragg

__all__ = [
    "ARITHMETICS",
    "QUICK",
    "Peaks",
    "Schedule",
    "TrainedBragg",
    "conventional_errors",
    "error_table",
    "fit_centres",
    "loss_table",
    "named_schedule",
    "predicted_pixels",
    "prepare_patches",
    "simulate_peaks",
    "simulate_sets",
    "train_in_each",
    "training_errors",
]
