"""The site in a headless Chromium: nothing cut off, no dead link, no fault of accessibility."""

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest
from browser import CHROMIUM, browser
from bs4 import BeautifulSoup
from study_small import small_verdicts

from ipusim.files import write_text
from ipusim.study.book.catalogue import list_studies
from ipusim.study.book.index import Card, State, index_html
from ipusim.study.book.rows import coverage_html, rows_html
from ipusim.study.book.site import COVERAGE, ROWS, START, notebook_page, search_script
from ipusim.study.coverage import COLUMNS
from ipusim.study.verdicts.summary import verdict_on

__all__ = ["browser"]  # a fixture
STUDIES = list_studies()
NOTEBOOKS = [f"notebooks/{study.name}.html" for study in STUDIES]
PAGES = [START, ROWS, COVERAGE, *NOTEBOOKS]
WIDTHS = (360, 1100, 1440)
TALLEST_RESULTS = 12_000
"""Height in pixels at 1,100 of the page that was 58,500 once."""
in_browser = [
    pytest.mark.lab,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
CUT = """() => [...document.querySelectorAll("main .output_subarea, main details, main section")]
  .filter((box) => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1)
  .map((box) => box.querySelector("caption, summary")?.textContent ?? box.className)"""
FAULTS = """async (rules) => (await axe.run({resultTypes: ["violations"], ...rules})).violations
  .filter((fault) => ["serious", "critical"].includes(fault.impact))
  .map((fault) => `${fault.id}: ${fault.nodes[0].html.slice(0, 200)}`)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site of the committed notebooks, with predictions that cost nothing."""
    out = tmp_path_factory.mktemp("site")
    frame = small_verdicts().assign(parts="chip: compute 3; host work 1")
    line = dict.fromkeys(COLUMNS, "qwant") | {"verdict": "hit", "note": "a reason"}
    cards = []
    for study in STUDIES:
        names = [f"notebooks/{study.name}.{ending}" for ending in ("html", "ipynb")]
        write_text(out / names[0], notebook_page(study.path, study, STUDIES, ()))
        write_text(out / names[1], study.path.read_text(encoding="utf-8"))
        verdict = verdict_on([frame[frame["study"] == study.rows]])
        state = State(name=study.name, status="done", files=dict.fromkeys(names, ""))
        cards.append(Card(study, state, verdict))
    write_text(out / START, index_html(cards, frame))
    write_text(out / ROWS, rows_html(frame, STUDIES))
    write_text(out / COVERAGE, coverage_html(pd.DataFrame([line]), STUDIES))
    write_text(out / "search.js", search_script([(study.path, study) for study in STUDIES]))
    for name in ("verdicts.csv", "coverage.csv"):
        write_text(out / name, "")
    return out


@cache
def parsed(path: Path) -> BeautifulSoup:
    """Return a page without its pictures, which are most of its bytes."""
    text = re.sub(r"data:image/[^\"']*", "data:", path.read_text(encoding="utf-8"))
    return BeautifulSoup(text, "html.parser")


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere_and_pages_can_be_read_aloud(site, name):
    page = parsed(site / name)
    assert page.html["lang"] == "en"
    assert len(page("h1")) == 1
    assert page("main")
    levels = [int(head.name[1]) for head in page(re.compile("^h[1-6]$"))]
    assert all(below - level <= 1 for level, below in pairwise(levels)), levels
    assert not [picture for picture in page("img") if not picture.get("alt")]
    assert all(table("th") for table in page("table") if len(table.tr("td")) != 2)
    for control in page(["input", "select"]):
        assert control.find_parent("label") or page.find("label", attrs={"for": control.get("id")})
    for link in page("a", href=True):
        file, _, anchor = link["href"].partition("#")
        assert not file.startswith("http") or link.find_parent("main")
        if file.startswith(("http", "data:")):
            continue
        target = (site / name).parent / unquote(file) if file else site / name
        assert target.is_file(), link["href"]
        if anchor and "=" not in anchor and target.suffix == ".html":  # else filters of a list
            assert parsed(target).find(id=unquote(anchor)), link["href"]


class TestInBrowser:
    """What only a browser tells."""

    pytestmark = in_browser

    @pytest.fixture
    def page(self, browser):
        context = browser.new_context()
        yield context.new_page()
        context.close()

    @pytest.mark.parametrize("name", PAGES)
    def test_nothing_is_cut_off_or_goes_wrong(self, site, page, name):
        said = []
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda line: said.append(line.text) if line.type == "error" else None)
        page.on("requestfailed", lambda call: said.append(call.url))
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.goto((site / name).as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            if width == 1100:
                assert page.evaluate(CUT) == []
            if width == 1100 and "results" in name:
                height = page.evaluate("document.documentElement.scrollHeight")
                assert height < TALLEST_RESULTS
                page.check("#folds")
                assert page.evaluate(CUT) == []
        assert said == []

    def test_three_clicks_tell_how_wrong_bert_on_a_pod_is_and_why(self, site, page):
        page.goto((site / START).as_uri())
        page.get_by_role("link", name="bert", exact=True).click()
        page.select_option("select[name=system]", "Bow Pod16")
        shown = page.locator("tbody tr").all_inner_texts()
        assert shown
        assert all("BERT" in line and "Bow Pod16" in line for line in shown)
        page.locator("tbody button").first.click()
        assert "time of a step" in page.locator("tr.details").inner_text()

    @pytest.mark.parametrize(
        ("name", "colours"),
        [(name, colours) for name in PAGES[:3] for colours in ("light", "dark")]
        + [pytest.param(name, "light", marks=pytest.mark.slow) for name in NOTEBOOKS],
    )
    def test_axe_finds_no_serious_fault(self, site, page, name, colours):
        axe = pytest.importorskip("axe_playwright_python.base", reason="axe is not installed")
        page.emulate_media(color_scheme=colours)
        page.goto((site / name).as_uri() + "#family=vit" * (name == ROWS))
        if name in (ROWS, COVERAGE):
            page.click("tbody button")
        page.add_script_tag(content=axe.AXE_FILE_PATH.read_text(encoding="utf-8"))
        dark_only = {"runOnly": ["color-contrast"]} if colours == "dark" else {}
        assert page.evaluate(FAULTS, dark_only) == []

    def test_rows_are_filtered_and_opened_by_keyboard(self, site, page):
        page.goto((site / ROWS).as_uri())
        page.focus("select[name=family]")
        page.keyboard.type("vit")
        names = page.locator("tbody tr").count()
        assert 0 < names < 50
        assert "family=vit" in page.url
        page.focus("tbody button")
        page.keyboard.press("Enter")
        assert "time of a step" in page.locator("tr.details").inner_text()
        assert "3, 75 %" in page.locator("tr.details").inner_text()
        page.focus("th button[data-key=published]")
        page.keyboard.press("Enter")
        assert page.locator("th[aria-sort=ascending]").inner_text() == "published"
