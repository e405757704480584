"""Writing the fitted constants to ``data/calibration.toml``, each with the rows behind it."""

import json
from pathlib import Path

from ipusim import files
from ipusim.files import write_text
from ipusim.markup import template
from ipusim.runtime.calibration import FILE, Calibration


def calibration_text(calibration: Calibration) -> str:
    """Write fitted constants as the text of ``data/calibration.toml``."""
    return template("calibration.toml.j2").render(of=calibration, quoted=json.dumps)


def save_calibration(calibration: Calibration, path: Path | None = None) -> None:
    """Write fitted constants, by default to ``data/calibration.toml``."""
    write_text(path or files.data_dir() / FILE, calibration_text(calibration))
