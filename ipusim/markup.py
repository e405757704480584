"""HTML from the templates of ``templates/``: tables, boxes and pages."""

import html
from functools import cache

import jinja2
from markupsafe import Markup

from ipusim.files import TEMPLATES


@cache
def template(name: str) -> jinja2.Template:
    """Return a template; it escapes all values but `Markup`, the filter ``text`` as Python does."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["text"] = lambda text: Markup(html.escape(text))
    return environment.get_template(name)
