"""Known networks, built exactly as their published definitions.

>>> from ipusim.workload import zoo
>>> zoo.load("ResNet 50").graph(micro_batch=1).macs
4089184256
"""

from __future__ import annotations

from collections.abc import Callable

from ipusim.errors import resolve_name
from ipusim.workload.model import Model
from ipusim.workload.zoo.resnet import resnet18, resnet34, resnet50, resnet101, resnet152
from ipusim.workload.zoo.resnext import (
    resnext50_32x4d,
    resnext101_32x4d,
    resnext101_32x8d,
)

__all__ = [
    "load",
    "names",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x4d",
    "resnext101_32x8d",
]

_REGISTRY: dict[str, Callable[[], Model]] = {
    make.__name__: make
    for make in (
        resnet18,
        resnet34,
        resnet50,
        resnet101,
        resnet152,
        resnext50_32x4d,
        resnext101_32x4d,
        resnext101_32x8d,
    )
}


def names() -> tuple[str, ...]:
    """Return the names that `load` accepts, smallest family first."""
    return tuple(_REGISTRY)


def load(name: str) -> Model:
    """Return a network by name, whatever its case, spaces, hyphens and underscores.

    Raises
    ------
    UnknownNameError
        If no network has this name; the message gives the nearest one.
    """
    return _REGISTRY[resolve_name("model", name, _REGISTRY)]()
