"""Whatever goes wrong around a command ends in one sentence and the promised exit code."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

SECONDS = 120

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def ipusim(*arguments, out=subprocess.PIPE):
    """Run a command; return its exit code and what it said on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "ipusim", *map(str, arguments)],
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
    )
    return done.returncode, done.stderr


def assert_refused(code, said):
    assert code == 2
    assert said.startswith("ipusim: ") and len(said.splitlines()) == 1


@needs_full
def test_a_full_disk_behind_stdout():
    with Path("/dev/full").open("w") as full:
        code, said = ipusim("list", out=full)
    assert_refused(code, said)
    assert "No space left" in said


def test_an_output_folder_that_is_a_loop_of_links(tmp_path):
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    assert_refused(*ipusim("reproduce", "00", "--out", tmp_path / "one"))
    assert_refused(*ipusim("simulate", tmp_path / "one" / "x.onnx"))
    assert_refused(*ipusim("clean-notebooks", tmp_path / "one"))


def test_a_parameter_nested_too_deeply(tmp_path):
    for nested in ("(" * 90_000, "[" * 5_000 + "]" * 5_000, "-" * 60_000 + "1"):
        assert_refused(*ipusim("reproduce", "01", "-p", f"batch_sizes={nested}", "--out", tmp_path))


@pytest.mark.parametrize("key", ["clock_hz", "tiles", "exchange_bytes_per_cycle", "workers"])
def test_a_zero_where_hardware_has_none(own_data, key):
    chips = own_data / "hardware" / "chips.toml"
    lines = chips.read_text().splitlines()
    zero = [
        f"{key} = {{ value = 0, {line.partition(', ')[2]}" if line.startswith(f"{key} =") else line
        for line in lines
    ]
    assert zero != lines
    chips.write_text("\n".join(zero))
    code, said = ipusim("simulate", "uno")
    assert_refused(code, said)
    assert key in said and "above 0" in said


INTERRUPTED = """
import sys
from pathlib import Path
from ipusim import cli, files
files.notebooks_dir = lambda: Path(sys.argv[1])
sys.exit(cli.main(["reproduce", "--out", sys.argv[2]]))
"""


INTERRUPTED_IMPORT = """
import os, runpy, signal, sys
class Interrupts:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
runpy.run_module("ipusim", run_name="__main__", alter_sys=True)
"""


def test_an_interrupt_of_imports_is_one_line():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.strip()) == (130, "ipusim: interrupted.")


def test_an_interrupt_ends_the_compiler(tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-m", "ipusim", "simulate", "resnet50"],
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stderr.readline().startswith("ipusim: compiling kernels")
    time.sleep(1)
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=15)[1]  # it answers after a minute by itself
    assert (run.returncode, said.strip()) == (130, "ipusim: interrupted.")


FAILS_TO_END = """
import sys, threading
flush = sys.stdout.flush
main = threading.main_thread()
sys.stdout.flush = lambda: flush() if threading.current_thread() is main else 1 / 0
"""
"""What a kernel's thread for control messages now and then meets by itself."""


def test_an_interrupt_is_one_line_and_leaves_the_partial_notebook(tmp_path):
    started = tmp_path / "started"
    waits = f"import pathlib, time\npathlib.Path({str(started)!r}).touch()\ntime.sleep({SECONDS})"
    cells = [new_markdown_cell("# A study\n\nIt waits.")]
    cells.append(new_code_cell("repeats: int = 1  # some", metadata={"tags": ["parameters"]}))
    sources = f"print('before'){FAILS_TO_END}", waits, "print('after')"
    cells += [new_code_cell(source) for source in sources]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, tmp_path / "01_qwant_toy.ipynb")
    run = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path), str(tmp_path / "out")],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not started.exists() and run.poll() is None:
        time.sleep(0.1)
    os.killpg(run.pid, signal.SIGINT)
    said = run.communicate(timeout=SECONDS)[1]
    assert (run.returncode, said.strip()) == (130, "ipusim: interrupted.")
    partial = json.loads(
        (tmp_path / "out" / "notebooks" / "01_qwant_toy.partial.ipynb").read_text()
    )
    assert "before" in json.dumps(partial)
    assert not list((tmp_path / "out" / ".ipusim").glob("stage-*"))
