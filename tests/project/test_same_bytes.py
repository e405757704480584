"""The same question has the same answer, byte for byte, whatever surrounds the process."""

import os
import subprocess
import sys

import pytest

SURROUNDINGS = {
    "hash seed": {"PYTHONHASHSEED": "1"},
    "other hash seed": {"PYTHONHASHSEED": "4242"},
    "plain locale": {"LC_ALL": "C"},
    "comma and dotless i": {"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
    "time zone": {"TZ": "Pacific/Chatham"},
    "one thread": {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    "three threads": {"OMP_NUM_THREADS": "3"},
}
CODE = """
import sys, locale
from pathlib import Path
locale.setlocale(locale.LC_ALL, "C")
try:
    locale.setlocale(locale.LC_ALL, "")
except locale.Error:
    pass  # a locale that is not installed here
from ipusim import api
from ipusim.compiler.program_cache import keep_programs
from ipusim.study.book.outputs import frame_csv, save_figure, save_table
with keep_programs(False):
    report = api.simulate("braggnn", micro_batch=16)
    training = api.simulate("uno", system="Bow-2000", mode="training", micro_batch=2)
print(report, training, frame_csv(report.layers), sep="\\n")
report.to_perfetto(Path(sys.argv[1]) / "trace.json")
from matplotlib.figure import Figure
figure = Figure()
figure.subplots().plot([1.5, 2.5], label="µs — ıİ")
save_figure(figure, "f", sys.argv[1])
save_table(report.layers, "t", sys.argv[1])
"""


def made_in(folder, environment):
    """Return everything that a small study prints and writes."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(folder)],
        env=os.environ | environment,
        capture_output=True,
        check=True,
    )
    files = {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {"stdout": done.stdout} | files


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return made_in(tmp_path_factory.mktemp("plain") / "out", {"PYTHONHASHSEED": "0"})


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_outputs_do_not_depend_on_surroundings(name, plain, tmp_path):
    made = made_in(tmp_path / "out", SURROUNDINGS[name])
    assert made.keys() == plain.keys() == {"stdout", "trace.json", "f.png", "f.svg", "t.csv"}
    assert [name for name in made if made[name] != plain[name]] == []
