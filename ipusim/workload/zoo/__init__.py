"""Known networks, built exactly as their published definitions.

>>> from ipusim.workload import zoo
>>> zoo.load("ResNet 50").graph(micro_batch=1).macs
4089184256
>>> zoo.resnet50().name
'resnet50'
"""

from ipusim.workload.zoo.registry import Network, find, load, names

__all__ = ["load", "names"]


def __getattr__(name: str) -> Network:
    """Return a network as the attribute of its name."""
    found = None if name.startswith("_") else find(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    return sorted((*__all__, *names()))
