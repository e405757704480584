"""BraggNN for real: synthetic diffraction peaks, and training in the arithmetic of an IPU.

>>> from ipusim.study.argonne import braggnn as bragg
>>> peaks = bragg.simulate_peaks(1000, seed=0)
>>> patches, targets = bragg.prepare_patches(peaks.crops, peaks.centres)
>>> patches.shape, targets.shape
((1000, 1, 11, 11), (1000, 2))
"""

from ipusim.study.argonne.braggnn.patches import prepare_patches as prepare_patches
from ipusim.study.argonne.braggnn.peaks import Peaks as Peaks, simulate_peaks as simulate_peaks
from ipusim.study.argonne.braggnn.training import (
    ARITHMETICS as ARITHMETICS,
    Schedule as Schedule,
    Trained as Trained,
    named_schedule as named_schedule,
    schedules as schedules,
    simulate_sets as simulate_sets,
    train_in_each as train_in_each,
)
