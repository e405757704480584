"""Pages as jinja2 templates; every value is escaped, since models and notes come from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2


def render(name: str, **values: Any) -> str:
    """Fill in one template of this folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template(name).render(**values)
