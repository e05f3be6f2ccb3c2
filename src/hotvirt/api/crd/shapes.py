"""The shape of a field, and the OpenAPI schema that it stands for.

A shape is a leaf, `[shape]` for a list, `MapOf(shape)` for a map with free keys, or a dict of field names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hotvirt.api.quantity import PATTERN

Shape = dict[str, Any]
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Leaf:
    name: str


@dataclass(frozen=True, slots=True)
class MapOf:
    values: Any


STRING: Final = Leaf("string")
INT: Final = Leaf("int")
BOOL: Final = Leaf("bool")
NUMBER: Final = Leaf("number")
QUANTITY: Final = Leaf("quantity")
INT_OR_STRING: Final = Leaf("int-or-string")
# An object of Kubernetes' own with more depth than is worth listing: everything in it is kept.
ANY: Final = Leaf("any")

_INT_OR_STRING: Final[Schema] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
_SCHEMAS: Final[dict[Leaf, Schema]] = {
    STRING: {"type": "string"},
    INT: {"type": "integer", "format": "int64"},
    BOOL: {"type": "boolean"},
    NUMBER: {"type": "number"},
    QUANTITY: {**_INT_OR_STRING, "pattern": PATTERN},
    INT_OR_STRING: _INT_OR_STRING,
    ANY: {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
LEAVES: Final[dict[str, Leaf]] = {leaf.name: leaf for leaf in _SCHEMAS}


def nullable(schema: Schema) -> Schema:
    """The schema, with null allowed: KubeVirt takes it for "not set", and what a user wrote is kept."""
    return {**schema, "nullable": True}


def leaf_schema(leaf: Leaf) -> Schema:
    return dict(_SCHEMAS[leaf])


def shape_schema(shape: Any) -> Schema:
    """The OpenAPI schema of a shape."""
    if isinstance(shape, Leaf):
        return leaf_schema(shape)
    if isinstance(shape, MapOf):
        return {"type": "object", "additionalProperties": shape_schema(shape.values)}
    if isinstance(shape, list):
        return {"type": "array", "items": shape_schema(shape[0])}
    if not shape:
        return {"type": "object"}
    return {
        "type": "object",
        "properties": {name: nullable(shape_schema(inner)) for name, inner in sorted(shape.items())},
    }
