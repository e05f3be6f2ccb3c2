"""The scenarios on one machine: `hotvirt up`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.boot import Boot
from tests.scenarios.crash import Crash
from tests.scenarios.ending import Ending
from tests.scenarios.no_room import NoRoom
from tests.scenarios.resize import Resize, Staged

from .up import LARGE, Up


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, kubectl_program: str, demo_disk: Path) -> Iterator[Up]:
    """One of its own: it is killed, filled and configured."""
    up = Up(tmp_path_factory.mktemp("scenarios") / "state", kubectl_program)
    up.start(*LARGE)
    try:
        up.import_image(Up.demo_image, demo_disk)
        yield up
    finally:
        up.stop("--stop-vms")


class TestBoot(Boot):
    pass


class TestResize(Resize):
    pass


class TestStaged(Staged):
    pass


class TestNoRoom(NoRoom):
    pass


class TestCrash(Crash):
    pass


class TestEnding(Ending):
    pass
