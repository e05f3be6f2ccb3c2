"""kill -9 in the middle of a resize: whoever comes back goes on, the guest never notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.faults.resizing import reason
from tests.kube import condition

from .guests import SLOW, Guest
from .place import Place


@pytest.mark.asyncio(loop_scope="session")
class Crash:
    """The whole matrix, after every single write, is in `tests/faults/test_resize_crash.py`."""

    async def test_the_controllers_while_it_grows_and_the_agent_while_it_shrinks(
        self, place: Place, main: Guest
    ):
        await killed_in_the_middle(place, main, 7, "2Gi", place.kill_controllers)
        await killed_in_the_middle(place, main, 2, "1Gi", place.kill_agent)

    async def test_the_agent_while_it_grows_and_the_controllers_while_it_shrinks(
        self, place: Place, main: Guest
    ):
        await killed_in_the_middle(place, main, 7, "2Gi", place.kill_agent)
        await killed_in_the_middle(place, main, 4, "1Gi", place.kill_controllers)


async def killed_in_the_middle(
    place: Place, main: Guest, sockets: int, guest: str, kill: Callable[[], None]
) -> None:
    """A paused guest keeps the resize from ending before."""
    place.say("pause", main.name, "-n", main.namespace)
    await main.until(lambda vmi: condition(vmi, "Paused"))
    try:
        await main.edit(sockets, guest)
        for kind in ("HotVCPUChange", "HotMemoryChange"):
            await main.until(reason(kind, "Paused"))
        await asyncio.to_thread(kill)
    finally:
        await goes_on(place, main)
    await main.becomes(sockets, guest)


async def goes_on(place: Place, main: Guest) -> None:
    """Asked until it does: the API server may ask a replica that was killed just now."""
    async with asyncio.timeout(SLOW):
        while condition(await main.vmi(), "Paused"):
            try:
                await asyncio.to_thread(place.say, "unpause", main.name, "-n", main.namespace)
            except AssertionError:
                await asyncio.sleep(1)  # when it is known to be gone has no event for a user
                continue
            await main.until(lambda vmi: not condition(vmi, "Paused"))
