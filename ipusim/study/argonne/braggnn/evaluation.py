"""How far predicted centres are from the true ones: errors, percentiles, tables."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ipusim.numerics.trainer import Trained
from ipusim.study.argonne.braggnn.patches import PATCH_SIZE, prepare_patches
from ipusim.study.argonne.braggnn.peaks import Peaks
from ipusim.study.argonne.braggnn.pseudo_voigt import centroids, fit_centres
from ipusim.study.argonne.braggnn.training import predict_centres

PERCENTILES = (50.0, 75.0, 95.0, 99.5)
"""Those that the authors' code prints."""


def errors_px(predicted: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return Euclidean errors in pixels of centres (count, 2) in pixels."""
    return np.linalg.norm(predicted.astype(float) - centres, axis=1)


def predicted_pixels(trained: Trained, peaks: Peaks) -> tuple[np.ndarray, np.ndarray]:
    """Return predicted and true centres of unshifted patches in pixels, as the run was trained."""
    patches, targets = prepare_patches(peaks.crops, peaks.centres)
    found = predict_centres(patches, trained.weights, trained.options.arithmetic)
    return found * PATCH_SIZE, targets.astype(float) * PATCH_SIZE


def training_errors(trained: Sequence[Trained], peaks: Peaks) -> dict[str, np.ndarray]:
    """Return errors in pixels of each run on held-out peaks, by its label."""
    return {
        run.options.arithmetic.describe(): errors_px(*predicted_pixels(run, peaks))
        for run in trained
    }


def conventional_errors(peaks: Peaks) -> dict[str, np.ndarray]:
    """Return errors in pixels without a network; "detected pixel" says the middle of each patch."""
    patches, targets = prepare_patches(peaks.crops, peaks.centres)
    centres = targets.astype(float) * PATCH_SIZE
    middle = np.full(centres.shape, (PATCH_SIZE - 1) / 2)
    return {
        "pseudo-Voigt fit": errors_px(fit_centres(patches), centres),
        "centre of mass": errors_px(centroids(patches), centres),
        "detected pixel": errors_px(middle, centres),
    }


def error_table(errors: Mapping[str, np.ndarray], reference: str = "32.32") -> pd.DataFrame:
    """Summarise errors in pixels by method, and their change against the method `reference`."""
    base = float(np.percentile(errors[reference], 75)) if reference in errors else float("nan")
    names = [f"p{level:g}_px".replace(".", "_", 1) for level in PERCENTILES]
    frame = pd.DataFrame(
        {"method": method, "peaks": len(values), "mean_px": float(values.mean())}
        | dict(zip(names, np.percentile(values, PERCENTILES), strict=True))
        for method, values in errors.items()
    )
    return frame.assign(p75_change_percent=100 * (frame["p75_px"] / base - 1))


def loss_table(trained: Sequence[Trained], every: int = 10) -> pd.DataFrame:
    """Return training losses as root mean square errors (pixels), averaged over `every` steps."""
    frames = []
    for run in trained:
        whole = run.losses[: len(run.losses) // every * every]
        losses = np.reshape(whole, (-1, every)).mean(axis=1)
        # the loss is a mean over both coordinates
        rms_px = np.sqrt(2 * losses) * PATCH_SIZE
        about = {"method": run.options.arithmetic.describe()}
        about |= {"step": every * np.arange(1, len(losses) + 1)}
        frames.append(pd.DataFrame(about | {"rms_px": rms_px}))
    return pd.concat(frames, ignore_index=True)
