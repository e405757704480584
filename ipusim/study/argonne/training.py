"""The accuracy half of the Argonne study: BraggNN trained in several arithmetics, and recorded.

What the notebook trains itself is short; docs/record_braggnn.py records longer runs.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from ipusim.files import evidence_records
from ipusim.study.argonne.braggnn import training as bragg
from ipusim.study.argonne.braggnn.patches import PATCH_SIZE, prepare_patches
from ipusim.study.argonne.braggnn.peaks import Peaks
from ipusim.study.argonne.braggnn.pseudo_voigt import centroids, fit_centres

RECORD = "braggnn_training.csv"
"""File of data/evidence with the recorded runs."""
PUBLISHED = ((0.29, 75.0), (0.57, 95.0))
"""Share in percent of peaks that the paper's network places within so many pixels of the fitted
centre: Liu et al., IUCrJ 9 (2022) 104-113, abstract."""
PERCENTILES = (50.0, 75.0, 95.0, 99.5)
"""Those that the authors' code prints."""
SHOWN_PEAKS = 12
PLANNED = ("train_peaks", "test_peaks", "batch", "steps")
_PIXELS = ("p50_px", "p75_px", "p95_px")
COLUMNS = ("schedule", "seed", "rounding_seed", *PLANNED, "method", *_PIXELS)
"""Those of `RECORD`; `PLANNED` are numbers of a schedule."""
_SINGLE_PRECISION = "32.32"


def train(
    schedule: str,
    seed: int,
    *,
    checkpoint_dir: str = "",
    progress: bool = True,
    rounding_seed: int = 0,
) -> tuple[list[bragg.Trained], Peaks]:
    """Train in every arithmetic (`train_in_each`); return the runs and the held-out peaks.

    The seed is that of peaks, initial weights, order and shifts. Checkpoints go into their folder;
    an empty string keeps none.
    """
    plan = bragg.named_schedule(schedule)
    training, held_out = bragg.simulate_sets(plan, seed)
    folder = Path(checkpoint_dir) / f"rounding-{rounding_seed}" if checkpoint_dir else None
    run = {"seed": seed, "rounding_seed": rounding_seed, "folder": folder, "progress": progress}
    return bragg.train_in_each(training, plan, **run), held_out


def errors_px(predicted: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return Euclidean errors in pixels of centres (count, 2) in pixels."""
    return np.linalg.norm(predicted.astype(float) - centres, axis=1)


def predicted_pixels(run: bragg.Trained, peaks: Peaks) -> tuple[np.ndarray, np.ndarray]:
    """Return predicted and true centres of unshifted patches in pixels, as the run was trained."""
    patches, targets = prepare_patches(peaks.crops, peaks.centres)
    found = bragg.predict_centres(patches, run.weights, run.options.arithmetic)
    return found * PATCH_SIZE, targets.astype(float) * PATCH_SIZE


def training_errors(runs: Sequence[bragg.Trained], peaks: Peaks) -> dict[str, np.ndarray]:
    """Return errors in pixels of each run on held-out peaks, by its label."""
    return {
        run.options.arithmetic.describe(): errors_px(*predicted_pixels(run, peaks)) for run in runs
    }


def all_errors(runs: Sequence[bragg.Trained], peaks: Peaks) -> dict[str, np.ndarray]:
    """Return errors in pixels on held-out peaks of runs, and of methods without a network.

    "detected pixel" says the middle of each patch.
    """
    patches, targets = prepare_patches(peaks.crops, peaks.centres)
    centres = targets.astype(float) * PATCH_SIZE
    middle = np.full(centres.shape, (PATCH_SIZE - 1) / 2)
    return training_errors(runs, peaks) | {
        "pseudo-Voigt fit": errors_px(fit_centres(patches), centres),
        "centre of mass": errors_px(centroids(patches), centres),
        "detected pixel": errors_px(middle, centres),
    }


def error_table(
    errors: Mapping[str, np.ndarray], reference: str = _SINGLE_PRECISION
) -> pd.DataFrame:
    """Summarise errors in pixels by method, and their change against the method `reference`."""
    base = float(np.percentile(errors[reference], 75)) if reference in errors else float("nan")
    names = [f"p{level:g}_px".replace(".", "_", 1) for level in PERCENTILES]
    frame = pd.DataFrame(
        {"method": method, "peaks": len(values), "mean_px": float(values.mean())}
        | dict(zip(names, np.percentile(values, PERCENTILES), strict=True))
        for method, values in errors.items()
    )
    return frame.assign(p75_change_percent=100 * (frame["p75_px"] / base - 1))


def loss_table(runs: Sequence[bragg.Trained], every: int = 10) -> pd.DataFrame:
    """Return training losses as root mean square errors (pixels), averaged over `every` steps."""
    frames = []
    for run in runs:
        whole = run.losses[: len(run.losses) // every * every]
        losses = np.reshape(whole, (-1, every)).mean(axis=1)
        # the loss is a mean over both coordinates
        rms_px = np.sqrt(2 * losses) * PATCH_SIZE
        about = {"method": run.options.arithmetic.describe()}
        about |= {"step": every * np.arange(1, len(losses) + 1)}
        frames.append(pd.DataFrame(about | {"rms_px": rms_px}))
    return pd.concat(frames, ignore_index=True)


def peaks_frame(peaks: Peaks) -> pd.DataFrame:
    """Describe a set of peaks: how many, how bright, how many disturbed."""
    heights = np.percentile(peaks.heights, (5, 50, 95))
    patches, _ = prepare_patches(peaks.crops, peaks.centres, clean=False)
    lit = (patches > 0).mean(axis=(1, 2, 3))
    facts = (
        ("held-out peaks", len(peaks), "peaks"),
        ("height, 5th percentile", round(heights[0]), "counts"),
        ("height, median", round(heights[1]), "counts"),
        ("height, 95th percentile", round(heights[2]), "counts"),
        ("with a neighbour", 100 * float(peaks.neighbours.mean()), "%"),
        ("saturated", 100 * float(peaks.saturated.mean()), "%"),
        ("pixels above the background, median patch", 100 * float(np.median(lit)), "%"),
    )
    return pd.DataFrame(facts, columns=["quantity", "value", "unit"])


def accuracy_frame(errors: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Return percentiles of errors in pixels by method (`all_errors`), and the published ones.

    Shown with two significant digits: the last one may differ where a fit ends a little elsewhere.
    """
    frame = error_table(errors)
    (first, _), (second, _) = PUBLISHED
    published = {"method": "published, real frames", "p75_px": first, "p95_px": second}
    frame = pd.concat([frame, pd.DataFrame([published])], ignore_index=True)
    return frame.astype({"peaks": "Int64"})


def goals_frame(errors: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Say of every method whether it places as many peaks as the paper's network."""
    return pd.DataFrame(
        {"method": method}
        | {
            f"{share:g} % within {error} px": bool(np.percentile(values, share) <= error)
            for error, share in PUBLISHED
        }
        for method, values in errors.items()
    )


def distributions(errors: Mapping[str, np.ndarray]) -> dict[str, pd.DataFrame]:
    """Return the share of peaks within each error, by method, and the published points."""
    names, shares = ["error_px", "peaks_percent"], []
    for method, values in errors.items():
        within = 100 * np.arange(1, len(values) + 1) / len(values)
        points = np.column_stack([np.sort(values), within])
        shares.append(pd.DataFrame(points, columns=names).assign(method=method))
    return {"errors": pd.concat(shares), "published": pd.DataFrame(PUBLISHED, columns=names)}


def shown_peaks(
    runs: Sequence[bragg.Trained], held_out: Peaks
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return the first held-out patches, their centres, and what two networks and the fit find."""
    some = held_out.part(0, SHOWN_PEAKS)
    patches, _ = prepare_patches(some.crops, some.centres)
    found = {"pseudo-Voigt fit": fit_centres(patches)}
    for run in (runs[0], runs[2]):
        name = f"BraggNN, {run.options.arithmetic.precision}"
        found[name], centres = predicted_pixels(run, some)
    return patches, centres, found


def peaks_with_centres(
    patches: np.ndarray, centres: np.ndarray, predicted: Mapping[str, np.ndarray]
) -> dict[str, pd.DataFrame]:
    """Return the centres of patches, those found by each method too, and their pixels.

    Patches are (count, 1, size, size), scaled to 0..1; centres (count, 2) in pixels, column first.
    """
    methods = {"true centre": centres, **predicted}
    found = [_places(points).assign(method=method) for method, points in methods.items()]
    peak, _, row, column = np.indices(patches.shape).reshape(4, -1)
    pixels = {"peak": peak, "row": row, "column": column, "value": patches.ravel()}
    drawn = {"peaks": _places(centres), "found": pd.concat(found)}
    return drawn | {"pixels": pd.DataFrame(pixels)}


def _places(centres: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(centres, columns=["column", "row"]).rename_axis("peak").reset_index()


@cache
def recorded() -> pd.DataFrame:
    """Return the recorded runs: a line per schedule, seed and arithmetic, errors in pixels."""
    lines = evidence_records(RECORD)
    frame = pd.DataFrame({name: [line[name] for line in lines] for name in COLUMNS})
    numbers = frame.columns.difference(["schedule", "method"])
    return frame.assign(**frame[numbers].apply(pd.to_numeric))


def recorded_frame() -> pd.DataFrame:
    """Compare the recorded arithmetics with single precision on the same peaks, in medians."""
    frame, same = recorded(), ["schedule", "seed"]
    base = frame[frame["method"] == _SINGLE_PRECISION].set_index(same)["p75_px"]
    on_same_peaks = base.loc[pd.MultiIndex.from_frame(frame[same])].to_numpy()
    change = 100 * (frame["p75_px"] / on_same_peaks - 1)
    groups = frame.assign(change=change).groupby(["schedule", "method"], sort=False)
    pixels = {name: (name, "median") for name in _PIXELS}
    counted = groups.agg(
        steps=("steps", "first"), batch=("batch", "first"), runs=("seed", "size"), **pixels,
        median_change_percent=("change", "median"), least_change_percent=("change", "min"),
        most_change_percent=("change", "max"),
    ).reset_index()  # fmt: skip
    counted.insert(3, "method", counted.pop("method"))
    return counted
