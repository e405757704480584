"""The static site: search, glossary, menu, and nothing from the network."""

import json
import re

import nbformat
import pytest

from ipusim.files import read_tables
from ipusim.study.book.catalogue import Study
from ipusim.study.book.site import GLOSSARY_FILE, notebook_page, search_script

TEXT = """# A <study>

Each superstep waits for every tile; a tile waits. `tile`

## The tile

End."""


@pytest.fixture
def study(tmp_path):
    cells = [
        nbformat.v4.new_markdown_cell(TEXT),
        nbformat.v4.new_code_cell(
            "print(1)",
            outputs=[nbformat.v4.new_output("execute_result", {"text/plain": "Table of clocks"})],
        ),
    ]
    path = tmp_path / "01_toy.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return Study(name="01_toy", path=path, title="A <study>", summary="", rows="")


def page(study, files=()):
    return notebook_page(study.path, study, [study], files)


def test_terms_are_explained_once_and_not_in_headings_or_code(study):
    found = re.findall(r'<dfn title="([^"]+)">([^<]+)</dfn>', page(study))
    assert [word for _, word in found] == ["superstep", "tile"]
    assert found[1][0] == read_tables(GLOSSARY_FILE)["terms"]["tile"]
    assert "<code>tile</code>" in page(study)


def test_search_finds_headings_text_and_captions_of_tables(study):
    script = search_script([(study.path, study)])
    assert script.startswith("const SECTIONS = ")
    sections = json.loads(script.removeprefix("const SECTIONS = ").rstrip(";\n"))
    last = sections[-1]
    assert last["href"] == "notebooks/01_toy.html#The-tile"
    assert last["title"] == "A <study>: The tile"
    assert "end." in last["text"]
    assert "table of clocks" in last["text"]
    assert 'id="The-tile"' in page(study)


def test_pages_escape_titles_and_load_nothing_from_elsewhere(study):
    text = page(study, ("tables/x.csv", "figures/x.png"))
    assert "<title>A &lt;study&gt;" in text
    assert '<a href="../tables/x.csv" download>' in text
    assert "x.png" not in text
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', text)


def test_pages_lead_on_and_back(study, tmp_path):
    other = Study(name="02_next", path=study.path, title="Next", summary="", rows="")
    text = notebook_page(study.path, study, [study, other], ())
    assert '<a rel="prev" href="../index.html">' in text
    assert '<a rel="next" href="../notebooks/02_next.html">' in text
    assert 'href="../notebooks/01_toy.html" aria-current="page"' in text
