"""Import of ONNX files. The onnx package is loaded only when `from_onnx` is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from ipusim.workload.model import Model

if TYPE_CHECKING:
    import onnx


def from_onnx(
    source: str | PathLike[str] | onnx.ModelProto,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    allow_unknown: bool = False,
) -> Model:
    """Read an ONNX file, or a model already in memory, for inference.

    The batch is the free size of the data inputs that is called so, or the leading one. The
    micro-batch takes its place. Where the file fixes the batch, another micro-batch rewrites the
    leading size of every data input, and of the constant target shapes of Reshape nodes; it is
    refused where work and results do not follow. Every other free size must be given.

    Parameters
    ----------
    source : str, path or onnx.ModelProto
        Weights are never needed, so external data files may be absent.
    shapes : mapping of str to sequence of int, optional
        Shapes of inputs, by name: ``{"x": (1, 3, 640, 640)}``. A size that is the batch is only
        the default of the micro-batch.
    dims : mapping of str to int, optional
        Free sizes by their names in the file: ``{"sequence": 128}``.
    values : mapping of str to array_like, optional
        Values of inputs on which shapes or branches depend, such as ``{"sr": 16000}``; they become
        constants.
    allow_unknown : bool, optional
        Whether an operator that is not supported is timed as one move of its results instead of
        refused; layer tables call it "unknown ...".

    Returns
    -------
    Model
        Named after the file, or after the graph of a model in memory.

    Raises
    ------
    WorkloadError
        If the file is missing or no ONNX model, if an operator is not supported, or if a size is
        free and not given (the message is the line to add).

    Examples
    --------
    >>> model = from_onnx("bert.onnx", dims={"sequence": 128})  # doctest: +SKIP
    >>> model.graph(micro_batch=4).macs  # doctest: +SKIP
    """
    from ipusim.workload.onnx.builder import OnnxBuild
    from ipusim.workload.onnx.inputs import Given, plan_inputs
    from ipusim.workload.onnx.reader import read_onnx

    contents = read_onnx(source)
    given = Given(shapes=shapes or {}, dims=dims or {}, values=values or {})
    plan = plan_inputs(contents.inputs, given, contents.source)
    build = OnnxBuild(contents, plan, allow_unknown)
    # Building once now reports what is unsupported here, not in a later simulation.
    context = build.imported(allow_unknown=allow_unknown).context
    return Model(
        name=contents.name,
        family="onnx",
        build=build,
        source=contents.source,
        note=context.summary(),
        batch=build.batch,
    )
