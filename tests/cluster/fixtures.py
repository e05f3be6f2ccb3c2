"""The cluster of the test run: started once, for the tests of any tier that ask for it.

HOTVIRT_CLUSTER=FOLDER uses a cluster that `hack/cluster --dir FOLDER up` started, and leaves it running.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.targets import real
from tests.targets.plugin import target_name
from tests.targets.target import CHECKOUT

from . import bed as beds
from .bed import Bed

IMAGES = ("controller", "launcher", "demo-guest")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test: its time-out is not meant for a compiler."""
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    on_cluster = any(target_name(item) == "cluster" for item in session.items)
    if session.config.option.collectonly:
        return
    if "bed" in used or on_cluster:
        real.programs(*beds.PROGRAMS)
    if "images" in used or on_cluster:
        build_images()


def build_images() -> Path:
    """The folder with the archives."""
    made = subprocess.run([CHECKOUT / "deploy/image/build", *IMAGES], stdout=subprocess.PIPE, text=True)
    assert made.returncode == 0, "deploy/image/build said why above."
    return Path(made.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    if own := os.environ.get("HOTVIRT_CLUSTER"):
        running = beds.find(Path(own).resolve())
        assert running, f"HOTVIRT_CLUSTER={own}: no cluster runs there. Start it with hack/cluster up."
        yield running
        return
    with tempfile.TemporaryDirectory(prefix=beds.TEMPORARY) as parent:
        folder = Path(parent) / "cluster"
        started = beds.start(folder, keep=False)
        try:
            yield started
        finally:
            beds.stop(folder)


@pytest.fixture(scope="session")
def images(bed: Bed) -> Path:
    """The images of Hotvirt and of the demo guest, made from this checkout, on the node; their archives."""
    folder = build_images()
    bed.import_images(*(folder / f"{name}.tar" for name in IMAGES))
    return folder
