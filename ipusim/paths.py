"""Where the data and the notebooks are: inside the installed package, or in the checkout."""

from __future__ import annotations

import os
from pathlib import Path

from ipusim.errors import DataError

DATA_DIR_VARIABLE = "IPUSIM_DATA_DIR"
"""Environment variable that points at another data folder, for example an edited copy."""

_PACKAGE = Path(__file__).resolve().parent


def _locate(name: str) -> Path:
    """Return the folder `name` of the wheel, or else of the checkout around the package."""
    inside_wheel = _PACKAGE / name
    in_checkout = _PACKAGE.parent / name
    if inside_wheel.is_dir():
        return inside_wheel
    if in_checkout.is_dir() and (_PACKAGE.parent / "pyproject.toml").is_file():
        return in_checkout
    raise DataError(
        f"The folder {name!r} is neither inside the installed package nor beside it: "
        "reinstall ipusim or run it from a complete checkout."
    )


def data_dir() -> Path:
    """Return the folder that holds ``hardware/``, ``runs/`` and the other data files.

    Returns
    -------
    pathlib.Path
        An existing folder: the one that the environment variable IPUSIM_DATA_DIR names, or the
        copy inside an installed wheel, or ``data/`` of the checkout.

    Raises
    ------
    DataError
        If there is no such folder.
    """
    override = os.environ.get(DATA_DIR_VARIABLE)
    if not override:
        return _locate("data")
    folder = Path(override)
    if not folder.is_dir():
        raise DataError(
            f"{DATA_DIR_VARIABLE} names {override!r}, which is not a folder: "
            "set it to a copy of the data folder or unset it."
        )
    return folder


def notebooks_dir() -> Path:
    """Return the folder that holds the study notebooks.

    Returns
    -------
    pathlib.Path
        An existing folder, found like `data_dir`.

    Raises
    ------
    DataError
        If there is no such folder.
    """
    return _locate("notebooks")
