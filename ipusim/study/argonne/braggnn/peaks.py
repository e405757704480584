"""Synthetic Bragg peaks on a pixel detector, with known centres.

The frames on which BraggNN was trained are not public, so this module makes peaks of the same kind:
two-dimensional pseudo-Voigt spots (the shape to which the published labels were fitted), turned and
stretched, on a sloping background, with neighbours, counting and read-out noise, and saturation at
the full scale of a 14-bit detector. Frames are reduced as far-field diffraction frames are before
peaks are searched: a background estimate is subtracted and what remains below a threshold is zero.

All ranges are assumptions of this project, chosen to look like the published example patches; none
is fitted to a published error. Everything follows from one seed; expected counts are rounded before
counts are drawn and pixel values are whole, so that platforms agree.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ipusim.errors import ConfigError

CROP_SIZE = 15
"""Side of a crop in pixels: an 11 x 11 patch and two pixels of margin on every side."""
FULL_SCALE = 16383
"""Largest count of a 14-bit detector."""

_LN2 = float(np.log(2))
_CHUNK = 4096
_COUNT_STEP = 2.0**-10  # of the expected counts of a pixel


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakOptions:
    """Distributions from which peaks are drawn; counts, pixels, and ranges as (least, most)."""

    height: tuple[float, float] = (600.0, 1.4)  # log-normal: median, logarithmic deviation
    half_width: tuple[float, float] = (0.8, 2.2)  # at half maximum along either axis
    neighbour_share: float = 0.25  # of crops with a second peak
    neighbour_distance: tuple[float, float] = (5.0, 10.0)
    background: tuple[float, float] = (50.0, 200.0)  # it slopes by up to a fifth across a crop
    read_noise: float = 6.0  # standard deviation
    threshold_sigmas: float = 3.0  # pixels less than so much above the background become zero


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Simulated crops; centres are the true ones in pixels of the crop, column first."""

    crops: np.ndarray  # float32 (count, 15, 15), above the background, detected pixel in the middle
    centres: np.ndarray  # float64 (count, 2)
    heights: np.ndarray  # counts above the background before saturation
    saturated: np.ndarray  # whether a pixel is at full scale
    neighbours: np.ndarray  # whether a second peak was added

    def __len__(self) -> int:
        return len(self.crops)

    def part(self, start: int, stop: int) -> Peaks:
        """Return consecutive peaks."""
        return Peaks(**{item.name: getattr(self, item.name)[start:stop] for item in fields(self)})


def pseudo_voigt(
    columns: np.ndarray,
    rows: np.ndarray,
    *,
    height: np.ndarray,
    column: np.ndarray,
    row: np.ndarray,
    width_a: np.ndarray,
    width_b: np.ndarray,
    angle: np.ndarray,
    mixing: np.ndarray,
) -> np.ndarray:
    """Two-dimensional pseudo-Voigt: a Lorentzian and a Gaussian of the same half widths, mixed.

    Half widths at half maximum lie along the axes of the peak, which is turned by `angle` (rad);
    `mixing` is the share of the Lorentzian, 0 to 1. All arguments are broadcast.
    """
    across, down = columns - column, rows - row
    cosine, sine = np.cos(angle), np.sin(angle)
    a = (cosine * across + sine * down) / width_a
    b = (cosine * down - sine * across) / width_b
    square = a * a + b * b
    return height * (mixing / (1 + square) + (1 - mixing) * np.exp(-_LN2 * square))


def simulate_peaks(count: int, seed: int, options: PeakOptions | None = None) -> Peaks:
    """Draw crops around detected peaks.

    A detector finds the brightest pixel (of the mean over 3 x 3, so that flat saturated tops do no
    harm) and crops around it; as in the published preparation, a crop whose true centre is a pixel
    or more from the detected one is not used and drawn anew.
    """
    if count < 1:
        raise ConfigError(f"The number of peaks is {count}, which must be at least 1.")
    options = options or PeakOptions()
    parts: list[Peaks] = []
    while (found := sum(map(len, parts))) < count:
        if len(parts) > 10 * (count // _CHUNK + 1):
            raise ConfigError(
                f"Only {found} of {count} peaks were found near their brightest pixel; choose "
                "fewer neighbours or higher peaks."
            )
        generator = np.random.default_rng([seed, len(parts), 0xB4A6])
        parts.append(_draw(_CHUNK, generator, options))
    names = [item.name for item in fields(Peaks)]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Peaks(**joined).part(0, count)


def _draw(count: int, generator: np.random.Generator, options: PeakOptions) -> Peaks:
    margin = 2  # of the field that is searched for the brightest pixel
    size = CROP_SIZE + 2 * margin
    middle = size // 2
    pixels = np.arange(size, dtype=float)
    columns, rows = pixels[None, None, :], pixels[None, :, None]

    def uniform(low: float, high: float) -> np.ndarray:
        return generator.uniform(low, high, count)[:, None, None]

    def shape() -> dict[str, np.ndarray]:
        return {
            "width_a": uniform(*options.half_width),
            "width_b": uniform(*options.half_width),
            "angle": uniform(0, np.pi),
            "mixing": uniform(0, 1),
        }

    height = options.height[0] * np.exp(options.height[1] * generator.standard_normal(count))
    height = height[:, None, None]
    column, row = uniform(middle - 0.5, middle + 0.5), uniform(middle - 0.5, middle + 0.5)
    signal = pseudo_voigt(columns, rows, height=height, column=column, row=row, **shape())
    second = generator.random(count) < options.neighbour_share
    distance, direction = uniform(*options.neighbour_distance), uniform(0, 2 * np.pi)
    other = pseudo_voigt(
        columns,
        rows,
        height=height * uniform(0.2, 1.0) * second[:, None, None],
        column=column + distance * np.cos(direction),
        row=row + distance * np.sin(direction),
        **shape(),
    )
    level = uniform(*options.background)
    slope_x, slope_y = uniform(-0.1, 0.1), uniform(-0.1, 0.1)
    background = level * (1 + (slope_x * (columns - middle) + slope_y * (rows - middle)) / middle)
    # Whole steps: mathematics libraries differ in the last bits, and drawn counts must not.
    expected = np.rint((signal + other + background) / _COUNT_STEP) * _COUNT_STEP
    counts = generator.poisson(expected).astype(float)
    counts = np.rint(counts + options.read_noise * generator.standard_normal(counts.shape))
    counts = np.clip(counts, 0, FULL_SCALE)
    # The background estimate is a level, as a median over frames gives it.
    estimate = np.rint(level)
    noise = np.sqrt(level + options.read_noise**2)
    reduced = counts - estimate
    reduced[reduced < options.threshold_sigmas * noise] = 0
    # Crops are centred on the detected pixel; those that found something else are dropped.
    first, side = size // 2 - margin - 1, 2 * margin + 1
    near = reduced[:, first:-first, first:-first]
    smooth = sliding_window_view(near, (3, 3), axis=(1, 2)).sum(axis=(3, 4))  # whole, so exact
    found_row, found_column = divmod(smooth.reshape(count, -1).argmax(axis=1), side)
    every = sliding_window_view([reduced, counts], (CROP_SIZE, CROP_SIZE), axis=(2, 3))
    crops, raw = every[:, np.arange(count), found_row, found_column]
    centres = np.stack([column[:, 0, 0] - found_column, row[:, 0, 0] - found_row], axis=1)
    detected = CROP_SIZE // 2
    near_it = (np.abs(centres - detected) < 1).all(axis=1)
    kept = near_it & (crops[:, detected, detected] > 0)
    return Peaks(
        crops=crops[kept].astype(np.float32),
        centres=centres[kept],
        heights=height[kept, 0, 0],
        saturated=(raw[kept] >= FULL_SCALE).any(axis=(1, 2)),
        neighbours=second[kept],
    )
