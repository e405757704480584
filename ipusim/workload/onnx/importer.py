"""Import of ONNX files. The onnx package is loaded only when `from_onnx` is called."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from ipusim.workload.model import Model

if TYPE_CHECKING:
    import onnx


def from_onnx(source: str | PathLike[str] | onnx.ModelProto) -> Model:
    """Read an ONNX file, or a model already in memory, for inference.

    The batch is the leading dimension of the data inputs (graph inputs without initializer). If
    it is symbolic, the micro-batch takes its place. If the file fixes it, a micro-batch of None,
    1 or that number leaves the file as exported; any other rewrites the leading dimension of
    every data input, and of the constant target shapes of Reshape nodes.

    Parameters
    ----------
    source : str, path or onnx.ModelProto
        Weights are never needed, so external data files may be absent if they only hold weights.

    Returns
    -------
    Model
        Named after the file, or after the graph of a model in memory.

    Raises
    ------
    WorkloadError
        If the file is missing or no ONNX model, if an operator is not supported (the message
        names operator, node and the nearest supported one), or if a dimension other than the
        batch is not fixed.

    Examples
    --------
    >>> model = from_onnx("model.onnx")  # doctest: +SKIP
    >>> model.graph(micro_batch=4).macs  # doctest: +SKIP
    """
    from ipusim.workload.onnx.builder import OnnxBuild
    from ipusim.workload.onnx.reader import read_onnx

    contents = read_onnx(source)
    build = OnnxBuild(contents)
    # Building once now reports what is unsupported here, not in a later simulation.
    build(None)
    return Model(name=contents.name, family="onnx", build=build, source=contents.source)
