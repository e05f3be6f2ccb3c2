"""The table of upstream field names, read from `upstream.yaml` beside this file."""

from __future__ import annotations

from functools import cache
from typing import Any

from hotvirt.api.crd.shapes import LEAVES, MapOf, Shape
from hotvirt.api.crd.tables import table


@cache
def upstream_fields() -> dict[str, Shape]:
    """By name of a type of ours: the further fields that KubeVirt knows in that place."""
    written = table("upstream.yaml")
    return {name: _resolved(fields, written["shapes"]) for name, fields in written["types"].items()}


def _resolved(written: Any, shapes: dict[str, Any]) -> Any:
    if isinstance(written, str):
        if written.startswith("$"):
            return _resolved(shapes[written[1:]], shapes)
        return LEAVES[written]
    if isinstance(written, list):
        return [_resolved(written[0], shapes)]
    if "*" in written:
        return MapOf(_resolved(written["*"], shapes))
    return {name: _resolved(inner, shapes) for name, inner in written.items()}
