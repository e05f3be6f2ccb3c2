"""The scenarios on a real cluster, in real Pods, with the real kubelet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.kube import condition
from tests.scenarios.boot import Boot
from tests.scenarios.crash import Crash
from tests.scenarios.ending import Ending
from tests.scenarios.guests import Guest
from tests.scenarios.no_room import NoRoom, resources
from tests.scenarios.resize import Resize, Staged

from .bed import Bed
from .many import Many
from .on_cluster import HOTVIRTS, OnCluster
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
        """The leader goes as in an update of Hotvirt; the other one goes on."""
        before = place.leader()
        await main.edit(7, "2Gi")
        await main.until(lambda vmi: condition(vmi, "HotMemoryChange"))
        place.kubectl("delete", "pod", before, "-n", HOTVIRTS, "--wait=false")
        await main.becomes(7, "2Gi")
        assert place.leader() not in ("", before)


class TestMany(Many):
    pass


class TestUpgrade(Upgrade):
    pass


class TestEnding(Ending):
    pass
