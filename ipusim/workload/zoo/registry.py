"""The networks of the zoo by name, each registered beside the function that builds it.

A module of the zoo is imported when one of its networks is asked for; what is said of them, their
sizes too, is in data/models/networks.toml. All that such a module needs, `GraphBuilder` too, is
imported from here.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ipusim.errors import DataError, check_name, resolve_name
from ipusim.files import completed, read_tables
from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model

Outputs = str | tuple[str, ...]
"""Names of the tensors that a builder leaves to the host."""

FILE = "models/networks.toml"

Builder = Callable[..., Outputs]
"""Adds a network to a `GraphBuilder`, for a micro-batch; further arguments are its options."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Network(Model):
    """A model of the zoo, which needs a source; called, it is one with options of its builder."""

    builder: Builder
    source: str
    build: Callable[[int | None], Graph] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "build", self._graph)

    def __call__(self, **options: Any) -> Model:
        """Return the model with options of the builder."""
        inspect.signature(self.builder).bind(None, None, **options)
        return replace(self, builder=partial(self.builder, **options))

    def _graph(self, micro_batch: int | None) -> Graph:
        g = GraphBuilder(self.name)
        outputs = self.builder(g, micro_batch or self.batch)
        return g.finish(*((outputs,) if isinstance(outputs, str) else outputs))

    def __reduce_ex__(self, protocol: int) -> Any:
        """Pickle a listed network by its name, since its builder's name stands for itself."""
        if NETWORKS.get(self.name) is self:
            return find, (self.name,)
        return super().__reduce_ex__(protocol)


NETWORKS: dict[str, Network] = {}
"""The networks of the modules that were imported, by name."""


class Config(SimpleNamespace):
    """The settings of a network, as attributes."""

    def __getattr__(self, name: str) -> Any:
        raise DataError(f"A network in {FILE} does not say {name!r}, which its builder needs.")


def register(name: str, builder: Builder, facts: Mapping[str, Any]) -> Network:
    """List a network in the zoo."""
    NETWORKS[name] = Network(name=name, builder=builder, **facts)
    return NETWORKS[name]


def network(**facts: Any) -> Callable[[Builder], Network]:
    """List the decorated builder under its own name, with these facts, as a `Network`."""
    return lambda builder: register(builder.__name__, builder, facts)


def networks(build: Builder) -> Builder:
    """List what the table of the decorated builder's module holds, and leave the builder as it is.

    A network is a table of facts and settings, which takes what it does not say from the one that
    it is `like`, or from what stands above all of them. The builder is called with the settings as
    attributes, where options of the network take the place of what the table says.
    """
    tables = read_tables(FILE)[build.__module__.rpartition(".")[2]]
    shared = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    known = {one.name for one in fields(Network)}
    for name, table in completed(tables, FILE).items():
        if isinstance(table, dict):
            said = shared | table
            given = {key: tuple(x) if isinstance(x, list) else x for key, x in said.items()}
            facts = {key: given.pop(key) for key in known & given.keys()}
            register(name, partial(_configured, build, given), facts)
    return build


def _configured(
    build: Builder, settings: Mapping[str, Any], g: GraphBuilder, batch: int, **options: Any
) -> Outputs:
    for name in options:
        check_name(f"option of {g.name!r}", name, settings)
    return build(g, batch, Config(**{**settings, **options}))


@cache
def _homes() -> dict[str, str]:
    """Return the module of every network in the table."""
    root = Path(__file__).parent
    place = {path.stem: path.relative_to(root).with_suffix("").parts for path in root.rglob("*.py")}
    told = read_tables(FILE)
    for module in told.keys() - place.keys():
        raise DataError(
            f"The table {module!r} in {FILE} is named after no module of the zoo: add {module}.py "
            "below ipusim/workload/zoo."
        )
    return {
        name: ".".join((__package__, *place[module]))
        for module, tables in told.items()
        for name, table in tables.items()
        if isinstance(table, dict)
    }


def find(name: str) -> Network | None:
    """Return the network of an exact name."""
    if name not in NETWORKS and name in _homes():
        import_module(_homes()[name])
        if name not in NETWORKS:
            raise DataError(
                f"No function of {_homes()[name]} builds {name!r} of {FILE}: decorate one with "
                "`networks`."
            )
    return NETWORKS.get(name)


def names() -> tuple[str, ...]:
    """Return the names that `load` accepts: those of the table, then others that were listed."""
    return tuple(dict.fromkeys((*_homes(), *NETWORKS)))


def load(name: str) -> Model:
    """Return a network by name, whatever its case, spaces, hyphens and underscores."""
    known = find(name) if isinstance(name, str) else None
    return known or find(resolve_name("model", name, names()))
