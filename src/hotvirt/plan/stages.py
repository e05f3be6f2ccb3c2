"""The reasons of a change of size that goes on as it should: apart, for a command line that starts fast."""

from __future__ import annotations

from typing import Final

WELL: Final = frozenset({"PodResize", "PodResizeInProgress", "GuestPending"})
