"""Keeps the parts of one process running: one that crashes is logged and started again, the others go on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from hotvirt.kube.backoff import Backoff

log = logging.getLogger(__name__)
STEADY = 60.0
"""A part that ran this long before it crashed is started again at once."""


class Supervisor:
    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sleep = sleep

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run `run()` for ever; each start makes its part anew."""
        self._tasks[name] = asyncio.create_task(self._keep_running(name, run), name=name)

    async def _keep_running(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff(initial=0.1, maximum=30.0)
        while True:
            started = time.monotonic()
            try:
                await run()
                log.error("%s ended, which it should not; it is started again", name)
            except Exception:
                log.exception("%s crashed and is started again", name)
            if time.monotonic() - started > STEADY:
                backoff.reset()
            await self._sleep(backoff.next())

    async def stop(self) -> None:
        """Cancel all and wait for them; what they leave running (guests) is not touched."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        self._tasks.clear()
