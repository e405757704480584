"""The list of mutants fits the sources, and a mutant that is planted is noticed."""

from __future__ import annotations

import subprocess
import sys

import mutants
import pytest


def test_each_mutant_changes_one_place_and_names_tests_that_exist():
    listed = mutants.load()
    assert len(listed) >= 200
    assert len(set(listed)) == len(listed)
    moved = [one for one in listed if (mutants.ROOT / one.file).read_text().count(one.old) != 1]
    assert 20 * len(moved) <= len(listed), moved  # renew the list before it wears away
    for one in listed:
        assert one.old != one.new
        assert all((mutants.ROOT / tests).exists() for tests in one.tests.split())


@pytest.mark.slow
def test_a_mutant_is_noticed_and_the_right_text_is_not():
    listed = mutants.load()
    number = next(n for n, one in enumerate(listed) if one.file.endswith("machine/power.py"))
    assert mutants.noticed(listed[number], number)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *listed[number].tests.split()], cwd=mutants.ROOT
    )
    assert done.returncode == 0
