"""Between the API's bytes and what the client hands out: pages of a list, lines of a watch, objects."""

from __future__ import annotations

from typing import Any

import msgspec

from hotvirt.api import codec
from hotvirt.api.resources import Resource


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[msgspec.Raw] | None = None


class Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


decode_page = msgspec.json.Decoder(Page).decode
decode_line = msgspec.json.Decoder(Line).decode


def decode_as(data: bytes, cls: type[Any]) -> Any:
    if cls is bytes:
        return data
    if cls is dict:
        return msgspec.json.decode(data) if data else {}
    return codec.decode(data, cls)


def item_as(raw: msgspec.Raw, cls: type[Any], resource: Resource) -> Any:
    """An item of a list or an event. Lists of built-in kinds leave out what the items are."""
    if cls is msgspec.Raw:
        return raw
    if cls is dict:
        item = msgspec.json.decode(raw)
        if isinstance(item, dict):
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
        return item
    return codec.decode(bytes(raw), cls)


def selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    params: dict[str, str] = {}
    if label_selector:
        params["labelSelector"] = label_selector
    if field_selector:
        params["fieldSelector"] = field_selector
    return params
