"""What the scenarios are given. The folder that runs them has the `place`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from hotvirt.api.resources import NAMESPACES, VMS
from tests.kube import Kube

from .guests import MAIN, RATIO, VALUE, Guest, begin_all
from .place import Place
from .sizes import Sizes

GONE = 240.0


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def kube(place: Place) -> AsyncIterator[Kube]:
    """An administrator in a namespace of the module's own."""
    async with place.client() as client:
        kube = Kube(client)
        await kube.fresh_namespace()
        try:
            yield kube
        finally:
            await client.delete(NAMESPACES, kube.namespace)
            await kube.gone(NAMESPACES, kube.namespace, GONE)


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def guests(place: Place, kube: Kube) -> AsyncIterator[dict[str, Guest]]:
    yield await begin_all(place, kube)
    for vm in (await kube.admin.list(VMS, kube.namespace)).items:
        # Some may be booting, deaf to the power button: nobody waits for those.
        await asyncio.to_thread(place.say, "stop", vm["metadata"]["name"], "-n", kube.namespace, "--force")


async def lent(guest: Guest) -> AsyncIterator[Guest]:
    """Every version of all machines is watched meanwhile; then it is brought back to its size."""
    guest.history = Sizes(guest.kube.admin, guest.namespace)
    async with guest.history.watched():
        yield guest
        await guest.left_as_found()


@pytest_asyncio.fixture(loop_scope="session")
async def main(guests: dict[str, Guest]) -> AsyncIterator[Guest]:
    """4 sockets of up to 8, 1Gi of up to 4Gi, with limits."""
    async for each in lent(await guests[MAIN].ready()):
        yield each


@pytest_asyncio.fixture(loop_scope="session")
async def guaranteed(guests: dict[str, Guest]) -> AsyncIterator[Guest]:
    """2 sockets, 512Mi of up to 1Gi, requests as limits."""
    async for each in lent(await guests[RATIO].ready()):
        yield each


@pytest_asyncio.fixture(loop_scope="session")
async def all_three(guests: dict[str, Guest]) -> AsyncIterator[list[Guest]]:
    each_ready = await asyncio.gather(*(each.ready() for each in guests.values()))
    async with Sizes(guests[MAIN].kube.admin, guests[MAIN].namespace).watched():
        yield list(each_ready)
        await asyncio.gather(*(each.left_as_found() for each in each_ready))


@pytest_asyncio.fixture(loop_scope="session")
async def spare(guests: dict[str, Guest]) -> Guest:
    """One that may be restarted or ended: whoever does waits for its next boot."""
    return await guests[VALUE].ready()
