"""The list of mutants fits the sources, and a mutant that is planted is noticed."""

import os
import subprocess
import sys

import mutants
import pytest


def test_each_mutant_changes_one_place_and_names_tests_that_exist():
    listed = mutants.load()
    assert len(listed) >= 200
    assert len(set(listed)) == len(listed)
    moved = [one for one in listed if (mutants.ROOT / one.file).read_text().count(one.old) != 1]
    assert moved == []  # move each to the line that decides the same thing now
    for one in listed:
        assert one.old != one.new
        for tests in one.tests.split():
            assert (mutants.ROOT / tests.split("::")[0]).exists()


@pytest.mark.slow
def test_a_mutant_is_noticed_and_the_right_text_is_not():
    number = next(n for n, one in enumerate(mutants.load()) if "machine/parts" in one.file)
    code = f"""import mutants
one = mutants.load()[{number}]
print(mutants.noticed(one), mutants.noticed(one._replace(new=one.old)))"""
    folders = os.pathsep.join((str(mutants.ROOT), str(mutants.ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=mutants.ROOT,
        env=os.environ | {"PYTHONPATH": folders},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "True False\n", done.stderr
