"""Known networks, built exactly as their published definitions.

>>> from ipusim.workload import zoo
>>> zoo.load("ResNet 50").graph(micro_batch=1).macs
4089184256
>>> zoo.resnet50().name
'resnet50'
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

from ipusim.workload.zoo.registry import NETWORKS, Network, load, names

__all__ = ["load", "names"]

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)


def __getattr__(name: str) -> Network:
    """Return a network as the attribute of its name."""
    if name not in NETWORKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return NETWORKS[name]


def __dir__() -> list[str]:
    return sorted((*__all__, *NETWORKS))
