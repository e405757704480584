"""The networks of the zoo by name, each registered beside the function that builds it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
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

    `parameters` are learnt numbers, `macs` those of one pass of the default micro-batch, which is
    taken where none is asked for; the other facts are those of a `Model`.
    """

    name: str
    build: Builder
    family: str
    source: str
    parameters: int
    macs: int
    loss: str = ""
    note: str = ""
    folds_batch_norm: bool = True
    repeated_inputs: tuple[str, ...] = ()
    default_batch: int = 1

    def __call__(self, **options: Any) -> Model:
        """Return the model; options are those of the builder."""
        inspect.signature(self.build).bind(None, None, **options)
        return Model(
            name=self.name,
            family=self.family,
            build=partial(self._graph, options),
            source=self.source,
            note=self.note,
            loss=self.loss,
            folds_batch_norm=self.folds_batch_norm,
            repeated_inputs=self.repeated_inputs,
        )

    def _graph(self, options: dict[str, Any], micro_batch: int | None) -> Graph:
        g = GraphBuilder(self.name)
        outputs = self.build(g, micro_batch or self.default_batch, **options)
        return g.finish(*((outputs,) if isinstance(outputs, str) else outputs))

    def __reduce_ex__(self, protocol: int) -> Any:
        """Pickle a listed network by its name, since its builder's name stands for itself."""
        if NETWORKS.get(self.name) is self:
            return _listed, (self.name,)
        return super().__reduce_ex__(protocol)


NETWORKS: dict[str, Network] = {}
"""Every network by name."""


def _listed(name: str) -> Network:
    return NETWORKS[name]


def register(entry: Network) -> Network:
    """List a network in the zoo."""
    NETWORKS[entry.name] = entry
    return entry


def network(name: str = "", **facts: Any) -> Callable[[Builder], Network]:
    """Register the decorated builder as a network of the zoo, which takes its place.

    The name is the builder's own unless one is given; facts are the other fields of `Network`.
    """
    return lambda build: register(Network(name=name or build.__name__, build=build, **facts))


def variants(
    build: Builder, rows: Iterable[tuple[Any, ...]], option: str = "config", **facts: Any
) -> None:
    """Register networks that differ in one option of a builder, or in several.

    A row has the name, the value of the option or a mapping of options, learnt numbers,
    multiply-accumulates, and the source where each has its own.
    """
    for name, value, parameters, macs, *source in rows:
        options = value if isinstance(value, Mapping) else {option: value}
        known = facts | {"parameters": parameters, "macs": macs}
        known |= {"source": source[0]} if source else {}
        register(Network(name=name, build=partial(build, **options), **known))


def names() -> tuple[str, ...]:
    """Return the names that `load` accepts."""
    return tuple(NETWORKS)


def load(name: str) -> Model:
    """Return a network by name, whatever its case, spaces, hyphens and underscores."""
    return _load(resolve_name("model", name, NETWORKS))


@cache
def _load(name: str) -> Model:
    return NETWORKS[name]()
