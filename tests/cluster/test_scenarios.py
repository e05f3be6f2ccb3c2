"""The scenarios on a real cluster, in real Pods, with the real kubelet."""

from __future__ import annotations

import pytest

from tests.kube import condition
from tests.scenarios.boot import Boot
from tests.scenarios.crash import Crash
from tests.scenarios.ending import Ending
from tests.scenarios.guests import Guest
from tests.scenarios.no_room import NoRoom
from tests.scenarios.resize import Resize, Staged

from .bed import Bed
from .on_cluster import HOTVIRTS, OnCluster


@pytest.fixture(scope="module")
def place(hotvirt_on_cluster: Bed) -> OnCluster:
    return OnCluster(hotvirt_on_cluster)


class TestBoot(Boot):
    pass


class TestResize(Resize):
    pass


class TestStaged(Staged):
    pass


class TestNoRoom(NoRoom):
    pass


class TestCrash(Crash):
    async def test_another_leader_in_the_middle(self, place: OnCluster, main: Guest):
        """The leader goes as in an update of Hotvirt; the other one goes on."""
        before = place.leader()
        await main.edit(7, "2Gi")
        await main.until(lambda vmi: condition(vmi, "HotMemoryChange"))
        place.kubectl("delete", "pod", before, "-n", HOTVIRTS, "--wait=false")
        await main.becomes(7, "2Gi")
        assert place.leader() not in ("", before)


class TestEnding(Ending):
    pass
