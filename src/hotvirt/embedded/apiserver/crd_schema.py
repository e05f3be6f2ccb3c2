"""Is the schema of a CRD structural? Only such schemas can prune, default and explain."""

from __future__ import annotations

from typing import Any, Final

from .errors import FieldError, forbidden_value, invalid_value, not_supported, required_value
from .schema import Node
from .validation import go_regex, value_errors

TYPES: Final = ["array", "boolean", "integer", "number", "object", "string"]
_LOGIC: Final = ("allOf", "anyOf", "oneOf")


def schema_errors(schema: Any, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if not isinstance(schema, dict):
        return [invalid_value(path, schema, "must be an object")]
    if schema.get("type") != "object":
        errors.append(
            invalid_value(f"{path}.type", schema.get("type", ""), "must be object at the root")
            if schema.get("type")
            else required_value(f"{path}.type", "must not be empty at the root")
        )
    _node(schema, path, errors)
    return errors


def _node(schema: Any, path: str, errors: list[FieldError]) -> None:
    if not isinstance(schema, dict):
        errors.append(invalid_value(path, schema, "must be an object"))
        return
    type_ = schema.get("type")
    loose = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if not type_ and not loose:
        errors.append(required_value(f"{path}.type", "must not be empty for specified object fields"))
    elif type_ and type_ not in TYPES:
        errors.append(not_supported(f"{path}.type", type_, TYPES))
    if "default" in schema and schema["default"] is not None:
        errors += value_errors(Node(schema), schema["default"], f"{path}.default")
    if "$ref" in schema:
        errors.append(forbidden_value(f"{path}.$ref", "$ref is not supported"))
    if schema.get("uniqueItems"):
        errors.append(
            forbidden_value(
                f"{path}.uniqueItems",
                "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            )
        )
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and go_regex(pattern) is None:
        errors.append(invalid_value(f"{path}.pattern", pattern, "must be a valid regular expression"))
    if type_ == "array" and not isinstance(schema.get("items"), dict):
        errors.append(required_value(f"{path}.items", "must be specified"))
    if schema.get("properties") and schema.get("additionalProperties"):
        errors.append(
            forbidden_value(
                f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive"
            )
        )
    for name, one in (schema.get("properties") or {}).items():
        _node(one, f"{path}.properties[{name}]", errors)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            _node(schema[name], f"{path}.{name}", errors)
    for word in _LOGIC:
        for index, one in enumerate(schema.get(word) or []):
            _only_values(one, f"{path}.{word}[{index}]", errors)


def _only_values(schema: Any, path: str, errors: list[FieldError]) -> None:
    """Inside the logical words there is nothing that would change an object."""
    if not isinstance(schema, dict):
        errors.append(invalid_value(path, schema, "must be an object"))
        return
    for word in (
        "default",
        "nullable",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
    ):
        if schema.get(word) is not None:
            errors.append(forbidden_value(f"{path}.{word}", "must be undefined to be structural"))
