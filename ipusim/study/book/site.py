"""Pages as one static site: menu, search, previous and next, glossary; it needs no network."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup

import ipusim
from ipusim.files import read_tables
from ipusim.markup import template
from ipusim.study.book.catalogue import Study

START, ROWS, COVERAGE = "index.html", "rows.html", "coverage.html"
GLOSSARY_FILE = "glossary.toml"
_MENU = (
    {"href": START, "title": "Start page"},
    {"href": ROWS, "title": "Every published row"},
    {"href": COVERAGE, "title": "Coverage"},
)
"""Pages beside those of the notebooks."""
_SCRIPT = re.compile(r"<script\b.*?</script>", re.DOTALL)
"""nbconvert's page loads scripts from the network for formulas and widgets; ours has neither."""
_HEADING = re.compile(r"^(#{1,4}) +(.*)$", re.MULTILINE)
_NOT_PROSE = re.compile(
    r"^(?:#|\||    )[^\n]*|```.*?```|`[^`]*`|\[[^\]]*\]\([^)]*\)|<[^>]*>", re.MULTILINE | re.DOTALL
)
"""Headings, tables, code, links and markup: no term is explained inside them."""


def render(name: str, here: str, studies: Sequence[Study], **values: Any) -> str:
    """Fill in the template of a page."""
    return template(name).render(
        here=here,
        root="../" * here.count("/"),
        menu=[*_MENU, *studies],
        version=ipusim.__version__,
        commit=_commit(),
        **values,
    )


def notebook_page(path: Path, study: Study, studies: Sequence[Study], files: Sequence[str]) -> str:
    """Turn an executed notebook into a page."""
    import nbformat
    from nbconvert import HTMLExporter

    notebook = nbformat.read(path, as_version=4)
    explained: set[str] = set()
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _explain(cell.source, explained)
    exporter = HTMLExporter(template_name="basic", exclude_input_prompt=True)
    body, _ = exporter.from_notebook_node(notebook)
    place = studies.index(study)
    return render(
        "notebook.html.j2",
        study.href,
        studies,
        title=study.title,
        body=Markup(_SCRIPT.sub("", body)),
        downloads=[name for name in files if name.endswith((".csv", ".svg"))],
        before=studies[place - 1] if place else _MENU[0],
        after=studies[place + 1] if place + 1 < len(studies) else None,
    )


def search_script(notebooks: Sequence[tuple[Path, Study]]) -> str:
    """Return the script that holds what the search box looks through."""
    sections = [section for path, study in notebooks for section in _sections(path, study)]
    return f"const SECTIONS = {json.dumps(sections, ensure_ascii=False)};\n"


def _sections(path: Path, study: Study) -> Iterator[dict[str, str]]:
    """Yield what the search finds: the text under each heading, in lower case."""
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    title, href, text = study.title, study.href, ""
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            # of what a cell printed the first lines: tables begin with their caption
            printed = [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
            text += " ".join(plain.partition("\n")[0] for plain in printed)
            continue
        parts = _HEADING.split(cell.source)
        text += parts[0]
        for heading, body in zip(parts[2::3], parts[3::3], strict=True):
            yield {"href": href, "title": title, "text": f"{title} {text}".lower()}
            # nbconvert makes the anchor of a heading from its words.
            anchor = heading.strip().replace(" ", "-")
            title, href, text = f"{study.title}: {heading.strip()}", f"{study.href}#{anchor}", body
    yield {"href": href, "title": title, "text": f"{title} {text}".lower()}


def _explain(source: str, explained: set[str]) -> str:
    """Mark the first use of each term of the glossary in a page's prose."""
    terms = read_tables(GLOSSARY_FILE)["terms"]
    for term in [name for name in terms if name not in explained]:
        prose = _NOT_PROSE.sub(lambda match: "\0" * len(match[0]), source)
        found = re.search(rf"\b{re.escape(term)}s?\b", prose, re.IGNORECASE)
        if found:
            marked = Markup('<dfn title="{}">{}</dfn>').format(terms[term], found[0])
            source = source[: found.start()] + str(marked) + source[found.end() :]
            explained.add(term)
    return source


@cache
def _commit() -> str:
    """Return the short commit of a checkout; nothing in an installed package."""
    root = Path(ipusim.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return ""
    done = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()
