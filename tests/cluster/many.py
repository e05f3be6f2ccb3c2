"""50 resizes at once, 3 of them of real guests, and the leader killed in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotvirt.api import names
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.api.resources import LEASES, PODS, VMIS, VMS
from hotvirt.kube.informer import Informer
from tests.faults.resizing import edit, machine, rests
from tests.kube import Kube, Object, in_phase
from tests.scenarios.guests import RATIO, Guest

from .on_cluster import HOTVIRTS, LEASE, OnCluster
from .simulated import CountingDriver, put_there, simulated_node
from .told import told

TOGETHER = 50
BEFORE_THE_KILL = 10
MANY = 120.0
HELD = 3
"""Machines that are not done before the leader is killed, however long the edits take."""
MORE = "768Mi"
MOST = 6
"""Sockets of one real guest for which the node has room beside the others."""

AT_A_TIME = asyncio.Semaphore(8)
"""Hotvirt's webhooks answer within seconds also on a machine that is busy with everything else here."""


async def in_turn(*requests: Awaitable[Any]) -> None:
    async def one(request: Awaitable[Any]) -> None:
        async with AT_A_TIME:
            await request

    await asyncio.gather(*(one(request) for request in requests))


@asynccontextmanager
async def running(kube: Kube, count: int) -> AsyncIterator[list[str]]:
    """So many machines of one socket on the simulated node."""
    found = [f"small-{number:02}" for number in range(count)]
    try:
        await in_turn(*(kube.create(VMS, put_there(machine(name, 1))) for name in found))
        for name in found:
            await kube.until(VMIS, name, in_phase("Running"), MANY)
            await rests(kube, name, 1, "1Gi", MANY)
        yield found
    finally:
        made = [vm["metadata"]["name"] for vm in (await kube.admin.list(VMS, kube.namespace)).items]
        await in_turn(*(kube.admin.delete(VMS, name, kube.namespace) for name in made if name in found))
        for name in found:
            await kube.gone(VMIS, name, MANY)


class Followed:
    """The machines of a namespace by a watch: how many have got where they were sent."""

    def __init__(self, kube: Kube, wanted: dict[str, int]) -> None:
        self._wanted = wanted
        self._done: set[str] = set()
        self._more = asyncio.Event()
        self._vmis = Informer(kube.admin, VMIS, VirtualMachineInstance, namespace=kube.namespace)
        self._vmis.add_handler(self._seen)

    def _seen(self, _old: VirtualMachineInstance | None, vmi: VirtualMachineInstance | None) -> None:
        has = vmi.status.current_cpu_topology if vmi else None
        if vmi and has and self._wanted.get(vmi.metadata.name) == has.sockets:
            self._done.add(vmi.metadata.name)
            self._more.set()

    @property
    def done(self) -> int:
        return len(self._done)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(MANY):
            while self.done < count:
                self._more.clear()
                await self._more.wait()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[Followed]:
        following = asyncio.create_task(self._vmis.run())
        try:
            await self._vmis.synced()
            yield self
        finally:
            following.cancel()
            await asyncio.wait([following])


async def plugged(guest: Guest) -> int:
    return int((await guest.vmi())["status"]["hotvirt"]["vcpus"]["plugged"])


async def launchers(kube: Kube) -> dict[str, Object]:
    label, value = names.LABEL_LAUNCHER
    listed = await kube.admin.list(PODS, kube.namespace, label_selector=f"{label}={value}")
    return {each["metadata"]["name"]: each for each in listed.items}


def more(guest: Guest, had: int) -> int:
    """Two that it never had; one that is parked, where the node has no room for so many."""
    return had + 2 if had + 2 <= MOST else guest.sockets + 1


async def kill_leader(kube: Kube, replicas: dict[str, list[int]]) -> None:
    """At once: who leads is one question to the API, and its processes are known."""
    lease = await Kube(kube.admin, HOTVIRTS).get(LEASES, LEASE)
    for pid in replicas[lease["spec"]["holderIdentity"]]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.asyncio(loop_scope="session")
class Many:
    @pytest.mark.timeout(900)
    async def test_all_complete_and_nothing_is_asked_twice(
        self, place: OnCluster, all_three: list[Guest], tmp_path: Path
    ):
        kube = all_three[0].kube
        async with (
            simulated_node(tmp_path, place.client) as driver,
            running(kube, TOGETHER - len(all_three)) as small,
        ):
            pods = await launchers(kube)
            assert len(pods) == TOGETHER
            plugs, since = Counter(driver.plugs), place.audit()[-1].time
            driver.held = {
                pod["metadata"]["uid"]
                for pod in pods.values()
                if pod["metadata"]["labels"][names.LABEL_VM_NAME] in small[-HELD:]
            }
            assert len(driver.held) == HELD
            await self.resize_all(place, all_three, small, driver)
            self.asked_once(place, kube, set(pods), since)
            self.plugged_once(driver, plugs, len(small))

    @staticmethod
    async def resize_all(
        place: OnCluster, real: list[Guest], small: list[str], driver: CountingDriver
    ) -> None:
        kube = real[0].kube
        had = {guest.name: await plugged(guest) for guest in real}
        # The Guaranteed one has a cpu of its owner's choice, which stays: its Pod changes for memory only.
        sizes = {
            guest.name: (more(guest, had[guest.name]), MORE if guest.name == RATIO else guest.memory)
            for guest in real
        }
        wanted = sizes | dict.fromkeys(small, (2, "1Gi"))
        replicas = await asyncio.to_thread(place.replicas)
        async with AsyncExitStack() as stack:
            told_to = {
                guest.name: await stack.enter_async_context(told(place, await guest.pod())) for guest in real
            }
            sockets = {name: size[0] for name, size in wanted.items()}
            followed = await stack.enter_async_context(Followed(kube, sockets).watched())
            await in_turn(*(edit(kube, name, *size) for name, size in wanted.items()))
            await followed.until(BEFORE_THE_KILL)
            await kill_leader(kube, replicas)
            assert followed.done < TOGETHER, "the leader was killed too late"
            driver.released.set()
            for name in small:
                await rests(kube, name, 2, "1Gi", MANY)
            for guest in real:
                await guest.becomes(*sizes[guest.name])
        new = {name: max(0, size[0] - had[name]) for name, size in sizes.items()}
        assert sum(new.values()) >= 2, f"too few of them got a vCPU that was not there: {new}"
        for name, each in told_to.items():
            added = each.devices()
            assert not [command for command in added if command.refused]
            assert len(added) == len({command.arguments["id"] for command in added}) == new[name]

    @staticmethod
    def asked_once(place: OnCluster, kube: Kube, pods: set[str], since: float) -> None:
        asked = Counter(
            (each.name, json.dumps(each.body, sort_keys=True))
            for each in place.audit()
            if each.time > since
            and each.subresource == "resize"
            and each.namespace == kube.namespace
            and each.code == 200
        )
        assert {name for name, _ in asked} == pods
        twice = [each for each, count in asked.items() if count > 1]
        assert not twice
        assert len(asked) == len(pods), "one target each"

    @staticmethod
    def plugged_once(driver: CountingDriver, before: Counter[str], count: int) -> None:
        plugs = driver.plugs - before
        assert len(plugs) == count
        assert set(plugs.values()) == {1}, "one vCPU more each, plugged once"
