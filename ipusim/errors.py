"""Exceptions, and the one place where names are matched.

Every message is one sentence: what was given, what would have been valid, what to do.
"""

import re
from collections.abc import Collection, Iterable

_SEPARATORS = re.compile(r"[\s\-_.]+")
_LISTED_NAMES = 24

MISFITS = (
    *(ValueError, IndexError, KeyError, TypeError, AttributeError),
    *(ArithmeticError, AssertionError, MemoryError, RuntimeError),
)
"""What an operator raises whose operands do not fit: ours, numpy's, onnx's."""


class IpuSimError(Exception):
    """Base of every error that ipusim raises on purpose."""


class ConfigError(IpuSimError):
    """A run option has a value outside its range, or contradicts another option."""


class UnknownNameError(IpuSimError):
    """A model, system, chip, stack, study or parameter name that does not exist."""


class WorkloadError(IpuSimError):
    """A model that cannot be read or built."""


class DataError(IpuSimError):
    """A data file that is missing, corrupt or incomplete."""


class StudyError(IpuSimError):
    """A study that cannot be run, or a result that cannot be written."""


def why(error: Exception) -> str:
    """Say why a file cannot be read or written: the system's words, where the error has them."""
    return str(getattr(error, "strerror", None) or error)


def normalise_name(name: object) -> str:
    """Reduce a name to what is compared: lower case, no spaces, hyphens, underscores or dots."""
    return _SEPARATORS.sub("", str(name)).casefold()


def nearest_name(value: object, names: Iterable[str]) -> str:
    """Return the valid name most similar to what was given; the earliest wins a tie."""
    import difflib  # seldom asked

    key = normalise_name(value)[:200]  # what is no name at all may be a text of megabytes
    return max(
        names, key=lambda name: difflib.SequenceMatcher(None, key, normalise_name(name)).ratio()
    )


def unknown_name(kind: str, value: object, names: Iterable[str]) -> UnknownNameError:
    """Build the error for a name that does not exist; it names the nearest valid one."""
    valid = list(names)
    if not valid:
        return UnknownNameError(f"Unknown {kind} {value!r}: no {kind} is available here.")
    message = f"Unknown {kind} {value!r}: did you mean {nearest_name(value, valid)!r}"
    if len(valid) <= _LISTED_NAMES:
        message += f" (valid names: {', '.join(valid)})"
    return UnknownNameError(message + "?")


def check_name(kind: str, value: object, names: Collection[str]) -> None:
    """Raise UnknownNameError for what is none of the names, to the letter."""
    if value not in names:
        raise unknown_name(kind, value, names)


def resolve_name(
    kind: str, value: object, names: Iterable[str], aliases: dict[str, str] | None = None
) -> str:
    """Return the canonical spelling of a name or alias; UnknownNameError if nothing matches."""
    valid = list(names)
    by_key = {normalise_name(alias): name for alias, name in (aliases or {}).items()}
    by_key.update({normalise_name(name): name for name in valid})
    key = normalise_name(value)
    if not isinstance(value, str) or key not in by_key:
        raise unknown_name(kind, value, valid)
    return by_key[key]
