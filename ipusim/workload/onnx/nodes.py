"""The nodes of a file one by one: names unique, attributes decoded, calls of functions replaced.

A body, of a function, a branch or a loop, is a `Scope`: its own names get a prefix, those that it
takes from outside are what they stand for there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import zip_longest
from typing import Any

import onnx
from onnx import helper

from ipusim.errors import WorkloadError
from ipusim.workload.onnx.reader import STANDARD_DOMAINS, OnnxContents

LARGEST_BODY = 50_000
"""Nodes of a file, functions replaced and loops unrolled: nested ones can stand for any number."""

DEEPEST = 64
"""Functions within functions, or branches within branches."""
UNKNOWN = "unknown "
"""Before the kind of an unsupported operator, which may have the name of another domain's."""


@dataclass(slots=True, kw_only=True)
class Scope:
    """A body whose names are its own, or the file itself."""

    prefix: str = ""
    names: dict[str, str] = field(default_factory=dict)  # unique ones of what is known so far
    results: dict[str, str] = field(default_factory=dict)  # the caller's, of what a function gives
    attributes: dict[str, Any] = field(default_factory=dict)  # the caller's, to which nodes refer
    functions: tuple[tuple[str, str], ...] = ()  # those in whose bodies this is

    def node(self, proto: onnx.NodeProto) -> Node:
        """Return a node of this body."""
        inputs = [self.names.get(name, name) for name in proto.input]
        for name in proto.output:
            self.names[name] = self.results.get(name, self.prefix + name) if name else ""
        # The nodes of functions mostly have no names: their kinds say more than their results.
        name = proto.name or (proto.op_type if self.results else "")
        return Node(
            op_type=proto.op_type,
            domain="" if proto.domain in STANDARD_DOMAINS else proto.domain,
            name=self.prefix + name if name else "",
            input=inputs,
            output=[self.names[name] for name in proto.output],
            attributes=decoded(proto.attribute, self.attributes),
            scope=self,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One ONNX node, unlike any other: attributes decoded, the names of its tensors made unique."""

    op_type: str
    input: list[str]
    output: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    scope: Scope = field(default_factory=Scope)  # its branches and loop bodies take names from it

    @property
    def label(self) -> str:
        """Its own name, or that of its first result where it has none."""
        return self.name or next(filter(None, self.output), "?")

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def has(self, place: int) -> bool:
        """Whether an optional input is given."""
        return len(self.input) > place and bool(self.input[place])

    def proto(self) -> onnx.NodeProto:
        """Return the node as a file would have it; of an empty list no type is known."""
        known = {k: one for k, one in self.attributes.items() if one is not None and one != []}
        return helper.make_node(
            self.op_type, self.input, self.output, name=self.name, domain=self.domain, **known
        )

    def error(self, what: str) -> WorkloadError:
        """Return the error that says what is wrong with it, such as "Conv node 'c' has ..."."""
        return WorkloadError(f"The {self.op_type} node {self.label!r} {what}.")


def scope_of(call: Node, function: onnx.FunctionProto, prefix: str) -> Scope:
    """Return the scope of the body of a function as one node calls it."""
    formal = function.input
    return Scope(
        prefix=prefix,
        names=dict(zip_longest(formal, call.input[: len(formal)], fillvalue="")),
        results={
            own: name for own, name in zip(function.output, call.output, strict=False) if name
        },
        attributes={**decoded(function.attribute_proto, {}), **call.attributes},
        functions=(*call.scope.functions, (function.domain, function.name)),
    )


class Unfolding:
    """Gives the nodes of bodies one by one, calls of the file's functions replaced."""

    def __init__(self, contents: OnnxContents) -> None:
        self.contents = contents
        self._count = 0
        self._calls = 0

    def __call__(self, protos: Iterable[onnx.NodeProto], scope: Scope) -> Iterator[Node]:
        """Give the nodes of a body."""
        for proto in ordered(list(protos)):
            self.count()
            self._check_names(proto)
            node = scope.node(proto)
            key = (proto.domain, proto.op_type)
            function = self.contents.functions.get(key)
            if function is None:
                yield node
                continue
            if key in scope.functions or len(scope.functions) > DEEPEST:
                raise WorkloadError(
                    f"Function {proto.op_type!r} of {self.contents.source} calls itself, which has "
                    "no end; export the model again."
                )
            self._calls += 1
            prefix = f"{node.name or node.op_type}#{self._calls}/"
            yield from self(function.node, scope_of(node, function, prefix))

    def count(self) -> None:
        """Count one more node, up to the most that are followed."""
        self._count += 1
        if self._count > LARGEST_BODY:
            raise WorkloadError(
                f"In {self.contents.source} more than {LARGEST_BODY} operators run, its functions "
                "replaced and its loops unrolled; export a part of the model, or give a smaller "
                "trip count."
            )

    def _check_names(self, proto: onnx.NodeProto) -> None:
        """Refuse names that protobuf hands over as bytes, no text, and kinds with breaks."""
        texts = [proto.name, proto.op_type, proto.domain, *proto.input, *proto.output]
        texts += [attribute.name for attribute in proto.attribute]
        if not all(isinstance(text, str) for text in texts) or not proto.op_type.isprintable():
            raise self.contents.error(
                f"is damaged: a {proto.op_type!r} node has a name that is no text"
            )


def taken(body: onnx.GraphProto) -> list[str]:
    """Return the names that a branch or loop body takes from outside."""
    own = {item.name for item in (*body.input, *body.initializer)}
    own.update(name for node in body.node for name in node.output)
    names = [name for node in body.node for name in read(node)]
    names += [item.name for item in body.output]
    return [name for name in names if name and name not in own]


def read(node: onnx.NodeProto) -> list[str]:
    """Return the names that a node reads, in its branches and loop bodies too."""
    bodies = (item.g for item in node.attribute if item.type == item.GRAPH)
    return [*node.input, *(name for body in bodies for name in taken(body))]


def ordered(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return nodes after those whose results they read; some converters append to a file."""
    maker = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    before = {i: {maker[x] for x in read(node) if x in maker} for i, node in enumerate(nodes)}
    if all(max(makers, default=-1) < place for place, makers in before.items()):
        return nodes
    try:
        return [nodes[place] for place in TopologicalSorter(before).static_order()]
    except CycleError:
        return nodes


def definition(call: Node, opset: int, types: list[onnx.TypeProto]) -> onnx.FunctionProto | None:
    """Return how onnx defines an operator by simpler ones; None if it does not."""
    try:
        schema = onnx.defs.get_schema(call.op_type, opset, call.domain)
    except onnx.defs.SchemaError:
        return None
    if schema.has_function:
        function = schema.function_body
    elif schema.has_context_dependent_function:
        given = call.proto().SerializeToString(), [kind.SerializeToString() for kind in types]
        content = schema.get_context_dependent_function(*given)
        function = onnx.FunctionProto.FromString(content)
    else:
        return None
    own = {item.name for item in function.attribute_proto}
    function.attribute_proto.extend(
        item.default_value
        for name, item in schema.attributes.items()
        if item.default_value.name and name not in own
    )
    return function if function.node else None


def decoded(attributes: Iterable[onnx.AttributeProto], known: dict[str, Any]) -> dict[str, Any]:
    """Return attributes by name, strings decoded; in functions some refer to those of the call."""
    found: dict[str, Any] = {}
    for attribute in attributes:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in known:
                found[attribute.name] = known[attribute.ref_attr_name]
            continue
        value = helper.get_attribute_value(attribute)
        if attribute.type == attribute.STRINGS:
            value = [text.decode(errors="replace") for text in value]
        found[attribute.name] = (
            value.decode(errors="replace") if isinstance(value, bytes) else value
        )
    return found
