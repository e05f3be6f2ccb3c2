"""The OpenAPI schema of a typed object: its own fields, and the further ones that KubeVirt knows."""

from __future__ import annotations

import types
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from hotvirt.api.crd.descriptions import KEPT, of_field
from hotvirt.api.crd.shapes import (
    ANY,
    BOOL,
    INT,
    INT_OR_STRING,
    NUMBER,
    QUANTITY,
    STRING,
    Schema,
    leaf_schema,
    nullable,
    shape_schema,
)
from hotvirt.api.crd.upstream import upstream_fields
from hotvirt.api.meta import Kind, ObjectMeta
from hotvirt.api.quantity import Quantity

_LEAVES: Final = {str: STRING, int: INT, bool: BOOL, float: NUMBER, Quantity: QUANTITY, Any: ANY}
_IDENTITY: Final = ("api_version", "kind", "metadata")


def without_none(annotation: Any) -> Any:
    """`X` of `X | None`; `int | str` stays as it is."""
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [part for part in get_args(annotation) if part is not type(None)]
        return inner[0] if len(inner) == 1 else Union[tuple(inner)]  # noqa: UP007 (built from a list)
    return annotation


def type_schema(annotation: Any) -> Schema:
    """The schema of a type annotation as our typed objects use them."""
    annotation = without_none(annotation)
    if annotation in _LEAVES:
        return leaf_schema(_LEAVES[annotation])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Union or origin is types.UnionType:
        return leaf_schema(INT_OR_STRING)
    if origin is tuple:
        return {"type": "array", "items": type_schema(arguments[0])}
    if origin is dict:
        if arguments[1] is Any:
            return leaf_schema(ANY)
        return {"type": "object", "additionalProperties": type_schema(arguments[1])}
    if annotation is ObjectMeta:
        return _metadata_schema()
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return struct_schema(annotation)
    raise TypeError(f"no schema for {annotation!r}")


def struct_schema(cls: type[msgspec.Struct]) -> Schema:
    """The schema of a typed object with every field KubeVirt knows; all of them may be null."""
    upstream = upstream_fields().get(cls.__name__, {})
    properties: dict[str, Schema] = {}
    for field in msgspec.structs.fields(cls):
        if issubclass(cls, Kind) and field.name in _IDENTITY:
            continue
        more = upstream.get(field.encode_name)
        schema = shape_schema(more) if more is not None else type_schema(field.type)
        properties[field.encode_name] = _described(schema, of_field(cls.__name__, field.encode_name))
    for name, shape in upstream.items():
        if name not in properties:
            properties[name] = _described(shape_schema(shape), KEPT)
    if not properties:
        return {"type": "object"}
    return {
        "type": "object",
        "properties": {name: nullable(schema) for name, schema in sorted(properties.items())},
    }


def _metadata_schema() -> Schema:
    """Metadata of an object that is to be made: Kubernetes checks it when it is, so all of it is kept."""
    labels = {"type": "object", "additionalProperties": {"type": "string"}, "nullable": True}
    return {
        "type": "object",
        "properties": {"annotations": labels, "labels": labels},
        "x-kubernetes-preserve-unknown-fields": True,
    }


def _described(schema: Schema, description: str | None) -> Schema:
    return {"description": description, **schema} if description else schema
