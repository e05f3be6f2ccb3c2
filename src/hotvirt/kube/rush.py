"""Who goes first when there is more to do than can be done at once, over all queues of one process.

What somebody waits for is done first; then what was done is told; then it is told to those one step further.
So a thousand VMs that are made at once start one after the other, and are not slowed down by news of those
that have started. Nothing waits for longer than `LONGEST_BEHIND` because of others.
"""

from __future__ import annotations

import asyncio
import enum
from typing import Final, Protocol


class Priority(enum.IntEnum):
    CHANGE = 0
    """Somebody did something, and waits for what comes of it."""
    REPORT = 1
    """What was done is written into the status of that for which it was done."""
    MIRROR = 2
    """The status of one thing is shown by another, best when it has been written."""
    RESYNC = 3
    """Looked at again for safety's sake: waits in its own queue only."""


LONGEST_BEHIND: Final = 15.0
"""Seconds after which a report is as urgent as anything else."""


class Line(Protocol):
    """A queue, as the others see it."""

    def waits(self, up_to: Priority) -> bool:
        """Whether anything of this priority or a higher one waits here."""

    def look_again(self) -> None:
        """What stood in the way may be gone."""


class Rush:
    """Shared by the queues of controllers that work side by side, and by the events that tell of it."""

    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._over = asyncio.Event()
        self._over.set()

    def join(self, line: Line) -> None:
        self._lines.append(line)

    def holds_back(self, priority: Priority) -> bool:
        """Whether something more urgent waits anywhere."""
        if priority in (Priority.CHANGE, Priority.RESYNC):
            return False
        return self._any(Priority(priority - 1))

    @property
    def is_on(self) -> bool:
        return self._any(Priority.MIRROR)

    def _any(self, up_to: Priority) -> bool:
        return any(line.waits(up_to) for line in self._lines)

    def grew(self) -> None:
        """Something that is not just a look for safety's sake waits now."""
        self._over.clear()

    def shrank(self) -> None:
        """The last of its priority was taken out of one of the queues."""
        for line in self._lines:
            line.look_again()
        if not self.is_on:
            self._over.set()

    async def over(self) -> None:
        """Wait until nothing waits in any of the queues."""
        await self._over.wait()
