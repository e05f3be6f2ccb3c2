"""What `kubectl explain` says, read from `descriptions.yaml` beside this file."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml

KEPT: Final = "Kept as written; Hotvirt does not act on it."


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("descriptions.yaml").read_text())
    return table


def of_kind(kind: str) -> str:
    return str(_table()["kinds"][kind])


def of_field(type_name: str, field: str) -> str | None:
    text = _table()["fields"].get(type_name, {}).get(field)
    return None if text is None else str(text)


def described_fields() -> set[tuple[str, str]]:
    """Every (type, field) that has a description."""
    return {(name, field) for name, fields in _table()["fields"].items() for field in fields}
