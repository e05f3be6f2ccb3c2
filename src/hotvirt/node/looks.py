"""The last look at a machine: a change comes as several edits of its VMI, and one look answers for all.

A look costs questions to the hypervisor and to the guest. To say what is true it counts for a moment only,
and for one generation of the VMI. To begin a change it counts longer: behind that the machine is looked at
again. It never counts beyond anything that the machine itself tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from hotvirt.hypervisor.driver import Observed, RunningMachine

RECENT: Final = 1.0
# So long a generation that waits for its grant may wait to be said as observed: with the size it leads to.
HOLD: Final = 5.0

# What the guest tells only after a change has settled is looked at then.
SOON: Final = 0.5


class Looks:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: Observed | None = None
        self._at = 0.0
        self._generation = 0
        self._told = 0
        self._held = (0, 0.0)

    def forget(self) -> None:
        """The machine told something, or it is time to look for oneself."""
        self._last = None
        self._told += 1

    @property
    def last(self) -> Observed | None:
        """Of any age; None when the machine has told something since."""
        return self._last

    async def look(self, running: RunningMachine, generation: int) -> Observed:
        """What is true now, from a moment ago if nothing speaks against it."""
        if self._last is not None and generation == self._generation and self._clock() - self._at < RECENT:
            return self._last
        return await self.look_anew(running, generation)

    async def look_anew(self, running: RunningMachine, generation: int) -> Observed:
        told, at = self._told, self._clock()
        observed = await running.observe()
        # What was told meanwhile may not be in it.
        if told == self._told:
            self._last, self._at, self._generation = observed, at, generation
        return observed

    def may_hold(self, generation: int) -> bool:
        """Whether this generation came so recently that news of it alone can wait."""
        if self._held[0] != generation:
            self._held = (generation, self._clock())
        return self._clock() - self._held[1] < HOLD
