"""A simulator of the Graphcore IPU: what a model would do on that machine, and how far to trust it.

>>> import ipusim
>>> ipusim.simulate("braggnn", system="C2", micro_batch=4).fits
True

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "simulate": "ipusim.api",
    "sweep": "ipusim.sweeps",
    "plan": "ipusim.planning",
    "serving": "ipusim.language_serving",
    "roofline": "ipusim.api",
    "load_model": "ipusim.workload.loading",
    "simulate_gpu": "ipusim.runtime.gpu.step",
    "FittedCosts": "ipusim.runtime.calibration",
    "from_onnx": "ipusim.workload.onnx",
    "load_chip": "ipusim.machine",
    "load_system": "ipusim.machine",
    "chip_names": "ipusim.machine",
    "system_names": "ipusim.machine",
    "hardware_table": "ipusim.machine",
    "load_stack": "ipusim.compiler.stacks",
    "stack_names": "ipusim.compiler.stacks",
    "Report": "ipusim.report",
    "compare": "ipusim.report",
    "IpuSimError": "ipusim.errors",
}

_SUBPACKAGES = {"zoo": "ipusim.workload.zoo", "numerics": "ipusim.numerics"}

__all__ = [*sorted(_EXPORTS), *_SUBPACKAGES]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return import_module(_SUBPACKAGES[name])
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
