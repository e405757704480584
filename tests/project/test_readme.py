"""README.md and docs/ show what the simulator says today."""

import contextlib
import importlib.util
import io
import re
from pathlib import Path
from types import ModuleType

import pytest

from ipusim.compiler.program_cache import keep_programs
from ipusim.study.verdicts.compare import verdicts

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
USING = (ROOT / "docs" / "using.md").read_text(encoding="utf-8")
EVIDENCE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
LARGEST_PICTURE_BYTES = 300_000


@pytest.fixture(scope="module")
def refresh() -> ModuleType:
    spec = importlib.util.spec_from_file_location("refresh", ROOT / "docs" / "refresh.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_prints_what_it_shows(refresh):
    assert refresh.shown(USING, "example") == refresh.example_block()


def test_editors_know_the_options_that_there_are(refresh):
    assert refresh.STUB.read_text(encoding="utf-8") == refresh.option_stub()


def test_the_table_of_lower_layers_is_current(refresh):
    assert refresh.shown(EVIDENCE, "evidence") == refresh.evidence_block()


@pytest.mark.slow
def test_the_accuracy_tables_are_current(refresh):
    frame = verdicts(sourced=True)
    assert refresh.shown(TEXT, "headline") == refresh.accuracy_block(frame, headline=True)
    assert refresh.shown(EVIDENCE, "accuracy") == refresh.accuracy_block(frame)


@pytest.mark.parametrize("name", ["tamu_scaling"])
def test_a_picture_shows_todays_numbers(refresh, name):
    path = refresh.picture_path(name)
    content = path.read_bytes()
    assert len(content) < LARGEST_PICTURE_BYTES
    assert path.relative_to(ROOT).as_posix() in TEXT
    with keep_programs():  # of these very sources; notebook 02 draws the same
        frames = refresh.PICTURES[name].frames()
    assert refresh.picture_description(content) == refresh.picture_data(frames)


def test_a_picture_without_numbers_is_noticed(refresh):
    with pytest.raises(ValueError, match="carries no numbers"):
        refresh.picture_description(b"\x89PNG\r\n\x1a\n" + bytes(12))


def test_only_the_blocks_are_replaced(refresh):
    text = "a\n<!-- begin one -->\nold\n<!-- end one -->\nb"
    assert refresh.refreshed(text, {"one": "new"}) == text.replace("old", "new")
    assert refresh.shown(text, "one") == "old"
    with pytest.raises(KeyError):
        refresh.refreshed(text, {"two": "new"})


def test_the_python_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one writes a page
    examples = re.findall(r"^```python\n(.*?)^```", TEXT + USING, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        for example in examples:
            assert len(example.splitlines()) <= 18
            space = {}
            exec(compile(example, "README.md", "exec"), space)
            assert space["report"].fits
    assert "resnext101_32x4d" in output.getvalue()
    assert "gradient all-reduce" in output.getvalue()


def test_links_and_files_exist():
    for text, folder in ((TEXT, ROOT), (USING, ROOT / "docs"), (EVIDENCE, ROOT / "docs")):
        linked = re.findall(r"\]\(([^)#:]+)\)", text)
        named = re.findall(r"`(data/[\w./]+|environment\.yml|postBuild|constraints\.txt)`", text)
        assert linked
        assert not [name for name in linked if not (folder / name).exists()]
        assert not [name for name in named if not (ROOT / name).exists()]


def test_the_readme_is_one_screen():
    assert len(TEXT.splitlines()) <= 85
