"""Structural schemas of custom resources: pruning, nulls and defaults (validation is next door).

A schema is compiled once into nodes, so that walking an object costs little.
"""

from __future__ import annotations

from typing import Any, Final

from hotvirt.kube.patch.copy import copied

from .types import struct

MISSING: Final = object()


_PLAIN: Final = frozenset(
    ["type", "description", "title", "default", "nullable", "example", "x-kubernetes-int-or-string"]
)
_SHAPE: Final = _PLAIN | {
    "properties",
    "items",
    "additionalProperties",
    "required",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-map-type",
}
_PYTHON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


class Node:
    """One place in a schema."""

    __slots__ = (
        "all_of",
        "any_of",
        "checked",
        "default",
        "defaults",
        "embedded",
        "enum",
        "exclusive_maximum",
        "exclusive_minimum",
        "extra",
        "format",
        "int_or_string",
        "items",
        "list_keys",
        "list_type",
        "max_items",
        "max_length",
        "max_properties",
        "maximum",
        "min_items",
        "min_length",
        "min_properties",
        "minimum",
        "multiple_of",
        "negated",
        "nullable",
        "one_of",
        "pattern",
        "plain",
        "preserve",
        "props",
        "python_types",
        "required",
        "type",
        "unique_items",
    )

    def __init__(self, schema: dict[str, Any]) -> None:
        self.type: str = schema.get("type", "")
        self.props = {name: Node(one) for name, one in (schema.get("properties") or {}).items()}
        extra = schema.get("additionalProperties")
        self.extra: Node | None = (
            Node(extra) if isinstance(extra, dict) else Node({}) if extra is True else None
        )
        self.items = Node(schema["items"]) if isinstance(schema.get("items"), dict) else None
        self.preserve = bool(schema.get("x-kubernetes-preserve-unknown-fields")) or extra is True
        self.embedded = bool(schema.get("x-kubernetes-embedded-resource"))
        self.int_or_string = bool(schema.get("x-kubernetes-int-or-string"))
        self.nullable = bool(schema.get("nullable"))
        self.default = schema.get("default", MISSING)
        self.required: list[str] = schema.get("required") or []
        self.enum: list[Any] | None = schema.get("enum")
        self.format: str = schema.get("format", "")
        self.pattern: str | None = schema.get("pattern")
        self.minimum: float | None = schema.get("minimum")
        self.maximum: float | None = schema.get("maximum")
        self.exclusive_minimum = bool(schema.get("exclusiveMinimum"))
        self.exclusive_maximum = bool(schema.get("exclusiveMaximum"))
        self.multiple_of: float | None = schema.get("multipleOf")
        self.min_length: int | None = schema.get("minLength")
        self.max_length: int | None = schema.get("maxLength")
        self.min_items: int | None = schema.get("minItems")
        self.max_items: int | None = schema.get("maxItems")
        self.min_properties: int | None = schema.get("minProperties")
        self.max_properties: int | None = schema.get("maxProperties")
        self.unique_items = bool(schema.get("uniqueItems"))
        self.list_type: str = schema.get("x-kubernetes-list-type", "")
        self.list_keys: list[str] = schema.get("x-kubernetes-list-map-keys") or []
        self.all_of = [Node(one) for one in schema.get("allOf") or []]
        self.any_of = [Node(one) for one in schema.get("anyOf") or []]
        self.one_of = [Node(one) for one in schema.get("oneOf") or []]
        self.negated = Node(schema["not"]) if isinstance(schema.get("not"), dict) else None
        # What the walks ask at every step, worked out once.
        self.defaults = [
            (name, one.default) for name, one in self.props.items() if one.default is not MISSING
        ]
        self.python_types = (int, str) if self.int_or_string else _PYTHON_TYPES.get(self.type, ())
        self.plain = (
            bool(self.python_types) and schema.keys() <= _PLAIN and self.type not in ("object", "array")
        )
        """A value of the right type needs no further look."""
        self.checked = bool(schema.keys() - _SHAPE)
        """There is more to say of a value than its shape."""


def compile_schema(schema: dict[str, Any] | None) -> Node:
    """The node of a whole custom resource; without a schema everything is kept."""
    return Node(schema or {"type": "object", "x-kubernetes-preserve-unknown-fields": True})


def prune(root: Node, obj: dict[str, Any], unknown: list[str]) -> None:
    """Drop the fields that the schema does not know, in place; their paths are added to `unknown`."""
    for name in list(obj):
        node = root.props.get(name)
        if name in ("apiVersion", "kind", "metadata"):
            continue
        if node is not None:
            _prune(node, obj[name], name, unknown)
        elif not root.preserve:
            unknown.append(name)
            del obj[name]
    if isinstance(obj.get("metadata"), dict):
        _prune_metadata(obj["metadata"], "metadata", unknown)


def _prune_metadata(metadata: dict[str, Any], path: str, unknown: list[str]) -> None:
    fields = _METADATA.fields
    for name in [name for name in metadata if name not in fields]:
        unknown.append(f"{path}.{name}")
        del metadata[name]


_METADATA: Final = struct("meta.ObjectMeta")


def _prune(node: Node, value: Any, path: str, unknown: list[str]) -> None:
    if type(value) is dict:
        props, extra = node.props, node.extra
        for name, one in list(value.items()):
            known = props.get(name) or extra
            if known is not None:
                if type(one) is dict or type(one) is list:
                    _prune(known, one, f"{path}.{name}", unknown)
            elif node.embedded and name in ("apiVersion", "kind", "metadata"):
                if name == "metadata" and isinstance(value[name], dict):
                    _prune_metadata(value[name], f"{path}.metadata", unknown)
            elif not node.preserve:
                unknown.append(f"{path}.{name}")
                del value[name]
    elif isinstance(value, list) and node.items is not None:
        for index, one in enumerate(value):
            _prune(node.items, one, f"{path}[{index}]", unknown)


def fill(root: Node, obj: dict[str, Any]) -> bool:
    """Drop nulls where null is not allowed and put the defaults in, as Kubernetes does before validation.

    Returns whether there may be something for `prune` to drop: hardly ever, so not all pay for its walk.
    """
    unknown = False
    for name in [name for name, one in obj.items() if one is None and name in root.props]:
        if not root.props[name].nullable:
            del obj[name]
    for name, default in root.defaults:
        if name not in obj:
            obj[name] = copied(default)
    for name, one in obj.items():
        if name in _OWN_RULES:
            continue
        known = root.props.get(name)
        if known is None:
            unknown = unknown or not root.preserve
        elif _fill(known, one):
            unknown = True
    return unknown


_OWN_RULES: Final = frozenset(["apiVersion", "kind", "metadata"])


def _fill(node: Node, value: Any) -> bool:
    unknown = False
    if type(value) is dict:
        props, extra = node.props, node.extra
        nulls = None
        for name, default in node.defaults:
            if value.get(name) is None and not (name in value and props[name].nullable):
                value[name] = copied(default)
        for name, one in value.items():
            known = props.get(name) or extra
            if known is None:
                if not node.preserve:
                    unknown = True
            elif one is None:
                if not known.nullable:
                    nulls = [name] if nulls is None else [*nulls, name]
            elif (type(one) is dict or type(one) is list) and _fill(known, one):
                unknown = True
        for name in nulls or ():
            del value[name]
        return unknown or node.embedded
    if type(value) is list and node.items is not None:
        items = node.items
        if items.default is not MISSING and not items.nullable and None in value:
            value[:] = [copied(items.default) if one is None else one for one in value]
        for one in value:
            if (type(one) is dict or type(one) is list) and _fill(items, one):
                unknown = True
    return unknown
