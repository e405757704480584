"""The examples of docstrings do what they say, and whatever a user calls has one."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import ipusim

ROOT = Path(ipusim.__file__).parents[1]
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(ROOT.glob("ipusim/**/*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name, capsys):
    module = import_module(name)
    result = doctest.testmod(module, extraglobs={"ipusim": ipusim})
    assert result.attempted
    assert not result.failed, capsys.readouterr().out


@pytest.mark.parametrize("name", sorted({*ipusim.__all__} - {"IpuSimError"}))
def test_what_a_user_calls_has_an_example(name):
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(ipusim, name), name)
    assert [one for one in found.examples if one.want and doctest.SKIP not in one.options]
