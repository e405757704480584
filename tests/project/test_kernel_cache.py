"""Compiled kernels are kept apart for every state of the sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import ipusim
from ipusim import kernel_cache


def test_the_digest_follows_the_sources(tmp_path, monkeypatch):
    copy = tmp_path / "ipusim"
    shutil.copytree(Path(ipusim.__file__).parent / "compiler", copy / "compiler")
    monkeypatch.setattr(kernel_cache, "__file__", str(copy / "kernel_cache.py"))
    before = kernel_cache.source_digest()
    assert kernel_cache.source_digest() == before
    changed = copy / "compiler" / "convolution" / "search.py"
    changed.write_text(changed.read_text() + "# changed\n")
    assert kernel_cache.source_digest() != before


def test_kernels_go_to_a_directory_of_their_own(tmp_path):
    code = "import ipusim.compiler.convolution.tile_cycles, numba; print(numba.config.CACHE_DIR)"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    directory = Path(done.stdout.strip())
    assert directory.parent == tmp_path
    assert directory.name == kernel_cache.source_digest()


def test_nothing_is_changed_where_nothing_can_be_written(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocked))
    monkeypatch.setattr(kernel_cache.numba.config, "CACHE_DIR", "as before")
    kernel_cache.use_keyed_cache()
    assert kernel_cache.numba.config.CACHE_DIR == "as before"
