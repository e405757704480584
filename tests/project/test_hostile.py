"""Hostile inputs: a result or one sentence, within ten seconds and two gigabytes each."""

import os
import subprocess
import sys
from pathlib import Path

import hostile
import pytest

ALL = {"onnx": 6000, "toml": 1500, "csv": 1000, "parameters": 1500}
"""10,000 in the slow lane, in children of 500 each."""
CHILD = 500


def tried(kind, count, seed):
    here = Path(hostile.__file__).parent
    folders = (str(here), str(here.parent))
    done = subprocess.run(
        [sys.executable, hostile.__file__, kind, str(count), str(seed)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.returncode, done.stdout, done.stderr[-2000:] if done.returncode else "")


@pytest.mark.parametrize(
    ("kind", "count"), [("onnx", 100), ("toml", 40), ("csv", 20), ("parameters", 100)]
)
def test_some_mutated_inputs(kind, count):
    assert tried(kind, count, 0) == (0, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, seed) for kind in ALL for seed in range(1, 1 + ALL[kind] // CHILD)]
)
def test_ten_thousand_mutated_inputs(kind, seed):
    assert tried(kind, CHILD, seed) == (0, "", "")


def test_what_goes_wrong_is_told(capsys, monkeypatch):
    def bad(folder):
        def one(rng):
            raise ValueError("as it is")

        return one

    monkeypatch.setitem(hostile.KINDS, "onnx", bad)
    monkeypatch.setattr(hostile.resource, "setrlimit", lambda *given: None)
    monkeypatch.setattr(hostile.signal, "signal", lambda *given: None)
    assert hostile.main("onnx", 1, 0) == 1
    assert "ValueError as it is" in capsys.readouterr().out
