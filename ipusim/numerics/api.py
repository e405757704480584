"""Entry points: run a network, or differentiate it, in the arithmetic of an IPU."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ipusim.errors import WorkloadError
from ipusim.numerics.arithmetic import Arithmetic, ArithmeticOptions
from ipusim.numerics.executor import backward, forward
from ipusim.numerics.from_graph import program_of
from ipusim.numerics.program import Program, initial_weights, is_floating
from ipusim.workload.graph import Graph
from ipusim.workload.model import Model

if TYPE_CHECKING:
    import onnx

    Source = str | PathLike[str] | Model | Graph | Program | onnx.ModelProto


def load_program(source: Source, batch: int | None = None) -> Program:
    """Return the program of anything that describes a network.

    Parameters
    ----------
    source : str, path, Model, Graph, Program or onnx.ModelProto
        A zoo name, a path ending in .onnx, or an object.
    batch : int, optional
        Samples, for models of the zoo.

    Raises
    ------
    WorkloadError, UnknownNameError
        If it cannot be read, or holds an operator that is not supported.
    """
    if isinstance(source, Program):
        return source
    if isinstance(source, Graph):
        return program_of(source)
    if isinstance(source, str) and not source.lower().endswith(".onnx"):
        from ipusim.workload import zoo

        source = zoo.load(source)
    from_file = getattr(getattr(source, "build", None), "contents", None)
    if isinstance(source, Model) and from_file is None:
        return program_of(source.graph(batch, "32.32"))
    from ipusim.numerics.from_onnx import program_of_contents, program_of_onnx

    if from_file is None:
        return program_of_onnx(source)
    kept = {n: s.array for n, s in from_file.initializers.items() if s.array is not None}
    return program_of_contents(from_file, kept)


def run(
    source: Source,
    inputs: Mapping[str, np.ndarray] | np.ndarray,
    *,
    weights: Mapping[str, np.ndarray] | None = None,
    **arithmetic: Any,
) -> dict[str, np.ndarray]:
    """Run a network in the arithmetic of an IPU.

    Parameters
    ----------
    source : str, path, Model, Graph or onnx.ModelProto
        A zoo name, a path ending in .onnx, or an object.
    inputs : mapping of str to array, or array
        Values of the inputs by name; an array for a network with one input.
    weights : mapping of str to array, optional
        Weights by name; they replace those of an ONNX file. Without them a model of the zoo gets
        seeded random ones.
    **arithmetic
        As `ArithmeticOptions` has it: precision, partials, stochastic_rounding, seed. The same seed
        gives the same bits on every machine.

    Returns
    -------
    dict of str to numpy.ndarray
        Outputs by name: float16, or float32 with precision "32.32".

    Raises
    ------
    WorkloadError
        If an operator is not supported, or inputs or weights do not fit.
    UnknownNameError, ConfigError
        If there is no such arithmetic, input or weight, or it contradicts itself.

    Examples
    --------
    >>> import numpy as np
    >>> from ipusim import numerics
    >>> centres = numerics.run("braggnn", np.zeros((2, 1, 11, 11)), precision="16.16")
    >>> [(array.shape, array.dtype.name) for array in centres.values()]
    [((2, 2), 'float16')]
    """
    options = ArithmeticOptions(**arithmetic)
    program, given, chosen = _prepare(source, inputs, weights, options.seed)
    values = forward(program, given, chosen, Arithmetic(options), keep=False)
    results = ((name, values[name]) for name in program.outputs)
    half = options.half
    return {name: x.astype(np.float16) if half and is_floating(x) else x for name, x in results}


def gradients(
    source: Source,
    inputs: Mapping[str, np.ndarray] | np.ndarray,
    output_gradients: Mapping[str, np.ndarray] | np.ndarray,
    *,
    weights: Mapping[str, np.ndarray] | None = None,
    **arithmetic: Any,
) -> dict[str, np.ndarray]:
    """Return the gradients of all floating-point inputs and weights of a network.

    Parameters
    ----------
    source, inputs, weights, **arithmetic
        As for `run`.
    output_gradients : mapping of str to array, or array
        Gradients of the outputs; an array for a network with one output.

    Returns
    -------
    dict of str to numpy.ndarray
        float32 by name; with half storage every value is a half.

    Examples
    --------
    >>> import numpy as np
    >>> from ipusim import numerics
    >>> slopes = numerics.gradients("braggnn", np.ones((1, 1, 11, 11)), np.ones((1, 2)))
    >>> slopes["patches"].shape, slopes["dense_layers.out.bias"].tolist()
    ((1, 1, 11, 11), [1.0, 1.0])
    """
    options = ArithmeticOptions(**arithmetic)
    program, given, chosen = _prepare(source, inputs, weights, options.seed)
    ipu = Arithmetic(options)
    values = forward(program, given, chosen, ipu)
    if not isinstance(output_gradients, Mapping):
        output_gradients = {program.outputs[0]: output_gradients}
    incoming = {}
    for name, array in output_gradients.items():
        if name not in program.outputs or np.shape(array) != values[name].shape:
            raise WorkloadError(
                f"The gradient of {name!r} has shape {np.shape(array)}, which must be the shape of "
                f"an output of {program.name!r} ({', '.join(program.outputs)})."
            )
        incoming[name] = ipu.copy(array)
    floating = [name for name in (*given, *chosen) if values[name].dtype == np.float32]
    return backward(program, values, incoming, frozenset(floating), ipu)


def _prepare(
    source: Source,
    inputs: Mapping[str, np.ndarray] | np.ndarray,
    weights: Mapping[str, np.ndarray] | None,
    seed: int,
) -> tuple[Program, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the program, the inputs by name, and all weights: given ones, or random of the zoo."""
    first = inputs if not isinstance(inputs, Mapping) else next(iter(inputs.values()), None)
    shape = np.shape(first) if first is not None else ()
    if shape and not shape[0]:
        raise WorkloadError(f"The inputs hold no samples (shape {shape}); give at least one.")
    program = load_program(source, shape[0] if shape else None)
    if not isinstance(inputs, Mapping):
        if len(program.inputs) != 1:
            raise WorkloadError(
                f"{program.name!r} has the inputs {', '.join(program.inputs)}; give them by name."
            )
        inputs = {program.inputs[0]: inputs}
    given = program.check_inputs(inputs)
    if weights is None and program.may_draw:
        return program, given, initial_weights(program, seed)
    return program, given, program.check_weights(weights or {})
