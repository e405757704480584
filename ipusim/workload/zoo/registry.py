"""The networks of the zoo by name, each registered beside the function that builds it.

A module of the zoo is imported when one of its networks is asked for; what is said of them is in
data/models/networks.toml. All that such a module needs, `GraphBuilder` too, is imported from here.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ipusim.errors import resolve_name
from ipusim.files import completed, read_tables
from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model

Outputs = str | tuple[str, ...]
"""Names of the tensors that a builder leaves to the host."""

FILE = "models/networks.toml"

Builder = Callable[..., Outputs]
"""Adds a network to a `GraphBuilder`, for a micro-batch; further arguments are its options."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """What the zoo knows of a network; called, it returns the `Model`.

    The default micro-batch is taken where none is asked for; the other facts are those of a
    `Model`.
    """

    name: str
    build: Builder
    family: str
    source: str
    loss: str = ""
    note: str = ""
    folds_batch_norm: bool = True
    repeated_inputs: tuple[str, ...] = ()
    default_batch: int = 1

    @property
    def module(self) -> str:
        """The module of the zoo, or another, whose function builds it."""
        return getattr(self.build, "func", self.build).__module__

    def __call__(self, **options: Any) -> Model:
        """Return the model; options are those of the builder."""
        inspect.signature(self.build).bind(None, None, **options)
        shared = ("name", "family", "source", "note", "loss", "folds_batch_norm", "repeated_inputs")
        known = {fact: getattr(self, fact) for fact in shared}
        return Model(build=partial(self._graph, options), **known)

    def _graph(self, options: dict[str, Any], micro_batch: int | None) -> Graph:
        g = GraphBuilder(self.name)
        outputs = self.build(g, micro_batch or self.default_batch, **options)
        return g.finish(*((outputs,) if isinstance(outputs, str) else outputs))

    def __reduce_ex__(self, protocol: int) -> Any:
        """Pickle a listed network by its name, since its builder's name stands for itself."""
        if NETWORKS.get(self.name) is self:
            return find, (self.name,)
        return super().__reduce_ex__(protocol)


NETWORKS: dict[str, Network] = {}
"""The networks of the modules that were imported, by name."""


def register(entry: Network) -> Network:
    """List a network in the zoo."""
    NETWORKS[entry.name] = entry
    return entry


def network(**facts: Any) -> Callable[[Builder], Network]:
    """List the decorated builder under its own name, with these facts, as a `Network`."""
    return lambda build: register(Network(name=build.__name__, build=build, **facts))


def networks(build: Builder) -> Builder:
    """List what the table of the decorated builder's module holds, and leave the builder as it is.

    A network is a table of facts and options, which takes what it does not say from the one that it
    is `like`, or from what stands above all of them.
    """
    tables = read_tables(FILE)[build.__module__.rpartition(".")[2]]
    shared = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    known = {one.name for one in fields(Network)}
    for name, table in completed(tables, FILE).items():
        if isinstance(table, dict):
            said = {"name": name} | shared | table
            given = {key: tuple(x) if isinstance(x, list) else x for key, x in said.items()}
            facts = {key: given.pop(key) for key in known & given.keys()}
            register(Network(build=partial(build, **given), **facts))
    return build


@cache
def _modules() -> tuple[str, ...]:
    """Return the modules of the zoo, in order."""
    root = Path(__file__).parent
    files = [path for path in sorted(root.rglob("*.py")) if path.stem != "__init__"]
    dotted = (".".join(path.relative_to(root).with_suffix("").parts) for path in files)
    return tuple(f"{__package__}.{name}" for name in dotted)


def find(name: str) -> Network | None:
    """Return the network of an exact name: its module, or that it begins with, is tried first."""
    if name not in NETWORKS:
        tables = read_tables(FILE).items()
        home = next((module for module, networks in tables if name in networks), name)
        for module in _modules():
            if home.startswith(module.rpartition(".")[2]):
                import_module(module)
    if name not in NETWORKS:
        names()
    return NETWORKS.get(name)


def names() -> tuple[str, ...]:
    """Return the names that `load` accepts, those of a module together."""
    for module in _modules():
        import_module(module)
    place = {module: number for number, module in enumerate(_modules())}
    return tuple(sorted(NETWORKS, key=lambda name: place.get(NETWORKS[name].module, len(place))))


def load(name: str) -> Model:
    """Return a network by name, whatever its case, spaces, hyphens and underscores."""
    known = isinstance(name, str) and find(name) is not None
    return _load(name if known else resolve_name("model", name, names()))


@cache
def _load(name: str) -> Model:
    return NETWORKS[name]()
