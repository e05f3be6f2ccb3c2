"""What both processes of a cluster share: the log, the signals, waiting for a cluster to work on, the end.

A part that fails ends its process, and the kubelet starts it again: nothing that a guest needs is in it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

from hotvirt import __version__
from hotvirt.kube.client import Client
from hotvirt.kube.config import ConfigError
from hotvirt.kube.errors import ApiError

from .health import Health
from .refusal import objection
from .settings import SettingsError

log = logging.getLogger(__name__)
LOOK_AGAIN = 15.0
"""Seconds until a cluster that was objected to is looked at again: a person changes it, without an event."""
Runner = Callable[[Coroutine[Any, Any, None]], None]


class PartFailed(Exception):
    """A part of the process ended, which it should not."""


def run(name: str, serve: Callable[[asyncio.Event], Awaitable[None]], runner: Runner) -> NoReturn:
    """Run `serve(stopping)` until SIGTERM or SIGINT, and exit: 0 when that was asked for."""
    logging.basicConfig(
        stream=sys.stderr,
        level=os.environ.get("HOTVIRT_LOG", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    log.info("%s %s starts (process %d)", name, __version__, os.getpid())

    async def main() -> None:
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        await serve(stopping)

    try:
        runner(main())
    except (SettingsError, ConfigError) as error:
        log.error("%s cannot start: %s", name, error)
        sys.exit(2)
    except Exception:
        log.exception("%s failed and ends; its next start goes on from what the API says", name)
        sys.exit(1)
    log.info("%s ended as it was asked to", name)
    sys.exit(0)


async def may_work(client: Client, health: Health, stopping: asyncio.Event) -> bool:
    """Wait until nothing speaks against working on this cluster; False: it is to stop first."""
    said = ""
    while not stopping.is_set():
        try:
            why = await objection(client)
        except ApiError as error:
            why = f"The cluster cannot be looked at: {error}"
        if why is None:
            health.ready("cluster")
            return True
        if why != said:
            log.error("Hotvirt does not work here: %s", why)
            said = why
        health.not_ready("cluster", why)
        try:
            await asyncio.wait_for(stopping.wait(), LOOK_AGAIN)
        except TimeoutError:
            continue
    return False


async def first_failure(tasks: list[asyncio.Task[None]], stopping: asyncio.Event) -> None:
    """Until it is to stop; raises when a part ends before."""
    asked = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait([asked, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                await task
                raise PartFailed(f"{task.get_name()} ended, which it should not")
    finally:
        asked.cancel()


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()):
            log.error("%s failed at its end", task.get_name(), exc_info=error)
