"""Checks of what notebooks are given: one sentence for a value that is no count."""

from __future__ import annotations

import math

from ipusim.errors import ConfigError


def is_count(value: object, most: float = math.inf) -> bool:
    """Return whether a value is a whole number from 1 to `most`; a truth value is none."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def check_count(name: str, value: object, most: float = math.inf) -> None:
    """Refuse a parameter that is not a whole number from 1 to `most`.

    Raises
    ------
    ConfigError
        Naming the parameter.
    """
    if not is_count(value, most):
        allowed = "1 or more" if math.isinf(most) else f"from 1 to {most}"
        raise ConfigError(f"{name} is {value!r}: give a whole number, {allowed}.")


def check_counts(name: str, values: object, most: int) -> None:
    """Refuse a parameter that is not a list of different whole numbers from 1 to `most`.

    Raises
    ------
    ConfigError
        Naming the parameter.
    """
    good = isinstance(values, list) and values and len(set(map(str, values))) == len(values)
    if not good or not all(is_count(value, most) for value in values):
        raise ConfigError(
            f"{name} is {values!r}: give a list of different whole numbers from 1 to {most}."
        )
