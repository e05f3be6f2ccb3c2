"""Tables: what `kubectl get` prints. The server makes the columns, the client only lays them out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from hotvirt.api.meta import parse_time

from .jsonpath import BadPath, JsonPath, shown
from .kinds import Kind
from .store import Entry
from .write import load

Object = dict[str, Any]
Cells = Callable[[Object], list[Any]]
Columns = tuple[list[Object], Cells]
NAME = "Name must be unique within a namespace."
AGE = "The time at which the object was created."


def column(
    name: str, type_: str = "string", priority: int = 0, description: str = "", format_: str = ""
) -> Object:
    return {
        "name": name,
        "type": type_,
        "format": format_,
        "description": description or name,
        "priority": priority,
    }


NAME_COLUMN = column("Name", description=NAME, format_="name")
AGE_COLUMN = column("Age", description=AGE)


def human(seconds: float) -> str:
    """A duration as kubectl shows it: 90s, 5m30s, 3h, 2d4h."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    if total < 0:
        return "0s"
    if total < 120:
        return f"{total}s"
    for unit, step, low, high, inner, inner_step in (
        ("m", 60, 10, 180, "s", 1),
        ("h", 3600, 8, 48, "m", 60),
        ("d", 86400, 8, 730, "h", 3600),
    ):
        count = total // step
        if count < low:
            rest = total % step // inner_step
            return f"{count}{unit}{rest}{inner}" if rest else f"{count}{unit}"
        if count < high:
            return f"{count}{unit}"
    years, days = divmod(total // 86400, 365)
    return f"{years}y{days}d" if years < 8 and days else f"{years}y"


def age(timestamp: Any) -> str:
    if not timestamp:
        return "<unknown>"
    try:
        return human(datetime.now(UTC).timestamp() - parse_time(timestamp))
    except ValueError:
        return "<invalid>"


def object_age(obj: Object) -> str:
    return age(obj["metadata"].get("creationTimestamp"))


def printer_columns(definitions: tuple[Object, ...]) -> Columns:
    """The columns of a custom resource; without any of its own it has an Age."""
    if not definitions:
        definitions = (
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": AGE},
        )
    heads, paths = [NAME_COLUMN], []
    for one in definitions:
        heads.append(
            column(
                one["name"],
                one.get("type", "string"),
                one.get("priority", 0),
                one.get("description")
                or f"Custom resource definition column (in JSONPath format): {one.get('jsonPath')}",
                one.get("format", ""),
            )
        )
        try:
            paths.append((JsonPath(one.get("jsonPath", "")), one.get("type", "string")))
        except BadPath:
            paths.append((JsonPath(".no such field"), "string"))

    def cells(obj: Object) -> list[Any]:
        row: list[Any] = [obj["metadata"]["name"]]
        for path, type_ in paths:
            found = path.find(obj)
            row.append(_cell(type_, found[0]) if found else None)
        return row

    return heads, cells


def _cell(type_: str, value: Any) -> Any:
    if value is None:
        return None
    if type_ == "string":
        return shown(value)
    if type_ == "date":
        return age(value) if isinstance(value, str) else None
    if type_ == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if type_ == "integer" else float(value)


class Tables:
    def __init__(self) -> None:
        # A CRD that changes makes new kinds; the columns of the old ones go with them.
        self._known: WeakKeyDictionary[Kind, Columns] = WeakKeyDictionary()

    def columns(self, kind: Kind) -> Columns:
        known = self._known.get(kind)
        if known is None:
            from .columns import builtin_columns

            known = builtin_columns(kind) if not kind.custom else printer_columns(kind.columns or ())
            self._known[kind] = known
        return known

    def table(
        self, kind: Kind, entries: list[Entry], version: str, included: str, metadata: Object
    ) -> Object:
        heads, cells = self.columns(kind)
        return _table(
            version, metadata, heads, [self._row(kind, cells, entry, included) for entry in entries]
        )

    def _row(self, kind: Kind, cells: Cells, entry: Entry, included: str) -> Object:
        obj = load(kind, entry)
        row: Object = {"cells": cells(obj)}
        if included == "Object":
            row["object"] = obj
        elif included == "Metadata":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": obj["metadata"],
            }
        return row

    def watch_renderer(self, kind: Kind, version: str, included: str) -> Callable[[str, Entry], bytes]:
        """Events whose objects are Tables of one row; only the first has the column definitions."""
        heads, cells = self.columns(kind)
        first = True

        def render(type_: str, entry: Entry) -> bytes:
            nonlocal first
            row = self._row(kind, cells, entry, included)
            metadata = {"resourceVersion": str(entry.rev)}
            table = _table(version, metadata, heads if first else None, [row])
            first = False
            return msgspec.json.encode({"type": type_, "object": table}) + b"\n"

        return render


def _table(version: str, metadata: Object, heads: list[Object] | None, rows: list[Object]) -> Object:
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": metadata,
        "columnDefinitions": heads,
        "rows": rows,
    }
