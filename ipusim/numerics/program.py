"""What numerics executes: operators by ONNX name, with every attribute and every weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ipusim.errors import WorkloadError, check_name
from ipusim.workload.operators.base import Attributes

Arrays = Sequence[np.ndarray | None]
"""Operands, None where one is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator.

    ``op`` is an ONNX operator type. An operator of a graph has its ``params`` and, as an attribute,
    the ``shape`` of its result; it may also be a "Product", "View" or "Copy". In a file ``params``
    depend on the operands. Inputs that are left out are "". ``bodies`` are branches and loop
    bodies, by attribute; what they read of values outside are the last inputs, whose names there
    are ``outer``.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    params: Attributes | Callable[[Arrays], Attributes] | None = None
    attributes: Mapping[str, object] = field(default_factory=dict)
    opset: int = 0
    domain: str = ""
    bodies: Mapping[str, Program] = field(default_factory=dict)
    outer: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Operators in the order in which they run.

    A shape of ``input_shapes`` is None where any size will do; ``floating`` inputs hold
    floating-point numbers. ``parameters`` are the shapes of the weights that must be given or
    drawn, ``values`` the weights and constants that are known. It ``may_draw`` random weights as a
    definition of the zoo; for a file whose weights were left behind they make no sense.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, np.ndarray]
    input_shapes: Mapping[str, tuple[int | None, ...]] = field(default_factory=dict)
    floating: frozenset[str] = frozenset()
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    may_draw: bool = False

    def check_inputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the inputs, checked, as arrays of the types that numerics computes with."""
        for name in inputs:
            check_name(f"input of {self.name!r}", name, self.inputs)
        checked = {}
        for name in self.inputs:
            if name not in inputs:
                raise WorkloadError(f"Input {name!r} of {self.name!r} is missing; give an array.")
            array = np.asarray(inputs[name])
            expected = self.input_shapes[name]
            if len(expected) != array.ndim or any(
                want not in (None, size) for want, size in zip(expected, array.shape, strict=True)
            ):
                shown = tuple("batch" if size is None else size for size in expected)
                raise WorkloadError(
                    f"Input {name!r} has shape {array.shape}, where {self.name!r} expects {shown}."
                )
            if array.dtype.kind not in "fiub":
                raise WorkloadError(
                    f"Input {name!r} has element type {array.dtype}, which must be a number."
                )
            if name in self.floating:
                array = array.astype(np.float32)
                if not np.isfinite(array).all():
                    raise WorkloadError(
                        f"Input {name!r} holds NaN or infinity; remove or replace such values."
                    )
            checked[name] = array
        return checked

    def check_weights(self, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return all weights and constants, checked, those given taking the place of known ones."""
        arrays = (item for item in self.values.items() if isinstance(item[1], np.ndarray))
        shapes = {name: array.shape for name, array in arrays}
        shapes.update(self.parameters)
        if not isinstance(weights, Mapping):
            raise WorkloadError(f"The weights are {weights!r}: give arrays by name, as a mapping.")
        merged = dict(self.values)
        for name, given in weights.items():
            check_name(f"weight of {self.name!r}", name, shapes)
            array = np.asarray(given)
            if array.shape != tuple(shapes[name]):
                raise WorkloadError(
                    f"Weight {name!r} has shape {array.shape}, which must be {tuple(shapes[name])}."
                )
            merged[name] = array
        for name in self.parameters:
            if name not in merged:
                raise WorkloadError(
                    f"Weight {name!r} of {self.name!r} has no values; give them with weights=, or "
                    "pass the ONNX file itself."
                )
        return merged


def single(array: np.ndarray | None) -> np.ndarray | None:
    """Return floating-point numbers in single precision, all else as it is."""
    return np.asarray(array, np.float32) if is_floating(array) else array


def is_floating(array: np.ndarray | None) -> bool:
    """Whether a value is an array of floating-point numbers: not absent, nor a sequence."""
    return getattr(array, "dtype", np.dtype(bool)).kind == "f"


def initial_weights(program: Program, seed: int) -> dict[str, np.ndarray]:
    """Draw float32 weights for every parameter of a program.

    Matrices and kernels are Xavier-uniform (Glorot and Bengio, AISTATS 2010), vectors are zero,
    except the scales and variances of norms, which are one.
    """
    generator = np.random.default_rng([seed, 0x57])
    scales = {node.inputs[1] for node in program.nodes if node.op in ("BatchNormalization",)}
    drawn: dict[str, np.ndarray] = {}
    for name, shape in program.parameters.items():
        if len(shape) >= 2:
            field = prod(shape[2:])
            limit = np.sqrt(6 / ((shape[0] + shape[1]) * field))
            drawn[name] = generator.uniform(-limit, limit, shape).astype(np.float32)
        else:
            one = name in scales or name.endswith(".running_var")
            drawn[name] = np.full(shape, float(one), np.float32)
    return drawn
