"""The networks of the zoo by name, each registered beside the function that builds it.

A module of the zoo is imported when one of its networks is asked for.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ipusim.errors import resolve_name
from ipusim.workload.graph import Graph
from ipusim.workload.layers import GraphBuilder
from ipusim.workload.model import Model

Outputs = str | tuple[str, ...]
"""Names of the tensors that a builder leaves to the host."""

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


def variants(
    build: Builder,
    networks: Mapping[str, Any],
    option: str | tuple[str, ...] = "config",
    **facts: Any,
) -> None:
    """Register networks by name that differ in one option of a builder, or in several.

    With each stands the value of the option (values, of several) or a mapping of options.
    """
    for name, value in networks.items():
        options = value
        if isinstance(option, tuple):
            options = dict(zip(option, value, strict=True))
        elif not isinstance(value, Mapping):
            options = {option: value}
        register(Network(name=name, build=partial(build, **options), **facts))


_ELSEWHERE = {
    "fastpitch": "fastspeech",
    "resnext": "resnet",
    "tamu_": "autoencoder",
    "transformer_": "transducer",
}
"""Beginnings of names whose networks are in a module of another name."""


@cache
def _modules() -> tuple[str, ...]:
    """Return the modules of the zoo, in order."""
    root = Path(__file__).parent
    files = [path for path in sorted(root.rglob("*.py")) if path.stem != "__init__"]
    dotted = (".".join(path.relative_to(root).with_suffix("").parts) for path in files)
    return tuple(f"{__package__}.{name}" for name in dotted)


def find(name: str) -> Network | None:
    """Return the network of an exact name: the module whose name it begins with is tried first."""
    if name not in NETWORKS:
        begin = next((stem for key, stem in _ELSEWHERE.items() if name.startswith(key)), name)
        for module in _modules():
            if begin.startswith(module.rpartition(".")[2]):
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
