"""kill -9 in the middle of a resize: whoever comes back goes on, the guest never notices."""

from __future__ import annotations

import asyncio

import pytest

from tests.kube import condition

from .guests import Guest
from .place import Place


@pytest.mark.asyncio(loop_scope="session")
class Crash:
    async def test_the_controllers(self, place: Place, main: Guest):
        for sockets, memory in ((7, "3Gi"), (2, "1Gi")):
            await main.edit(sockets, memory)
            await asyncio.to_thread(place.kill_controllers)
            await main.becomes(sockets, memory)

    async def test_the_node_agent(self, place: Place, main: Guest):
        for sockets, memory in ((7, "3Gi"), (2, "1Gi")):
            await main.edit(sockets, memory)
            await main.until(lambda vmi: condition(vmi, "HotMemoryChange"))
            await asyncio.to_thread(place.kill_agent)
            await main.becomes(sockets, memory)
