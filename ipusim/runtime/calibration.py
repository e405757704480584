"""The few fitted constants: a fixed cost per step and stack, and two factors for power."""

from __future__ import annotations

import tomllib
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


def step_cost_s(stack: str) -> float:
    """Return the fitted fixed cost per step of a stack, in seconds.

    A stack without an entry has nothing to be fitted on: 0.

    Raises
    ------
    DataError
        If the calibration file is missing or damaged.
    """
    known = _tables(paths.data_dir() / FILE).get("step_cost", {})
    return _value("step_cost", stack) if stack in known else 0.0


def power_scales() -> tuple[float, float]:
    """Return the fitted factors on the energies of arithmetic and of memory traffic.

    Raises
    ------
    DataError
        If the calibration file is missing or damaged.
    """
    return _value("power", "amp_scale"), _value("power", "sram_scale")
