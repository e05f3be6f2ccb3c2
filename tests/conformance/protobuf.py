"""Just enough of the protobuf wire format to write the bodies that kubectl writes."""

from __future__ import annotations

Field = tuple[int, "bytes | str | int | list[Field]"]


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def message(*fields: Field) -> bytes:
    """Fields as (number, value): text, bytes, a whole number, or the fields of a nested message."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
            continue
        data = message(*value) if isinstance(value, list) else value
        data = data.encode() if isinstance(data, str) else data
        out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def body(api_version: str, kind: str, *fields: Field) -> bytes:
    """An object in Kubernetes' envelope: four magic bytes and an Unknown with the type and the raw object."""
    return b"k8s\0" + message((1, [(1, api_version), (2, kind)]), (2, message(*fields)))
