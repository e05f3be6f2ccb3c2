"""Waiting for a guest: by the machine's events, and by looking where there is no event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

# A guest that takes vCPUs or memory sends few events for it: look this often, and less and less.
FIRST_LOOK, LONGEST_LOOK = 0.02, 0.25


class Waiter:
    def __init__(self, closed: asyncio.Event) -> None:
        self._closed = closed
        self._stirred = asyncio.Event()

    def stir(self) -> None:
        """Something happened in the machine."""
        self._stirred.set()

    async def until(self, settled: Callable[[], Awaitable[bool]], timeout: float) -> bool:
        """Look until it is so or the time is over; whether it is."""
        deadline = time.monotonic() + timeout
        pause = FIRST_LOOK
        while True:
            self._stirred.clear()
            if await settled():
                return True
            left = deadline - time.monotonic()
            if left <= 0 or self._closed.is_set():
                return False
            try:
                async with asyncio.timeout(min(left, pause)):
                    await self._stirred.wait()
            except TimeoutError:
                pause = min(pause * 2, LONGEST_LOOK)
