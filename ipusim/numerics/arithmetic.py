"""Which arithmetic a run uses: storage, partials, rounding, and its stream of random bits."""

from dataclasses import dataclass

import numpy as np

from ipusim.errors import ConfigError, check_name
from ipusim.numerics.kernels import rounding
from ipusim.numerics.kernels.amp import SLICE_DEPTH
from ipusim.numerics.kernels.threads import writable

PARTIALS = ("half", "float")
"""Storage of partial sums, named as in `ipusim.simulate`."""

_DEFAULT_PARTIALS = {"16.16": "half", "16.32": "float", "32.32": "float"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticOptions:
    """Choice of arithmetic.

    Attributes
    ----------
    precision : {"16.16", "16.32", "32.32"}
        Storage of activations and of weights. With "16.32" training keeps single-precision master
        weights and computes with their half-precision copies; "32.32" is the fp32 reference.
    partials : {"half", "float"} or None
        Storage of partial sums; None takes half for "16.16" and float otherwise, as the chip's
        FP16.16 and FP16.32 modes are named.
    stochastic_rounding : bool
        Whether every result that is stored as half, partials included, is rounded stochastically
        (one switch per tile on the IPU); otherwise to the nearest.
    seed : int
        Of the random bits.
    """

    precision: str = "16.16"
    partials: str | None = None
    stochastic_rounding: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_name("precision of numerics", self.precision, _DEFAULT_PARTIALS)
        if self.partials is not None:
            check_name("partials type", self.partials, PARTIALS)
        if self.partials == "half" and self.precision == "32.32":
            raise ConfigError(
                "Partials 'half' need half operands; choose 'float' or precision '16.16'."
            )
        whole = isinstance(self.seed, int | np.integer) and not isinstance(self.seed, bool)
        if not whole or self.seed < 0:
            raise ConfigError(f"Seed {self.seed!r} must be a whole number, 0 or more.")

    @property
    def half(self) -> bool:
        """Whether activations are stored as half."""
        return self.precision != "32.32"

    @property
    def master_weights(self) -> bool:
        """Whether weights are stored in single precision."""
        return self.precision != "16.16"

    @property
    def half_partials(self) -> bool:
        """Whether partial sums are stored as half."""
        return (self.partials or _DEFAULT_PARTIALS[self.precision]) == "half"

    def describe(self) -> str:
        """Return a short label, for example "16.16, half partials, stochastic rounding"."""
        if not self.half:
            return self.precision
        how = "stochastic rounding" if self.stochastic_rounding else "nearest rounding"
        return f"{self.precision}, {'half' if self.half_partials else 'float'} partials, {how}"


class Arithmetic:
    """Rounds what one pass through a network stores.

    Every call that may round takes the next stream of random bits, so a result depends on the
    seed, the step and the order of operations only.
    """

    def __init__(self, options: ArithmeticOptions, step: int = 0) -> None:
        self.options = options
        self.step = step
        self._calls = 0
        half_mode = rounding.STOCHASTIC if options.stochastic_rounding else rounding.NEAREST
        self._storage_mode = half_mode if options.half else rounding.NONE
        self._partials_mode = half_mode if options.half_partials else rounding.NONE

    def storage(self) -> rounding.Rounding:
        """Return how the next result is rounded when stored."""
        return self._next(self._storage_mode)

    def partials(self) -> rounding.Rounding:
        """Return how the partial sums of the next product are rounded."""
        return self._next(self._partials_mode)

    def _next(self, mode: int) -> rounding.Rounding:
        self._calls += 1
        return rounding.Rounding(
            mode, *rounding.stream_key(self.options.seed, self.step, self._calls)
        )

    def store(self, values: np.ndarray) -> np.ndarray:
        """Round values, in place unless they are a view, to the storage of activations."""
        # What numpy makes of arrays without an axis is no array.
        return rounding.round_in_place(writable(values), self.storage())

    def store_sums(self, sums: np.ndarray, depth: int) -> np.ndarray:
        """Store sums of `depth` products, which are halves already if their partials were."""
        if self._partials_mode != rounding.NONE and depth <= SLICE_DEPTH:
            return sums
        return self.store(sums)

    def copy(self, values: np.ndarray) -> np.ndarray:
        """Return a copy rounded to the storage of activations."""
        return self.store(np.array(values, np.float32, order="C"))
