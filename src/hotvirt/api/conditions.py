"""Conditions: what is true of an object, since when and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from hotvirt.api.meta import Struct, now

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"


class Condition(Struct, frozen=True):
    type: str
    status: str = UNKNOWN
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_probe_time: str | None = None
    observed_generation: int | None = None


def find(conditions: Iterable[Condition], type: str) -> Condition | None:
    """The condition of that type, if there is one."""
    return next((condition for condition in conditions if condition.type == type), None)


def is_true(conditions: Iterable[Condition], type: str) -> bool:
    """Whether there is such a condition and it is True."""
    found = find(conditions, type)
    return found is not None and found.status == TRUE


def set_condition(conditions: Sequence[Condition], new: Condition) -> list[Condition]:
    """The conditions with the new one in its place.

    The time of the last transition stays when the status did not change: a repeated sync writes nothing.
    """
    old = find(conditions, new.type)
    if old is not None and old.status == new.status and old.last_transition_time:
        new = msgspec.structs.replace(new, last_transition_time=old.last_transition_time)
    elif new.last_transition_time is None:
        new = msgspec.structs.replace(new, last_transition_time=now())
    if old is None:
        return [*conditions, new]
    return [new if condition.type == new.type else condition for condition in conditions]


def remove(conditions: Iterable[Condition], type: str) -> list[Condition]:
    """The conditions without the one of that type."""
    return [condition for condition in conditions if condition.type != type]
