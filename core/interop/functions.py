"""The bodies that ONNX itself, or a model, gives for an op in terms of other ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ..errors import GraphError
from ..ir.dim import Dim
from .item import ELEMENT_TYPES, Item, Maybe, Series, Thing

STANDARD = ("", "ai.onnx")


def plain_domain(domain: str) -> str:
    """The standard domain under its short name."""
    return "" if domain in STANDARD else domain


def demand_onnx() -> None:
    """Raise GraphError unless the package onnx is installed."""
    if find_spec("onnx") is None:
        raise GraphError("reading and writing ONNX models needs the package onnx; pip install 'xinheng[onnx]'")


def has_body(domain: str, op: str, version: int) -> bool:
    """Whether ONNX defines an op by others."""
    schema = schema_of(op, version, domain)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


def schema_of(op: str, version: int, domain: str) -> Any | None:
    """The schema that ONNX has for an op in an opset version, or None."""
    import onnx.defs

    try:
        return onnx.defs.get_schema(op, version, domain)
    except onnx.defs.SchemaError:
        return None


def standard_body(node: Any, inputs: Sequence[Thing], version: int) -> tuple[Any, dict[str, Any]] | None:
    """The function that ONNX defines for a node in an opset version, with the defaults of its attributes; or None."""
    from onnx import AttributeProto, FunctionProto, NodeProto

    schema = schema_of(node.op_type, version, plain_domain(node.domain))
    if schema is None:
        return None
    full = NodeProto()
    full.CopyFrom(node)
    given = {a.name for a in node.attribute}
    for name, declared in schema.attributes.items():
        if name not in given and declared.default_value.type != AttributeProto.UNDEFINED:
            full.attribute.append(declared.default_value)
    types = None
    plain = [v for v in schema.function_opset_versions if v <= version]
    adapted = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if adapted:
        types = [_type_proto(x).SerializeToString() for x in inputs]
        text = schema.get_context_dependent_function_with_opset_version(max(adapted), full.SerializeToString(), types)
    elif plain:
        text = schema.get_function_with_opset_version(max(plain))
    else:
        return None
    body = FunctionProto()
    body.ParseFromString(text)
    return (body, {a.name: a for a in full.attribute}) if body.node else None


def _type_proto(thing: Thing) -> Any:
    """The ONNX type of something, as far as it is a tensor or a sequence of tensors."""
    from onnx import TypeProto

    made = TypeProto()
    if isinstance(thing, Item):
        made.tensor_type.elem_type = _number(thing)
        made.tensor_type.shape.SetInParent()
        for dim in thing.shape:
            _add_dim(made.tensor_type.shape, dim)
    elif isinstance(thing, Series):
        inner = made.sequence_type.elem_type.tensor_type
        inner.elem_type = _number(thing.items[0]) if thing.items else 1
    elif isinstance(thing, Maybe) and thing.content is not None:
        made.optional_type.elem_type.CopyFrom(_type_proto(thing.content))
    return made


def _add_dim(shape: Any, dim: Dim) -> None:
    entry = shape.dim.add()
    if isinstance(dim, int):
        entry.dim_value = dim
    else:
        entry.dim_param = str(dim)


def _number(item: Item) -> int:
    return next(number for number, name in ELEMENT_TYPES.items() if name == item.dtype.name)


def attribute_values(attributes: Sequence[Any], outer: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes by name as Python values; a reference takes what `outer` has, and is absent if it has nothing."""
    made = {}
    for attribute in attributes:
        if attribute.ref_attr_name:
            attribute_of_caller = outer.get(attribute.ref_attr_name)
            if attribute_of_caller is not None:
                made[attribute.name] = attribute_value(attribute_of_caller)
        else:
            made[attribute.name] = attribute_value(attribute)
    return made


def attribute_value(attribute: Any) -> Any:
    """An attribute as a Python value: numbers, text, lists, or ONNX's own tensors, graphs and types."""
    from onnx import helper

    if attribute.type in (attribute.GRAPH, attribute.GRAPHS, attribute.TENSOR, attribute.TENSORS):
        return helper.get_attribute_value(attribute)
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str | int | float) or not hasattr(value, "__iter__"):
        return value
    return [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in value]
