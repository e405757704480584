"""Import of ONNX files, and what can be said about one. The onnx package is loaded when called.

A file becomes a graph in these stages, each a module:

    reader    what the file holds, its weights left out
    inputs    the sizes and values of its inputs; `builder` finds the batch, `rebatch` puts another
    nodes     its nodes one by one, calls of functions replaced
    walk      each node folded (`constants`, `reference`), written as simpler ones (`control`, and
              the recipes of `composites`, `attention`, `learners`), or kept with its shapes
              (`shapes`)
    fusion    pieces put together that the frameworks of the IPU run as one operator
    operators what is left, as operators of the graph

`context` holds what is known meanwhile. Of what data decide, a size takes its upper bound and a
branch is the longer one, which the notes say; anything else is refused with the input to give.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from ipusim.errors import WorkloadError
from ipusim.workload.model import Model

if TYPE_CHECKING:
    import onnx

_WIDTH = 12


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
    leading size of every data input, and the shapes, places and constants that the exporter wrote
    for that batch (`ipusim.workload.onnx.rebatch`); it is refused where work and results do not
    follow. Every other free size must be given.

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
    >>> import onnx
    >>> head = '<ir_version: 8, opset_import: ["": 17]> net (float[batch, words] x) => (float y) '
    >>> file = onnx.parser.parse_model(head + "{y = Softmax(x)}")
    >>> ipusim.from_onnx(file, dims={"words": 128})
    net: x (1, 128) -> y (1, 128)
    0 parameters, 0 MACs for these shapes
    1 softmax
    """
    from ipusim.workload.onnx.builder import settled
    from ipusim.workload.onnx.inputs import Given
    from ipusim.workload.onnx.reader import read_onnx

    contents = read_onnx(source)
    given = Given(shapes=shapes or {}, dims=dims or {}, values=values or {})
    # Building once now reports what is unsupported here, not in a later simulation.
    build, context = settled(contents, given, allow_unknown=allow_unknown)
    return Model(
        name=contents.name,
        family="onnx",
        build=build,
        source=contents.source,
        note=context.summary(),
        batch=build.batch,
    )


@dataclass(frozen=True, slots=True)
class Check:
    """Findings about a file.

    Attributes
    ----------
    lines : tuple of (str, str)
        What is known, as heading and text.
    usable : bool
        Whether `ipusim.simulate` takes the file with what was given.
    """

    lines: tuple[tuple[str, str], ...]
    usable: bool

    def __repr__(self) -> str:
        return "\n".join(f"{heading:{_WIDTH}s} {text}" for heading, text in self.lines)


def check_onnx(source: str | PathLike[str] | onnx.ModelProto, **given: Any) -> Check:
    """Look at a file without planning it.

    Parameters
    ----------
    source : str, path or onnx.ModelProto
    **given
        Options of `from_onnx`.

    Returns
    -------
    Check
        Inputs, free sizes, operator set, parameters, multiply-accumulates, every unsupported
        operator with its count, what was fused, what is assumed.

    Raises
    ------
    WorkloadError
        If the file cannot be read at all.
    """
    from ipusim.workload.onnx.builder import settled
    from ipusim.workload.onnx.inputs import Given, OpenSizes, free_sizes, shown
    from ipusim.workload.onnx.reader import read_onnx

    allow_unknown = bool(given.pop("allow_unknown", False))
    contents = read_onnx(source)
    lines = [("file", f"{contents.name}, operator set {contents.opset}")]
    lines += [
        ("input", f"{item.name} {'?' if item.shape is None else shown(item.shape)}")
        for item in contents.inputs
    ]
    free = free_sizes(contents.inputs)
    if free:
        lines.append(("free", ", ".join(free)))
    answer, missing = Given(**given), []
    try:
        try:
            build, context = settled(contents, answer, allow_unknown=True)
        except OpenSizes as error:
            # The rest is looked at with the sizes that the message suggests.
            missing = [("stops at", str(error))]
            answer = error.answered(answer)
            build, context = settled(contents, answer, allow_unknown=True)
        graph = build(None)
    except WorkloadError as error:
        return Check((*lines, *missing, ("stops at", str(error))), usable=False)
    lines += [
        ("batch", str(build.batch)),
        *([("with", f"dims={answer.dims}, shapes={answer.shapes}")] if missing else []),
        ("parameters", f"{graph.parameters:,}"),
        ("MACs", f"{graph.macs:,} for this batch"),
        ("operators", _counted(Counter(op.kind for op in graph.ops))),
    ]
    if context.fused:
        lines.append(("fused", _counted(context.fused)))
    lines += [("assumed", f"{text} ({count} x)") for text, count in context.notes.items()]
    lines += [
        ("unsupported", f"{kind}: {len(nodes)} nodes, the first {nodes[0]!r}")
        for kind, nodes in context.unknown.items()
    ]
    usable = not missing and (allow_unknown or not context.unknown)
    return Check((*lines, *missing), usable=usable)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())
