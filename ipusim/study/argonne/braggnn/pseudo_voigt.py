"""Least-squares fit of a pseudo-Voigt peak to a patch: the conventional way to find a centre."""

import numpy as np
from scipy import ndimage
from scipy.optimize import least_squares

_LN2 = float(np.log(2))
_EVALUATIONS = 100
_TOLERANCE = 1e-6
_LOG_WIDTH = (-1.5, 2.5)  # half widths from 0.2 to 12 pixels


class _Peak:
    """Residuals of one patch and their derivatives.

    Parameters are height, column, row, logarithms of both half widths, turn, logit of the mixing,
    and background; logarithm and logit keep the search free of bounds.
    """

    def __init__(self, patch: np.ndarray) -> None:
        pixels = np.arange(patch.shape[0], dtype=float)
        self.columns = np.tile(pixels, patch.shape[0])
        self.rows = np.repeat(pixels, patch.shape[1])
        self.values = patch.ravel()

    def start(self) -> np.ndarray:
        total = self.values.sum()
        column, row = self.columns @ self.values / total, self.rows @ self.values / total
        square = (self.columns - column) ** 2 + (self.rows - row) ** 2
        # half width of a Gaussian with this second moment
        width = np.sqrt(_LN2 * (square @ self.values) / total)
        log_width = np.clip(np.log(width + 1e-3), *_LOG_WIDTH)
        return np.array([self.values.max(), column, row, log_width, log_width, 0.3, 0.0, 0.0])

    def _terms(self, p: np.ndarray) -> tuple[np.ndarray, ...]:
        across, down = self.columns - p[1], self.rows - p[2]
        width_a, width_b = np.exp(np.clip(p[3:5], *_LOG_WIDTH))
        cosine, sine = np.cos(p[5]), np.sin(p[5])
        a = (cosine * across + sine * down) / width_a
        b = (cosine * down - sine * across) / width_b
        square = a * a + b * b
        mixing = 1 / (1 + np.exp(-np.clip(p[6], -30, 30)))
        return a, b, 1 / (1 + square), np.exp(-_LN2 * square), mixing, width_a, width_b

    def residuals(self, p: np.ndarray) -> np.ndarray:
        _, _, lorentzian, gaussian, mixing, *_ = self._terms(p)
        return p[0] * (mixing * lorentzian + (1 - mixing) * gaussian) + p[7] - self.values

    def jacobian(self, p: np.ndarray) -> np.ndarray:
        a, b, lorentzian, gaussian, mixing, width_a, width_b = self._terms(p)
        slope = -p[0] * (mixing * lorentzian**2 + _LN2 * (1 - mixing) * gaussian)
        cosine, sine = np.cos(p[5]), np.sin(p[5])
        return np.stack(
            [
                mixing * lorentzian + (1 - mixing) * gaussian,
                slope * 2 * (b * sine / width_b - a * cosine / width_a),
                slope * -2 * (a * sine / width_a + b * cosine / width_b),
                slope * -2 * a * a,
                slope * -2 * b * b,
                slope * 2 * a * b * (width_b / width_a - width_a / width_b),
                p[0] * (lorentzian - gaussian) * mixing * (1 - mixing),
                np.ones_like(a),
            ],
            axis=1,
        )


def fit_centres(patches: np.ndarray) -> np.ndarray:
    """Fit height, centre, two half widths, turn, mixing and background to each patch.

    Levenberg-Marquardt of MINPACK through scipy, with analytic derivatives. Patches are (count, 1,
    size, size). Returns centres (count, 2) in pixels of the patch, column first, at most a pixel
    outside it; the middle of an empty patch.
    """
    size = patches.shape[-1]
    centres = np.full((len(patches), 2), (size - 1) / 2)
    limits = {"xtol": _TOLERANCE, "ftol": _TOLERANCE, "max_nfev": _EVALUATIONS}
    for place, patch in enumerate(patches.astype(float)[:, 0]):
        if patch.any():
            peak = _Peak(patch)
            how = {"jac": peak.jacobian, "method": "lm", **limits}
            fitted = least_squares(peak.residuals, peak.start(), **how)
            centres[place] = np.clip(fitted.x[1:3], -1.0, float(size))
    return centres


def centroids(patches: np.ndarray) -> np.ndarray:
    """Return centres of mass (count, 2) in pixels, column first."""
    values = patches[:, 0].astype(float)
    return np.array([ndimage.center_of_mass(patch)[::-1] for patch in values])
