"""Events have two faces: core/v1, as they are stored and as kubectl reads them, and events.k8s.io/v1."""

from __future__ import annotations

from typing import Any, Final

# events.k8s.io/v1 → core/v1; everything else has the same name in both.
_RENAMED: Final = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_BACK: Final = {core: new for new, core in _RENAMED.items()}


def to_core(event: dict[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(name, name): value for name, value in event.items()} | {"apiVersion": "v1"}


def from_core(event: dict[str, Any]) -> dict[str, Any]:
    renamed = {_BACK.get(name, name): value for name, value in event.items()}
    return renamed | {"apiVersion": "events.k8s.io/v1"}
