"""One running `hotvirt up` for the tests of this folder, with its kubectl.

`up` is shared by all tests of a run: make your own namespace (`namespace`), leave the node as it was.
`guest` is one of a module's own with a guest in it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.shell import wait_for
from tests.targets import real
from tests.targets.target import CHECKOUT, pause_after_look

from .up import LARGE, Up


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "first: runs before the others, so that something can wait meanwhile")
    config.addinivalue_line("markers", "last: runs after the others")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: bool(item.get_closest_marker("last")) - bool(item.get_closest_marker("first"))
    )


@pytest.fixture(scope="session")
def kubectl_program() -> str:
    """The kubectl on PATH, else the newest, built from its Go module."""
    return shutil.which("kubectl") or str(real.programs("kubectl") / "kubectl")


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory, kubectl_program: str) -> Iterator[Up]:
    it = Up(tmp_path_factory.mktemp("up") / "state", kubectl_program)
    it.start(*LARGE)
    try:
        yield it
    finally:
        it.stop("--stop-vms")


@pytest.fixture(scope="module")
def guest(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kubectl_program: str,
    demo_disk: Path,
) -> Iterator[Up]:
    """A Hotvirt of the module's own with one guest that has booted: the VM that the module calls MACHINE."""
    machine = request.module.MACHINE
    name = machine["metadata"]["name"]
    up = Up(tmp_path_factory.mktemp(name) / "state", kubectl_program)
    up.start(*LARGE)
    try:
        up.import_image(Up.demo_image, demo_disk)
        up.apply(machine)
        wait_for(up, machine["metadata"]["namespace"], f"vmi/{name}", "condition=AgentConnected")
        yield up
    finally:
        up.stop("--stop-vms")


@pytest.fixture
def namespace(up: Up, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, gone with all that is in it afterwards."""
    name = f"test-{abs(hash(request.node.nodeid)) % 10**8}"
    up.kubectl("create", "namespace", name)
    try:
        yield name
    finally:
        up.kubectl("delete", "namespace", name, "--timeout=240s", timeout=300)


@pytest.fixture(scope="session")
def demo_disk() -> Path:
    """The demo guest's disk, made on the spot and cached."""
    build = CHECKOUT / "demo" / "guest" / "build"
    done = subprocess.run([sys.executable, str(build)], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    """Poll, for what has no event to wait for: the inside of a guest, a process, a file."""

    def wait(what: Callable[[], Any], within: float = 180.0, because: str = "") -> Any:
        deadline = time.monotonic() + within
        while True:
            looked = time.monotonic()
            found = what()
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{because or what} did not come true within {within:.0f} s; last: {found!r}"
                )
            pause_after_look(looked, least=0.1)

    return wait
