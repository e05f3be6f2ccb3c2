"""The scenarios on one machine: `hotvirt up`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hotvirt.api.resources import NODES
from tests.scenarios.boot import Boot
from tests.scenarios.crash import Crash
from tests.scenarios.ending import Ending
from tests.scenarios.guests import Guest
from tests.scenarios.no_room import MORE_THAN_ANY_NODE, NoRoom, resources
from tests.scenarios.resize import Resize, Staged
from tests.targets.target import free_ports

from .up import LARGE, Up

# The first of them also waits for the guests.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, kubectl_program: str, demo_disk: Path) -> Iterator[Up]:
    """One of its own: it is killed, filled and configured."""
    up = Up(tmp_path_factory.mktemp("scenarios") / "state", kubectl_program)
    # One that no connection of others has by chance between two starts.
    up.start(*LARGE, "--port", str(free_ports(1)[0]))
    try:
        up.import_image(Up.demo_image, demo_disk)
        yield up
    finally:
        up.stop("--stop-vms")


class TestBoot(Boot):
    pass


class TestStaged(Staged):
    pass


class TestResize(Resize):
    pass


class TestNoRoom(NoRoom):
    @asynccontextmanager
    async def infeasible(self, guest: Guest) -> AsyncIterator[None]:
        """The Node says that it has more than the node itself knows of."""
        kube, node = guest.kube, guest.place.node
        had = (await kube.get(NODES, node))["status"]["allocatable"]["memory"]
        try:
            await kube.patch(NODES, node, {"status": {"allocatable": {"memory": "2Ti"}}}, status=True)
            guest.change(resources(memory=MORE_THAN_ANY_NODE))
            yield
        finally:
            await kube.patch(NODES, node, {"status": {"allocatable": {"memory": had}}}, status=True)
            guest.change(resources(memory=guest.memory))


class TestCrash(Crash):
    pass


class TestEnding(Ending):
    pass
