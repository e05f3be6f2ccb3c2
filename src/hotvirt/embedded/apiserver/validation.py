"""Is a custom resource what its schema says? Every cause is named by its field path, in Kubernetes' words."""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from hotvirt.api.meta import parse_time

from .errors import (
    FieldError,
    duplicate_value,
    invalid_value,
    not_supported,
    required_value,
    wrong_type,
)
from .schema import Node

_GO_CLASSES: Final = {r"\z": r"\Z", r"\pL": r"[^\W\d_]", r"\p{L}": r"[^\W\d_]"}


@lru_cache(1024)
def go_regex(pattern: str) -> re.Pattern[str] | None:
    """Go's expressions are nearly Python's; one that is not is never enforced (and refused in a new CRD)."""
    for go, python in _GO_CLASSES.items():
        pattern = pattern.replace(go, python)
    try:
        return re.compile(pattern)
    except re.error:
        return None


def type_name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _whole_number(node: Node, value: Any) -> bool:
    """JSON knows one sort of number: 2.0 is an integer too."""
    return node.type == "integer" and type(value) is float and value.is_integer()


def validate(root: Node, obj: dict[str, Any], old: dict[str, Any] | None = None) -> list[FieldError]:
    """All causes. Metadata is not looked at: it has rules of its own.

    What is as it was in `old` is not looked at again: most writes change the status alone.
    """
    errors: list[FieldError] = []
    before = old or {}
    body = {
        name: one
        for name, one in obj.items()
        if name not in ("apiVersion", "kind", "metadata") and (name not in before or one != before[name])
    }
    for name in root.required:
        if name not in obj:
            errors.append(required_value(name))
    for name, value in body.items():
        node = root.props.get(name)
        if node is not None and not _right(node, value):
            _validate(node, value, name, errors)
    _logic(root, obj, "", errors)
    return errors


def _right(node: Node, value: Any) -> bool:
    """The same question with no more than a yes or a no, and so at half the cost: most objects are right."""
    if node.checked or value is None:
        return _passes(node, value, "")
    kind = type(value)
    if node.python_types and kind not in node.python_types:
        return False
    if kind is dict:
        props, extra = node.props, node.extra
        for name in node.required:
            if name not in value:
                return False
        for name, one in value.items():
            known = props.get(name) or extra
            if known is None or (known.plain and type(one) in known.python_types):
                continue
            if not _right(known, one):
                return False
    elif kind is list and node.items is not None:
        items = node.items
        for one in value:
            if not _right(items, one):
                return False
    return True


def value_errors(node: Node, value: Any, path: str) -> list[FieldError]:
    """All causes of one value below the root."""
    errors: list[FieldError] = []
    _validate(node, value, path, errors)
    return errors


def _validate(node: Node, value: Any, path: str, errors: list[FieldError]) -> None:
    if value is None:
        if not node.nullable and node.type:
            errors.append(wrong_type(path, "null", f'{path} in body must be of type {node.type}: "null"'))
        return
    if node.python_types and type(value) not in node.python_types and not _whole_number(node, value):
        wanted = "integer,string" if node.int_or_string else node.type
        said = f'{path} in body must be of type {wanted}: "{type_name(value)}"'
        errors.append(wrong_type(path, type_name(value), said))
        return
    if node.enum is not None and value not in node.enum:
        errors.append(not_supported(path, value, node.enum))
    if isinstance(value, dict):
        _object(node, value, path, errors)
    elif isinstance(value, list):
        _array(node, value, path, errors)
    elif isinstance(value, str):
        _string(node, value, path, errors)
    elif not isinstance(value, bool):
        _number(node, value, path, errors)
    if node.all_of or node.any_of or node.one_of or node.negated:
        _logic(node, value, path, errors)


def _too_many(count: int, most: int) -> str:
    return f"Too many: {count}: must have at most {most} item{'' if most == 1 else 's'}"


def _object(node: Node, value: dict[str, Any], path: str, errors: list[FieldError]) -> None:
    for name in node.required:
        if name not in value:
            errors.append(required_value(f"{path}.{name}" if path else name))
    if node.embedded:
        for name in ("apiVersion", "kind"):
            if not value.get(name):
                errors.append(required_value(f"{path}.{name}", "must not be empty"))
    props, extra = node.props, node.extra
    for name, one in value.items():
        known = props.get(name) or extra
        if known is not None and not (known.plain and type(one) in known.python_types):
            _validate(known, one, f"{path}.{name}" if path else name, errors)
    if node.min_properties is not None and len(value) < node.min_properties:
        said = f"{path} in body should have at least {node.min_properties} properties"
        errors.append(invalid_value(path, len(value), said))
    if node.max_properties is not None and len(value) > node.max_properties:
        errors.append(
            FieldError(
                path,
                "FieldValueTooMany",
                _too_many(len(value), node.max_properties),
            )
        )


def _array(node: Node, value: list[Any], path: str, errors: list[FieldError]) -> None:
    if node.items is not None:
        for index, one in enumerate(value):
            _validate(node.items, one, f"{path}[{index}]", errors)
    if node.min_items is not None and len(value) < node.min_items:
        errors.append(
            invalid_value(path, len(value), f"{path} in body should have at least {node.min_items} items")
        )
    if node.max_items is not None and len(value) > node.max_items:
        errors.append(FieldError(path, "FieldValueTooMany", _too_many(len(value), node.max_items)))
    if node.list_type == "map" or node.list_type == "set" or node.unique_items:
        _unique(node, value, path, errors)


def _unique(node: Node, value: list[Any], path: str, errors: list[FieldError]) -> None:
    seen: set[bytes] = set()
    for index, one in enumerate(value):
        identity = one
        if node.list_type == "map":
            if not isinstance(one, dict):
                continue
            identity = {key: one.get(key) for key in node.list_keys}
        encoded = msgspec.json.encode(identity, order="sorted")
        if encoded in seen:
            errors.append(duplicate_value(f"{path}[{index}]", identity))
        seen.add(encoded)


def _string(node: Node, value: str, path: str, errors: list[FieldError]) -> None:
    if node.min_length is not None and len(value) < node.min_length:
        said = f"{path} in body should be at least {node.min_length} chars long"
        errors.append(invalid_value(path, value, said))
    if node.max_length is not None and len(value) > node.max_length:
        errors.append(
            FieldError(path, "FieldValueTooLong", f"Too long: may not be more than {node.max_length} bytes")
        )
    if node.pattern is not None:
        expression = go_regex(node.pattern)
        if expression is not None and not expression.search(value):
            errors.append(invalid_value(path, value, f"{path} in body should match '{node.pattern}'"))
    if node.format and not _has_format(node.format, value):
        said = f'{path} in body must be of type {node.format}: "{value}"'
        errors.append(wrong_type(path, value, said))


def _has_format(format_: str, value: str) -> bool:
    try:
        if format_ == "date-time":
            parse_time(value)
        elif format_ == "date":
            datetime.strptime(value, "%Y-%m-%d")
    except ValueError:
        return False
    if format_ == "uuid":
        return (
            re.fullmatch(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", value)
            is not None
        )
    return True


def _number(node: Node, value: float, path: str, errors: list[FieldError]) -> None:
    low, high = node.minimum, node.maximum
    if low is not None and (value < low or (node.exclusive_minimum and value == low)):
        than = "greater than" if node.exclusive_minimum else "greater than or equal to"
        errors.append(invalid_value(path, value, f"{path} in body should be {than} {low:g}"))
    if high is not None and (value > high or (node.exclusive_maximum and value == high)):
        than = "less than" if node.exclusive_maximum else "less than or equal to"
        errors.append(invalid_value(path, value, f"{path} in body should be {than} {high:g}"))
    if node.multiple_of and value % node.multiple_of:
        errors.append(
            invalid_value(path, value, f"{path} in body should be a multiple of {node.multiple_of:g}")
        )
    limits = {"int32": 2**31, "int64": 2**63}.get(node.format)
    if limits and not -limits <= value < limits:
        said = f'{path} in body must be of type {node.format}: "{value}"'
        errors.append(invalid_value(path, value, said))


def _logic(node: Node, value: Any, path: str, errors: list[FieldError]) -> None:
    for one in node.all_of:
        _validate(one, value, path, errors)
    if node.any_of and not any(_passes(one, value, path) for one in node.any_of):
        errors.append(invalid_value(path, value, f'"{path}" must validate at least one schema (anyOf)'))
    if node.one_of:
        passing = sum(_passes(one, value, path) for one in node.one_of)
        if passing != 1:
            found = "Found none valid" if passing == 0 else f"Found {passing} valid alternatives"
            said = f'"{path}" must validate one and only one schema (oneOf). {found}'
            errors.append(invalid_value(path, value, said))
    if node.negated is not None and _passes(node.negated, value, path):
        errors.append(invalid_value(path, value, f'"{path}" must not validate the schema (not)'))


def _passes(node: Node, value: Any, path: str) -> bool:
    errors: list[FieldError] = []
    _validate(node, value, path, errors)
    return not errors
