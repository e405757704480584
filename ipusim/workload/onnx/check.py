"""What an ONNX file holds, what it leaves open, and what of it cannot be simulated."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from ipusim.errors import WorkloadError
from ipusim.workload.onnx.builder import OnnxBuild
from ipusim.workload.onnx.inputs import Given, free_sizes, plan_inputs, shown
from ipusim.workload.onnx.reader import read_onnx

if TYPE_CHECKING:
    import onnx

_WIDTH = 12


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
    try:
        build = OnnxBuild(contents, plan_inputs(contents.inputs, Given(**given), contents.source))
        imported = build.imported()
    except WorkloadError as error:
        return Check((*lines, ("stops at", str(error))), usable=False)
    graph, context = imported.graph, imported.context
    lines += [
        ("batch", str(build.batch)),
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
    return Check(tuple(lines), usable=allow_unknown or not context.unknown)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())
