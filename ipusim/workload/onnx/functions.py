"""Functions that a file defines itself, and operators that onnx defines by simpler ones."""

from __future__ import annotations

import copy

import onnx

from ipusim.errors import WorkloadError

LARGEST_BODY = 50_000
"""Nodes of a file with all functions replaced; nested functions can stand for any number."""

DEEPEST = 64
"""Functions within functions, or branches within branches."""


def inline_functions(model: onnx.ModelProto, label: str) -> list[onnx.NodeProto]:
    """Return the nodes of a model, calls of its own functions replaced by what they do.

    Raises
    ------
    WorkloadError
        If functions call each other in a circle or stand for too many nodes.
    """
    functions = {(item.domain, item.name): item for item in model.functions}
    inliner = _Inliner(functions, label)
    inliner.expand(model.graph.node, ())
    return inliner.nodes


class _Inliner:
    """Nodes written so far, and how many calls were replaced."""

    def __init__(self, functions: dict[tuple[str, str], onnx.FunctionProto], label: str) -> None:
        self.functions, self.label = functions, label
        self.nodes: list[onnx.NodeProto] = []
        self._calls = 0

    def expand(self, nodes: list[onnx.NodeProto], active: tuple[tuple[str, str], ...]) -> None:
        """Add nodes, calls replaced; `active` are the functions whose bodies they are in."""
        for node in nodes:
            key = (node.domain, node.op_type)
            if key not in self.functions:
                self.nodes.append(node)
            elif key in active or len(active) > DEEPEST:
                raise WorkloadError(
                    f"Function {node.op_type!r} of {self.label} calls itself, which has no end; "
                    "export the model again."
                )
            else:
                self._calls += 1
                prefix = f"{node.name or node.op_type}#{self._calls}/"
                self.expand(called(node, self.functions[key], prefix), (*active, key))
            if len(self.nodes) + self._calls > LARGEST_BODY:
                raise WorkloadError(
                    f"{self.label[0].upper() + self.label[1:]} has more than {LARGEST_BODY} "
                    "operators, its functions replaced; export a part of the model."
                )


def called(call: onnx.NodeProto, function: onnx.FunctionProto, prefix: str) -> list[onnx.NodeProto]:
    """Return the body of a function with the names and attributes of one call."""
    names = {"": ""}
    for place, formal in enumerate(function.input):
        names[formal] = call.input[place] if place < len(call.input) else ""
    for place, formal in enumerate(function.output):
        given = place < len(call.output) and call.output[place]
        names[formal] = call.output[place] if given else prefix + formal
    values = {item.name: item for item in function.attribute_proto}
    values.update({item.name: item for item in call.attribute})
    return [renamed(node, names, prefix, values) for node in function.node]


def definition(
    call: onnx.NodeProto, opset: int, types: list[onnx.TypeProto]
) -> onnx.FunctionProto | None:
    """Return how onnx defines an operator by simpler ones; None if it does not."""
    try:
        schema = onnx.defs.get_schema(
            call.op_type, min(opset, onnx.defs.onnx_opset_version()), call.domain
        )
    except onnx.defs.SchemaError:
        return None
    fixed, varying = (
        schema.function_opset_versions,
        schema.context_dependent_function_opset_versions,
    )
    versions = fixed or varying
    if not versions:
        return None
    version = max((v for v in versions if v <= opset), default=min(versions))
    function = onnx.FunctionProto()
    if fixed:
        function.ParseFromString(schema.get_function_with_opset_version(version))
    else:
        function.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                version, call.SerializeToString(), [kind.SerializeToString() for kind in types]
            )
        )
    own = {item.name for item in function.attribute_proto}
    function.attribute_proto.extend(
        item.default_value
        for name, item in schema.attributes.items()
        if item.default_value.name and name not in own
    )
    return function if function.node else None


def renamed(
    node: onnx.NodeProto,
    names: dict[str, str],
    prefix: str,
    values: dict[str, onnx.AttributeProto] | None = None,
) -> onnx.NodeProto:
    """Return a node with the names of tensors changed.

    Parameters
    ----------
    names : dict
        New names of tensors; results that are not there get the prefix, and are added.
    values : dict, optional
        What references to a function's attributes stand for.
    """
    fresh = copy.deepcopy(node)
    fresh.name = prefix + (node.name or node.op_type)
    fresh.input[:] = [names.get(name, name) for name in node.input]
    fresh.output[:] = [names.setdefault(name, prefix + name) for name in node.output]
    if values is not None:
        _set_attributes(fresh, values)
    for attribute in fresh.attribute:
        if attribute.HasField("g"):
            _rename_graph(attribute.g, names, prefix, values)
    return fresh


def _set_attributes(node: onnx.NodeProto, values: dict[str, onnx.AttributeProto]) -> None:
    kept = []
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            kept.append(attribute)
        elif attribute.ref_attr_name in values:
            given = copy.deepcopy(values[attribute.ref_attr_name])
            given.name = attribute.name
            kept.append(given)
    kept = [copy.deepcopy(attribute) for attribute in kept]
    del node.attribute[:]
    node.attribute.extend(kept)


def _rename_graph(
    graph: onnx.GraphProto,
    names: dict[str, str],
    prefix: str,
    values: dict[str, onnx.AttributeProto] | None,
) -> None:
    """Rename what a branch or loop body takes from outside; its own names hide those."""
    own = {item.name for item in (*graph.input, *graph.initializer)}
    inner = {key: value for key, value in names.items() if key not in own}
    nodes = []
    for node in graph.node:
        for name in node.output:
            inner.pop(name, None)
            inner[name] = name
        fresh = renamed(node, inner, "", values)
        fresh.name = node.name
        nodes.append(fresh)
    del graph.node[:]
    graph.node.extend(nodes)
    for item in graph.output:
        item.name = inner.get(item.name, item.name)
