"""Events are kept for an hour after they were last seen, as on a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from hotvirt.api.meta import parse_time

from .objects import Object
from .store import Entry

if TYPE_CHECKING:
    from .api import Api

EVENTS_SECONDS: Final = 3600.0


async def drop_old_events(api: Api, now: float | None = None) -> int:
    """Delete the events that are too old; returns how many."""
    oldest = (now if now is not None else time.time()) - EVENTS_SECONDS
    kind = api.registry.find("", "v1", "events")
    assert kind is not None
    dropped = 0
    for entry in list(api.store.entries("events")):
        if _last_seen(entry) >= oldest:
            continue
        async with api.store.lock(entry.key):
            current = api.store.get(entry.key)
            if current is not None and _last_seen(current) < oldest:
                await api.writer.remove(entry.key, kind, msgspec.json.decode(current.data))
                dropped += 1
    return dropped


def _last_seen(entry: Entry) -> float:
    event: Object = msgspec.json.decode(entry.data)
    times = [
        event["metadata"].get("creationTimestamp"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        (event.get("series") or {}).get("lastObservedTime"),
    ]
    return max((parse_time(one) for one in times if one), default=0.0)
