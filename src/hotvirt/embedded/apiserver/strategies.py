"""What is particular to a kind: defaults, checks, and what an update may change."""

from __future__ import annotations

from typing import Any

from .call import Call
from .errors import FieldError
from .kinds import Kind

Object = dict[str, Any]


class Strategy:
    """The behaviour of a kind that has no rules of its own; every kind's strategy starts from this."""

    unconditional_update = True
    """An update without a resourceVersion overwrites whatever is there."""
    create_on_update = False
    """An update of an object that is not there makes it."""
    returns_deleted = False
    """A delete answers with the object instead of a Status."""
    graceful = False
    """The last state of a deleted object says when it was deleted."""
    has_grace = True
    """An object that is being deleted says how long it has; namespaces do not."""
    keeps_status = False
    """The status of a new object is kept as it was sent."""

    def own_part(self, call: Call, old: Object, new: Object) -> Object | None:
        """For a subresource other than the status: `old` with what this subresource may change of it."""
        return None

    def prepare_create(self, call: Call, obj: Object) -> None:
        """Fill in defaults."""

    def validate_create(self, obj: Object) -> list[FieldError]:
        return []

    async def admit_create(self, call: Call, obj: Object) -> None:
        """The last word, after all validation."""

    def settled(self, obj: Object) -> None:
        """What was admitted is stored, or will never be."""

    def prepare_update(self, call: Call, old: Object, new: Object) -> None:
        """Fill in defaults, and take back what may not change."""

    def validate_update(self, call: Call, old: Object, new: Object) -> list[FieldError]:
        return []

    async def admit_update(self, call: Call, old: Object, new: Object) -> None:
        """The last word, after all validation."""

    def grace(self, obj: Object, asked: int | None) -> int:
        """Seconds between the wish to delete an object and its end; only Pods have any."""
        return 0

    def check_delete(self, obj: Object) -> None:
        """Refuse to delete what has to stay."""

    def before_delete(self, obj: Object) -> None:
        """Put on what holds the object until its own affairs are in order."""

    def prepare_delete(self, obj: Object) -> None:
        """Called when the object begins to be deleted and has something to wait for."""


class CustomStrategy(Strategy):
    unconditional_update = False


class Strategies:
    def __init__(self, known: dict[str, Strategy]) -> None:
        self._known = known
        self._plain = Strategy()
        self._custom = CustomStrategy()

    def of(self, kind: Kind) -> Strategy:
        if kind.custom:
            return self._custom
        return self._known.get(kind.store_key, self._plain)
