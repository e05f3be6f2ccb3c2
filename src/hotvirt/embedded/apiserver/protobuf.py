"""Request bodies in Kubernetes' protobuf: `kubectl create configmap`, `auth can-i` send nothing else.

A body is `k8s\\0` and a message Unknown: 1 is the TypeMeta (1 apiVersion, 2 kind), 2 the object.
"""

from __future__ import annotations

import base64
import struct as binary
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from .types import Struct, Type

MAGIC: Final = b"k8s\0"
CONTENT_TYPE: Final = "application/vnd.kubernetes.protobuf"


class BadProtobuf(Exception):
    """The body is not what it says it is."""


def unwrap(body: bytes) -> tuple[str, str, bytes]:
    """apiVersion, kind and the encoded object of a body."""
    if not body.startswith(MAGIC):
        raise BadProtobuf("the body does not start with the four bytes of Kubernetes' protobuf")
    api_version = kind = ""
    raw = b""
    for tag, value in _fields(memoryview(body)[4:]):
        if tag == 1:
            for inner, text in _fields(value):
                if inner == 1:
                    api_version = bytes(text).decode()
                elif inner == 2:
                    kind = bytes(text).decode()
        elif tag == 2:
            raw = bytes(value)
    return api_version, kind, raw


def decode(of: Struct, raw: bytes | memoryview) -> dict[str, Any]:
    """The JSON form of a message. What is empty or zero is left out, as omitempty does."""
    by_tag = {field.tag: field for field in of.own_fields if field.tag}
    result: dict[str, Any] = {}
    for tag, value in _fields(memoryview(raw)):
        field = by_tag.get(tag)
        if field is None:
            continue
        if field.inline:
            result.update(decode(field.type.struct, value))
        elif field.type.form == "list":
            assert field.type.element is not None
            result.setdefault(field.name, []).append(_value(field.type.element, value))
        elif field.type.form == "map":
            assert field.type.element is not None
            entry = dict(_fields(value))
            key = bytes(entry.get(1, b"")).decode()
            result.setdefault(field.name, {})[key] = _value(field.type.element, entry.get(2, b""))
        else:
            one = _value(field.type, value)
            if one not in ("", 0, False, None, {}):
                result[field.name] = one
    return result


def _value(of: Type, value: Any) -> Any:
    if of.form == "struct":
        return decode(of.struct, value)
    name = of.name
    if name in ("int32", "int64"):
        return value - (1 << 64) if value >= 1 << 63 else value
    if name == "bool":
        return bool(value)
    if name == "float":
        return binary.unpack("<d", value.to_bytes(8, "little"))[0]
    if name == "string":
        return bytes(value).decode()
    if name == "bytes":
        return base64.b64encode(value).decode()
    parts = dict(_fields(value))
    if name in ("time", "microtime"):
        if not parts.get(1):
            return None
        moment = datetime.fromtimestamp(parts[1], UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    if name == "quantity":
        return bytes(parts.get(1, b"")).decode()
    if name == "intorstr":
        return bytes(parts.get(3, b"")).decode() if parts.get(1) else parts.get(2, 0)
    raise BadProtobuf(f"a value of type {name} cannot be sent as protobuf here: send JSON")


def _fields(data: memoryview | bytes) -> Iterator[tuple[int, Any]]:
    data = memoryview(data)
    at = 0
    try:
        while at < len(data):
            key, at = _varint(data, at)
            tag, wire = key >> 3, key & 7
            value: Any
            if wire == 0:
                value, at = _varint(data, at)
            elif wire == 1:
                value, at = int.from_bytes(data[at : at + 8], "little"), at + 8
            elif wire == 2:
                size, at = _varint(data, at)
                if at + size > len(data):
                    raise BadProtobuf("the body ends in the middle of a field")
                value, at = data[at : at + size], at + size
            elif wire == 5:
                value, at = int.from_bytes(data[at : at + 4], "little"), at + 4
            else:
                raise BadProtobuf(f"wire type {wire} is not known")
            yield tag, value
    except IndexError:
        raise BadProtobuf("the body ends in the middle of a number") from None


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise BadProtobuf("a number is too long")
