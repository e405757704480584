"""What data/studies says of each study: notebook, rows, tables, figures, verdict, parameters."""

from typing import Any

from ipusim.errors import resolve_name
from ipusim.files import data_dir, read_tables

FOLDER = "studies"


def load_specs() -> dict[str, dict[str, Any]]:
    """Return what is said of each study, by its name."""
    paths = sorted((data_dir() / FOLDER).glob("*.toml"))
    return {path.stem: read_tables(f"{FOLDER}/{path.name}") for path in paths}


def load_spec(name: str) -> dict[str, Any]:
    """Return what is said of one study; an UnknownNameError if there is none of that name."""
    specs = load_specs()
    return specs[resolve_name("study", name, specs)]
