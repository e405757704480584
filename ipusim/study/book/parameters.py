"""Parameters of notebooks: read where papermill hands them over as text, checked by data/studies.

A rule says what a value is: ``count`` (a whole number), ``text``, ``system``, ``model`` or
``family`` (a name), ``one_of`` (a list of choices); ``list = true`` asks for a list of different
ones. Bounds are ``least`` and ``most``; ``even`` and ``holds`` say more.
"""

from collections.abc import Callable, Mapping
from typing import Any

import yaml

from ipusim.errors import ConfigError, check_name
from ipusim.machine.system import load_system
from ipusim.study.data.published import load_rows
from ipusim.workload import zoo

Rule = Mapping[str, Any]


def check_family(name: str) -> None:
    """Refuse a name that is no model family of the results page."""
    families = tuple(dict.fromkeys(row.family for row in load_rows(study="results")))
    check_name("family", name, families)


_NAMES: dict[str, Callable[[str], object]] = {
    "system": load_system,
    "model": zoo.load,
    "family": check_family,
}


def is_count(value: object, most: int | None = None, least: int = 1) -> bool:
    """Return whether a value is a whole number within the bounds; a truth value is none."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and least <= value and (most is None or value <= most)


def checked(rules: Mapping[str, Rule], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as what they are, or refuse the first that the rules of a study forbid.

    A list or a number may come as text (``papermill -p batch_sizes '[2, 4]'``); what has no rule
    may be anything.
    """
    return {name: _checked(name, value, rules.get(name, {})) for name, value in values.items()}


def _checked(name: str, value: Any, rule: Rule) -> Any:
    if isinstance(value, str) and (rule.get("list") or rule.get("kind") == "count"):
        value = read_text(value)
    items = value if rule.get("list") else [value]
    listed = isinstance(items, list) and (items or rule.get("empty"))
    allowed = listed and all(_may_be(item, rule) for item in items)
    if not allowed or len(set(map(str, items))) < len(items):
        raise _refused(name, value, rule)
    for item in items:
        if rule.get("kind") in _NAMES:
            _NAMES[rule["kind"]](str(item))
        if "even" in rule and item > 1 and item % 2:
            raise ConfigError(f"{name} holds {item}, but {rule['even']}.")
    if "holds" in rule and rule["holds"] not in items:
        raise ConfigError(f"{name} is {value!r}: add {rule['holds']}, {rule['because']}.")
    return value


def _may_be(item: Any, rule: Rule) -> bool:
    """Whether a rule allows one item; of names, only the name says whether it is one."""
    if "one_of" in rule:
        return repr(item) in map(repr, rule["one_of"])  # 1 is not true
    if rule.get("kind") == "count":
        return is_count(item, rule.get("most"), rule.get("least", 1))
    return rule.get("kind") != "text" or isinstance(item, str)


def read_text(text: str) -> Any:
    """Return what a text says as YAML, or itself."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _refused(name: str, value: Any, rule: Rule) -> ConfigError:
    """Say what a parameter may be."""
    if "one_of" in rule:
        many = "give a list of different ones of" if rule.get("list") else "use one of"
        allowed = f"{many} {', '.join(map(str, rule['one_of']))}"
    elif rule["kind"] == "text":
        allowed = "give a text, empty for none"
    elif rule["kind"] == "count":
        least, most = rule.get("least", 1), rule.get("most")
        span = f"from {least} to {most}" if most else f"{least} or more"
        allowed = (
            f"give a list of different whole numbers{'' if most else ','} {span}"
            if rule.get("list")
            else f"give a whole number, {span}"
        )
    else:
        allowed = "give a list of names" + (", empty for all" if rule.get("empty") else "")
    return ConfigError(f"{name} is {value!r}: {allowed}.")
