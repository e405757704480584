"""The few fitted constants: a cost per step and stack, two of scale-out, two of power."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ipusim import paths
from ipusim.errors import DataError

FILE = "calibration.toml"


@cache
def _tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{path.name} cannot be read ({error.strerror}): run 'ipusim calibrate'."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path.name} is not valid TOML ({error}): run 'ipusim calibrate'."
        ) from error


def _value(section: str, name: str) -> float:
    tables = _tables(paths.data_dir() / FILE)
    entry = tables.get(section, {}).get(name)
    value = entry.get("value") if isinstance(entry, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise DataError(
            f"The entry {section}.{name} of {FILE} is missing or not a number of 0 or more: "
            "run 'ipusim calibrate'."
        )
    return float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCosts:
    """Seconds that the calibrated tier adds; all 0 in the specification tier.

    Attributes
    ----------
    step_s : float
        Fixed cost per step: per batch in inference, per weight update in training.
    reduction_s : float
        Latency of a reduction over neighbouring chips within the program (distributed batch norm).
    collective_s : float
        Latency of a collective over all replicas, per machine that takes part.
    """

    step_s: float = 0.0
    reduction_s: float = 0.0
    collective_s: float = 0.0


def fitted_costs(stack: str) -> FittedCosts:
    """Return the fitted costs of a stack.

    A stack without an entry has nothing to be fitted on: its cost per step is 0. The two
    constants of scale-out belong to links and synchronisation and hold for all stacks.

    Raises
    ------
    DataError
        If the calibration file is missing or damaged.
    """
    known = _tables(paths.data_dir() / FILE).get("step_cost", {})
    return FittedCosts(
        step_s=_value("step_cost", stack) if stack in known else 0.0,
        reduction_s=_value("scale_out", "reduction_latency"),
        collective_s=_value("scale_out", "collective_latency"),
    )


def compile_s_per_tile_step() -> float:
    """Return the fitted seconds that the compiler takes per vertex and tile.

    Raises
    ------
    DataError
        If the calibration file is missing or damaged.
    """
    return _value("compile", "tile_step")


def power_scales() -> tuple[float, float]:
    """Return the fitted factors on the energies of arithmetic and of memory traffic.

    Raises
    ------
    DataError
        If the calibration file is missing or damaged.
    """
    return _value("power", "amp_scale"), _value("power", "sram_scale")
