"""Leader election: one at a time, given back on exit, taken over when the holder is silent."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from hotvirt.kube.client import Client
from hotvirt.kube.lease import Election

from .tiny_api import TinyApi, status

QUICK: dict[str, Any] = {"duration": 900.0, "renew_within": 600.0, "retry": 0.01}
"""It looks often; what a busy machine does between two looks costs nobody the lead."""


def lease(api: TinyApi) -> dict[str, Any]:
    spec: dict[str, Any] = api.objects[("leases", "kubevirt", "controller")]["spec"]
    return spec


class Candidate:
    def __init__(self, client: Client, name: str, times: dict[str, Any] = QUICK) -> None:
        self.leads = asyncio.Event()
        self.stopped = asyncio.Event()
        self.end = asyncio.Event()
        self.election = Election(client, "kubevirt", "controller", name, **times)
        self.task = asyncio.create_task(self.election.run(self._work))

    async def _work(self) -> None:
        self.leads.set()
        self.stopped.clear()
        try:
            await self.end.wait()
        finally:
            self.leads.clear()
            self.stopped.set()

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def test_one_leads_and_the_next_takes_over_at_once_when_it_exits() -> None:
    api = TinyApi()
    async with api.running() as config, Client(config) as client, asyncio.timeout(60):
        one = Candidate(client, "one")
        await one.leads.wait()
        two = Candidate(client, "two")
        renewals = api.count("PATCH")
        await api.until(lambda: api.count("PATCH") >= renewals + 2)
        assert not two.leads.is_set()
        assert lease(api)["holderIdentity"] == "one"
        await one.cancel()
        assert one.stopped.is_set()
        await two.leads.wait()
        assert lease(api)["holderIdentity"] == "two"
        assert lease(api)["leaseTransitions"] == 1
        two.end.set()
        await two.task
        assert lease(api)["holderIdentity"] == ""


async def test_a_silent_holder_is_judged_by_our_own_clock() -> None:
    api = TinyApi()
    held = {"holderIdentity": "dead", "leaseDurationSeconds": 15, "renewTime": "1970-01-01T00:00:00.000000Z"}
    await api.put("leases", {"metadata": {"name": "controller", "namespace": "kubevirt"}, "spec": held})
    now = 0.0
    async with api.running() as config, Client(config) as client, asyncio.timeout(60):
        election = Election(client, "kubevirt", "controller", "two", clock=lambda: now)
        assert not await election._attempt()
        now = 14.0
        assert not await election._attempt()
        now = 16.0
        assert await election._attempt()
        assert lease(api)["holderIdentity"] == "two"


async def test_a_leader_that_cannot_renew_stops_its_work() -> None:
    api = TinyApi()
    async with api.running() as config, Client(config) as client, asyncio.timeout(60):
        one = Candidate(client, "one", QUICK | {"renew_within": 0.1})
        await one.leads.wait()

        async def down(request: web.Request) -> web.StreamResponse:
            return status(500, "InternalError", "down")

        api.interfere = down
        await one.stopped.wait()
        assert not one.election.is_leader
        api.interfere = None
        await one.leads.wait()
        await one.cancel()


async def test_an_api_that_does_not_answer_cannot_prolong_the_lead() -> None:
    """The last try ends when the time to renew does, however long an answer may take otherwise."""
    api, over = TinyApi(), asyncio.Event()
    now = 0.0
    times = QUICK | {"renew_within": 60.0, "duration": 90.0, "clock": lambda: now}
    async with api.running() as config, Client(config) as client, asyncio.timeout(30):
        one = Candidate(client, "one", times)
        await one.leads.wait()

        async def silent(request: web.Request) -> web.StreamResponse:
            nonlocal now
            now = 60.1
            await over.wait()
            return status(500, "InternalError", "too late")

        api.interfere = silent
        now = 59.8
        await one.stopped.wait()
        assert not one.election.is_leader
        api.interfere = None
        over.set()
        await one.cancel()


async def test_a_leader_that_sees_another_holder_stops_at_once() -> None:
    """Not only after the time in which it may try to renew, in which the other one already works."""
    api = TinyApi()
    async with api.running() as config, Client(config) as client, asyncio.timeout(60):
        one = Candidate(client, "one")
        await one.leads.wait()
        held = api.objects[("leases", "kubevirt", "controller")]
        await api.put("leases", held | {"spec": held["spec"] | {"holderIdentity": "two"}})
        await one.stopped.wait()
        assert lease(api)["holderIdentity"] == "two"
        await one.cancel()
