"""The built-in types: which fields they have, read from the tables in `types/`.

One line is one type: its name, then its fields as `NAME[!]:TYPE[#TAG][~KEY]`.

    !       always present in what Kubernetes writes
    ^       instead of a name: the fields of that type stand in this one (a message of their own in protobuf)
    TYPE    string, bool, int32, int64, float, bytes, time, microtime, quantity, intorstr, any;
            []TYPE a list, {}TYPE a map with string keys, else the name of another type
    #TAG    the field's number in protobuf
    ~KEY    a strategic merge patch merges this list by KEY (~ alone: a list of plain values that is merged)

The same table serves decoding (what is unknown, what has the wrong type), OpenAPI, protobuf and patches.
"""

from __future__ import annotations

import base64
import binascii
import re
from functools import cache
from importlib import resources
from typing import Any, Final

from hotvirt.api.quantity import Quantity
from hotvirt.kube.patch.copy import copied

SCALARS: Final = frozenset(
    ["string", "bool", "int32", "int64", "float", "bytes", "time", "microtime", "quantity", "intorstr", "any"]
)
_LIMITS: Final = {"int32": 2**31, "int64": 2**63}
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)\Z")
_FIELD: Final = re.compile(
    r"(?P<name>\^|[^:!]+)(?P<always>!?):(?P<type>[^#~]+)(#(?P<tag>\d+))?(?P<merge>~(?P<key>\w*))?\Z"
)


class WrongType(Exception):
    """A value that does not fit its field."""


class Type:
    """A list, a map, a scalar or a struct."""

    __slots__ = ("element", "form", "name")

    def __init__(self, text: str) -> None:
        self.element: Type | None = None
        self.name = text
        if text.startswith("[]"):
            self.form, self.element = "list", Type(text[2:])
        elif text.startswith("{}"):
            self.form, self.element = "map", Type(text[2:])
        else:
            self.form = "scalar" if text in SCALARS else "struct"

    @property
    def struct(self) -> Struct:
        return struct(self.name)

    @property
    def go(self) -> str:
        """The name a Go program would print."""
        if self.form == "list" and self.element:
            return f"[]{self.element.go}"
        if self.form == "map" and self.element:
            return f"map[string]{self.element.go}"
        if self.form == "struct":
            return f"v1.{self.name.split('.')[-1]}"
        return {"time": "v1.Time", "microtime": "v1.MicroTime", "quantity": "resource.Quantity"}.get(
            self.name, self.name
        )


class Field:
    __slots__ = ("always", "inline", "merge_key", "merges", "name", "tag", "type")

    def __init__(self, text: str) -> None:
        found = _FIELD.match(text)
        assert found is not None, text
        self.name: str = found["name"]
        self.inline = self.name == "^"
        self.always = bool(found["always"])
        self.type = Type(found["type"])
        self.tag = int(found["tag"] or 0)
        self.merges = found["merge"] is not None
        self.merge_key: str = found["key"] or ""


class Struct:
    __slots__ = ("fields", "name", "own_fields")

    def __init__(self, name: str, own_fields: list[Field]) -> None:
        self.name = name
        self.own_fields = own_fields
        self.fields: dict[str, Field] = {}
        """By JSON name, with the fields of the inlined types."""
        for field in own_fields:
            if field.inline:
                self.fields.update(field.type.struct.fields)
            else:
                self.fields[field.name] = field

    @property
    def short_name(self) -> str:
        return self.name.split(".")[-1]


@cache
def _lines() -> dict[str, str]:
    lines: dict[str, str] = {}
    for file in ("core.txt", "groups.txt"):
        text = resources.files(__package__).joinpath("types", file).read_text()
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, rest = line.partition(" ")
                lines[name] = rest
    return lines


@cache
def struct(name: str) -> Struct:
    return Struct(name, [Field(text) for text in _lines()[name].split()])


def object_fields(name: str) -> Struct:
    """The struct of a whole object: what the table says, and apiVersion and kind."""
    known = struct(name)
    whole = Struct(known.name, known.own_fields)
    whole.fields = {"apiVersion": _API_VERSION, "kind": _KIND, **known.fields}
    return whole


_API_VERSION: Final = Field("apiVersion:string")
_KIND: Final = Field("kind:string")


def json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return "array"
    return "object" if isinstance(value, dict) else "null"


def conform(
    whole: Struct, value: dict[str, Any], unknown: list[str], known: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The value with unknown fields and nulls left out; paths of the unknown ones are added to `unknown`.

    `known` conforms already: what is the same there is copied from there.
    """
    if not known:
        return _conform_struct(whole, value, "", unknown)
    same = {name for name, one in value.items() if name in known and known[name] == one}
    rest = {name: one for name, one in value.items() if name not in same}
    changed = _conform_struct(whole, rest, "", unknown)
    return {
        name: copied(known[name]) if name in same else changed[name]
        for name in value
        if name in same or name in changed
    }


def _conform_struct(of: Struct, value: Any, path: str, unknown: list[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _mismatch(value, of.short_name, path, f"v1.{of.short_name}")
    kept: dict[str, Any] = {}
    for name, one in value.items():
        here = f"{path}.{name}" if path else name
        field = of.fields.get(name)
        if field is None:
            unknown.append(here)
        elif one is not None:
            kept[name] = _conform(field.type, one, here, of, unknown)
    return kept


def _conform(of: Type, value: Any, path: str, owner: Struct, unknown: list[str]) -> Any:
    if of.form == "struct":
        return _conform_struct(of.struct, value, path, unknown)
    if of.form == "scalar":
        return _conform_scalar(of, value, path, owner)
    assert of.element is not None
    if of.form == "list":
        if not isinstance(value, list):
            raise _mismatch(value, owner.short_name, path, of.go)
        return [
            _conform(of.element, one, f"{path}[{index}]", owner, unknown)
            for index, one in enumerate(value)
            if one is not None
        ]
    if not isinstance(value, dict):
        raise _mismatch(value, owner.short_name, path, of.go)
    return {
        name: ""
        if one is None
        else _conform(
            of.element, one, path if of.element.form == "scalar" else f"{path}.{name}", owner, unknown
        )
        for name, one in value.items()
        if one is not None or of.element.name == "string"
    }


def _conform_scalar(of: Type, value: Any, path: str, owner: Struct) -> Any:
    name = of.name
    if name == "any":
        return value
    if name == "string":
        if isinstance(value, str):
            return value
    elif name == "bool":
        if isinstance(value, bool):
            return value
    elif name in _LIMITS:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and -_LIMITS[name] <= value < _LIMITS[name]:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            raise WrongType(
                f"json: cannot unmarshal number {value} into Go struct field {path} of type {name}"
            )
    elif name == "float":
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
    elif name == "intorstr":
        if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
            return value
    elif name in ("time", "microtime"):
        if isinstance(value, str):
            if not _TIME.match(value):
                raise WrongType(
                    f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}" as "2006"'
                )
            return value
    elif name == "bytes":
        if isinstance(value, str):
            try:
                base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                raise WrongType("illegal base64 data at input byte 0") from None
            return value
    elif name == "quantity" and isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value)
        if Quantity.parse_error(text) is not None:
            raise WrongType(
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            )
        return str(Quantity(text))
    raise _mismatch(value, owner.short_name, path, of.go)


def _mismatch(value: Any, owner: str, path: str, go_type: str) -> WrongType:
    where = re.sub(r"\[\d+\]", "", path)
    return WrongType(
        f"json: cannot unmarshal {json_type(value)} into Go struct field {owner}.{where} of type {go_type}"
    )
