"""kill -9 in the middle of a resize: whoever comes back goes on, the guest never notices."""

from __future__ import annotations

import asyncio

import pytest

from tests.kube import condition

from .guests import Guest
from .place import Place


@pytest.mark.asyncio(loop_scope="session")
class Crash:
    """The whole matrix, after every single write, is in `tests/faults/test_resize_crash.py`."""

    async def test_the_controllers_while_it_grows_and_the_agent_while_it_shrinks(
        self, place: Place, main: Guest
    ):
        await main.edit(7, "2Gi")
        await asyncio.to_thread(place.kill_controllers)
        await main.becomes(7, "2Gi")
        await main.edit(2, "1Gi")
        await main.until(lambda vmi: condition(vmi, "HotMemoryChange"))
        await asyncio.to_thread(place.kill_agent)
        await main.becomes(2, "1Gi")

    async def test_the_agent_while_it_grows_and_the_controllers_while_it_shrinks(
        self, place: Place, main: Guest
    ):
        await main.edit(7, "2Gi")
        await main.until(lambda vmi: condition(vmi, "HotMemoryChange"))
        await asyncio.to_thread(place.kill_agent)
        await main.becomes(7, "2Gi")
        await main.edit(4, "1Gi")
        await asyncio.to_thread(place.kill_controllers)
        await main.becomes(4, "1Gi")
