"""Programs kept on disk are those that lowering gives, and only where keeping was asked for."""

import hashlib
import json
import marshal
import zlib
from dataclasses import replace

import pytest

from ipusim import kernel_cache
from ipusim.compiler import lower as lowering, program_cache
from ipusim.compiler.lower import lower
from ipusim.compiler.program_cache import keep_programs, lower_kept
from ipusim.compiler.stacks import load_stack
from ipusim.machine import load_chip
from ipusim.workload import zoo

CHIP = load_chip("GC200")
STACK = replace(load_stack("sdk-2.4"), partials="half", available_memory_proportion=0.3)
OPTIONS = {"host_dtype": "uint8", "convolution_partials": None}


@pytest.fixture
def folder(tmp_path, keep_below):
    keep_below(tmp_path)
    return tmp_path / "programs" / program_cache.source_digest(program_cache.SOURCES)


@pytest.fixture
def lowered(monkeypatch):
    """Count what is really lowered."""
    seen = []

    def counting(*args, **options):
        seen.append(args)
        return lower(*args, **options)

    monkeypatch.setattr(lowering, "lower", counting)
    return seen


def graph(micro_batch=1):
    return zoo.load("braggnn").graph(micro_batch)


def test_a_kept_program_equals_a_fresh_one(folder, lowered):
    fresh = lower(graph(), CHIP, STACK, **OPTIONS)
    with keep_programs():
        made = lower_kept(graph(), CHIP, STACK, **OPTIONS)
        read = lower_kept(graph(), CHIP, STACK, **OPTIONS)
    assert len(lowered) == 1
    assert fresh == made == read
    assert (read.cycles, read.steps) == (fresh.cycles, fresh.steps)


def test_nothing_is_kept_where_keeping_is_off(folder, lowered):
    with keep_programs(False):
        for _ in range(2):
            lower_kept(graph(), CHIP, STACK, **OPTIONS)
    assert len(lowered) == 2
    assert not folder.exists()


def test_every_input_tells_programs_apart(folder, lowered):
    asked = [
        (graph(1), CHIP, STACK, OPTIONS),
        (graph(2), CHIP, STACK, OPTIONS),
        (graph(1).with_precision("32.32"), CHIP, STACK, OPTIONS),
        (graph(1), load_chip("Bow"), STACK, OPTIONS),
        (graph(1), CHIP, load_stack("sdk-3.x"), OPTIONS),
        (graph(1), CHIP, replace(STACK, partials="float"), OPTIONS),
        (graph(1), CHIP, STACK, OPTIONS | {"convolution_partials": "float"}),
        (graph(1), CHIP, STACK, OPTIONS | {"host_dtype": None}),
    ]
    with keep_programs():
        for one, chip, stack, options in asked:
            assert lower_kept(one, chip, stack, **options) == lower(one, chip, stack, **options)
    assert len(lowered) == len(asked)


def with_digest(payload):
    return hashlib.sha256(payload).digest() + payload


def test_a_damaged_or_foreign_file_is_made_anew(folder, lowered):
    with keep_programs():
        first = lower_kept(graph(), CHIP, STACK, **OPTIONS)
        (path,) = folder.iterdir()
        whole = path.read_bytes()
        content = zlib.decompress(whole[32:])
        fewer = zlib.compress(content[:-8], 1)
        foreign = zlib.compress(marshal.dumps(["a program of an older version"]))
        other = zlib.compress(b'{"ops": 1, "steps": 0}')
        shorter = json.loads(content)
        shorter["ops"][-1].pop()
        shorter = zlib.compress(json.dumps(shorter).encode())
        flipped = bytes([*whole[:-1], whole[-1] ^ 1])
        damaged = [b"", whole[:-7], b"nothing", whole[::-1], flipped]
        damaged += [with_digest(payload) for payload in (fewer, foreign, other, shorter, b"")]
        for content in damaged:
            path.write_bytes(content)
            assert lower_kept(graph(), CHIP, STACK, **OPTIONS) == first
            assert path.read_bytes() == whole
    assert len(lowered) == 1 + len(damaged)


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path, keep_below):
    (tmp_path / "file").write_text("")
    keep_below(tmp_path / "file")
    with keep_programs():
        assert lower_kept(graph(), CHIP, STACK, **OPTIONS) == lower(graph(), CHIP, STACK, **OPTIONS)


def test_the_folder_is_named_after_the_sources(folder, tmp_path, monkeypatch):
    with keep_programs():
        lower_kept(graph(), CHIP, STACK, **OPTIONS)
    assert len(list(folder.iterdir())) == 1
    monkeypatch.undo()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "numba"))
    named = kernel_cache.kept_path("programs", folder.name, "")
    assert named.parent == tmp_path / "numba" / "ipusim-programs" / folder.name
