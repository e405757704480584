"""Parameters of notebooks: read where papermill hands them over as text, checked by data/studies.

A rule says what a value is: ``count`` (a whole number), ``text``, ``system``, ``model`` or
``family`` (a name), ``one_of`` (a list of choices); ``list = true`` asks for a list of different
ones. Bounds are ``least`` and ``most``; ``even`` and ``holds`` say more.
"""

import math
from collections.abc import Mapping
from typing import Any

import yaml

from ipusim.errors import ConfigError, check_name
from ipusim.machine.system import load_system
from ipusim.runtime.options.spec import Kind, counts
from ipusim.study.data.published import load_rows
from ipusim.workload import zoo

Rule = Mapping[str, Any]


def _family(name: str) -> str:
    """Return the name of a model family of the results page, or refuse another."""
    check_name("family", name, dict.fromkeys(row.family for row in load_rows(study="results")))
    return name


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


_KINDS = {
    "text": Kind(_text, "a text, empty for none", "str"),
    "system": Kind(lambda name: load_system(str(name)) and name, "the name of a system", "str"),
    "model": Kind(lambda name: zoo.load(str(name)) and name, "the name of a model", "str"),
    "family": Kind(_family, "the name of a family", "str"),
}


def _kind(rule: Rule) -> Kind:
    """Return the kind of value that a rule allows, of a list for each of its items."""
    if "one_of" in rule:
        allowed = {repr(one): one for one in rule["one_of"]}  # 1 is not true
        words = ", ".join(map(str, rule["one_of"]))
        return Kind(lambda value: allowed[repr(value)], f"one of {words}", "str")
    if rule["kind"] == "count":
        return counts(rule.get("least", 1), rule.get("most", math.inf))
    return _KINDS[rule["kind"]]


def checked(rules: Mapping[str, Rule], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as what they are, or refuse the first that the rules of a study forbid.

    A list or a number may come as text (``papermill -p batch_sizes '[2, 4]'``); what has no rule
    may be anything.
    """
    return {
        name: _checked(name, value, rules[name]) if name in rules else value
        for name, value in values.items()
    }


def _checked(name: str, value: Any, rule: Rule) -> Any:
    kind = _kind(rule)
    if not rule.get("list"):
        return kind.check(name, value)
    items = read_text(value) if isinstance(value, str) else value
    listed = isinstance(items, list) and (items or rule.get("empty"))
    if not listed or len(set(map(str, items))) < len(items):
        least = "" if rule.get("empty") else "at least one value, "
        raise ConfigError(
            f"The option {name} is {value!r}: give a list of {least}none twice, each {kind.asks}."
        )
    items = [kind.check(name, item) for item in items]
    for item in items:
        if "even" in rule and item > 1 and item % 2:
            raise ConfigError(f"{name} holds {item}, but {rule['even']}.")
    if "holds" in rule and rule["holds"] not in items:
        raise ConfigError(f"{name} is {value!r}: add {rule['holds']}, {rule['because']}.")
    return items


def read_text(text: str) -> Any:
    """Return what a text says as YAML, or itself."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
