"""The file of fitted constants: ``data/calibration.toml``, written by `ipusim calibrate`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipusim import paths
from ipusim.errors import DataError

CALIBRATION_FILE = "calibration.toml"
_HEADER = """\
# Written by `ipusim calibrate`; do not edit by hand.
#
# step_cost: one constant per software stack, a fixed cost per step in seconds on top of what the
# specification tier predicts. It minimises the mean absolute relative error of time per step over
# the rows it names; a stack without rows has no fitted cost. Comparisons never use these values:
# they refit without the row's own family.
#
# power: two factors, on the energies of arithmetic and of memory traffic in
# data/hardware/power.toml, by least squares on the power that the rows imply; 1 means none.
schema = 1
"""
_STEP_SOURCE = "least mean absolute relative error of time per step over rows"
_POWER_SOURCE = "non-negative least squares of dynamic power over rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """A fitted cost per step.

    Attributes
    ----------
    stack : str
        The stack it is for.
    value_s : float
        Seconds per step; 0 when there is no row to fit on.
    rows : tuple of str
        The rows it was fitted on.
    """

    stack: str
    value_s: float
    rows: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerScales:
    """The factors on dynamic energy.

    Attributes
    ----------
    amp, sram : float
        On arithmetic and on memory traffic; 1 leaves the sourced constants as they are.
    rows : tuple of str
        The rows it was fitted on; none when it was not fitted.
    """

    amp: float = 1.0
    sram: float = 1.0
    rows: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything that is fitted.

    Attributes
    ----------
    step_costs : dict of str to StepCost
        By stack; any other stack costs 0.
    power : PowerScales
        The factors on dynamic energy.
    """

    step_costs: dict[str, StepCost]
    power: PowerScales


def _block(title: str, values: dict[str, str], rows: Iterable[str]) -> str:
    """Write one table of the file."""
    lines = [f"[{title}]", *(f"{key} = {text}" for key, text in values.items())]
    return "\n".join([*lines, "rows = [", *(f"    {json.dumps(row)}," for row in rows), "]", ""])


def calibration_text(costs: Iterable[StepCost], power: PowerScales) -> str:
    """Write fitted constants as TOML.

    Parameters
    ----------
    costs : iterable of StepCost
        One per stack.
    power : PowerScales
        The factors on dynamic energy.

    Returns
    -------
    str
        The text of ``data/calibration.toml``.
    """
    blocks = [_HEADER]
    for cost in sorted(costs, key=lambda item: item.stack):
        values = {
            "value": f"{cost.value_s:.6e}",
            "unit": '"s"',
            "label": '"fitted"',
            "source": json.dumps(_STEP_SOURCE),
        }
        blocks.append(_block(f"step_cost.{json.dumps(cost.stack)}", values, cost.rows))
    for name, scale in (("amp_scale", power.amp), ("sram_scale", power.sram)):
        values = {
            "value": f"{scale:.4f}",
            "unit": '"-"',
            "label": '"fitted"' if power.rows else '"verified"',
            "source": json.dumps(_POWER_SOURCE if power.rows else "not fitted"),
        }
        blocks.append(_block(f"power.{name}", values, power.rows))
    return "\n".join(blocks)


def _step_cost(stack: str, block: dict[str, Any]) -> StepCost:
    return StepCost(
        stack=stack,
        value_s=float(block["value"]),
        rows=tuple(block["rows"]),
    )


def load_calibration(path: Path | None = None) -> Calibration:
    """Read fitted constants back.

    Parameters
    ----------
    path : pathlib.Path, optional
        By default ``data/calibration.toml``.

    Returns
    -------
    Calibration
        All of them.

    Raises
    ------
    DataError
        If the file is missing or damaged.
    """
    source = path or paths.data_dir() / CALIBRATION_FILE
    try:
        tables = tomllib.loads(source.read_text(encoding="utf-8"))
        amp, sram = tables["power"]["amp_scale"], tables["power"]["sram_scale"]
        return Calibration(
            step_costs={
                stack: _step_cost(stack, block) for stack, block in tables["step_cost"].items()
            },
            power=PowerScales(
                amp=float(amp["value"]), sram=float(sram["value"]), rows=tuple(amp["rows"])
            ),
        )
    except OSError as error:
        raise DataError(
            f"{source.name} cannot be read ({error.strerror}): run 'ipusim calibrate'."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{source.name} is damaged ({error}): run 'ipusim calibrate'.") from error
