"""The scenarios on a real cluster, in real Pods, with the real kubelet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hotvirt.api.resources import LEASES
from tests.faults.resizing import reason
from tests.kube import Kube, condition
from tests.scenarios.boot import Boot
from tests.scenarios.crash import Crash
from tests.scenarios.ending import Ending
from tests.scenarios.guests import SLOW, Guest
from tests.scenarios.no_room import NoRoom, resources
from tests.scenarios.resize import Resize, Staged

from .bed import Bed
from .many import Many
from .on_cluster import HOTVIRTS, LEASE, OnCluster
from .upgrade import Upgrade

# The first of them also waits for cluster, images, chart and guests.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def place(hotvirt_on_cluster: Bed) -> OnCluster:
    return OnCluster(hotvirt_on_cluster)


class TestBoot(Boot):
    pass


class TestStaged(Staged):
    pass


class TestResize(Resize):
    pass


class TestNoRoom(NoRoom):
    @asynccontextmanager
    async def infeasible(self, guest: Guest) -> AsyncIterator[None]:
        """A kubelet that manages CPUs (bed_files.py) does not change those of a Guaranteed Pod."""
        had = (await guest.vm())["spec"]["template"]["spec"]["domain"]["resources"]["requests"]["cpu"]
        try:
            guest.change(resources(cpu="700m"))
            yield
        finally:
            guest.change(resources(cpu=had))


class TestCrash(Crash):
    async def test_another_leader_in_the_middle(self, place: OnCluster, main: Guest):
        """The leader goes as in an update of Hotvirt. A paused guest keeps the resize from ending before."""
        before = place.leader()
        place.say("pause", main.name, "-n", main.namespace)
        await main.until(lambda vmi: condition(vmi, "Paused"))
        try:
            await main.edit(7, "1536Mi")
            await main.until(reason("HotMemoryChange", "Paused"))
            place.kubectl("delete", "pod", before, "-n", HOTVIRTS, "--wait=false")
            await Kube(main.kube.admin, HOTVIRTS).until(
                LEASES,
                LEASE,
                lambda lease: lease["spec"].get("holderIdentity") not in ("", None, before),
                SLOW,
            )
        finally:
            place.say("unpause", main.name, "-n", main.namespace)
        await main.becomes(7, "1536Mi")


class TestMany(Many):
    pass


class TestUpgrade(Upgrade):
    pass


class TestEnding(Ending):
    pass
