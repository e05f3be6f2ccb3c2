"""What `kubectl explain` says, read from `descriptions.yaml` beside this file."""

from __future__ import annotations

from typing import Final

from hotvirt.api.crd.tables import table

KEPT: Final = "Kept as written; Hotvirt does not act on it."


def of_kind(kind: str) -> str:
    return str(table("descriptions.yaml")["kinds"][kind])


def of_field(type_name: str, field: str) -> str | None:
    text = table("descriptions.yaml")["fields"].get(type_name, {}).get(field)
    return None if text is None else str(text)


def described_fields() -> set[tuple[str, str]]:
    """Every (type, field) that has a description."""
    return {
        (name, field) for name, fields in table("descriptions.yaml")["fields"].items() for field in fields
    }
