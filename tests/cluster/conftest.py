"""The cluster of the test run: started once, with images and Hotvirt on it for the tests that ask for them.

HOTVIRT_CLUSTER=FOLDER uses a cluster that `hack/cluster --dir FOLDER up` started, and leaves it running.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotvirt.hypervisor.qemu.accel import accelerator
from tests.targets import real
from tests.targets.target import CHECKOUT

from . import bed as beds
from .bed import Bed
from .control_plane import ControlPlane, control_plane

IMAGES = ("controller", "launcher", "demo-guest")
INSTALLED_WITHIN = "180s"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test: its time-out is not meant for a compiler."""
    here = any(item.path.is_relative_to(Path(__file__).parent) for item in session.items)
    if here and not session.config.option.collectonly:
        real.programs(*beds.PROGRAMS)
        real.programs("helm")


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
    made = subprocess.run([CHECKOUT / "deploy/image/build", *IMAGES], stdout=subprocess.PIPE, text=True)
    assert made.returncode == 0, "deploy/image/build said why above."
    folder = Path(made.stdout.splitlines()[-1])
    bed.import_images(*(folder / f"{name}.tar" for name in IMAGES))
    return folder


@pytest.fixture(scope="session")
def helm(bed: Bed) -> Path:
    return real.programs("helm") / "helm"


@pytest.fixture(scope="session")
def hotvirt_on_cluster(bed: Bed, images: Path, helm: Path) -> Bed:
    """Hotvirt installed from its chart, ready."""
    values = {
        "image": {"pullPolicy": "Never"},
        "useEmulation": asyncio.run(accelerator()) != "kvm",
    }
    file = bed.layout.folder / "values.json"
    file.write_text(json.dumps(values))
    chart = CHECKOUT / "deploy" / "chart" / "hotvirt"
    installed = bed.run(
        *(helm, "upgrade", "--install", "hotvirt", chart, "--namespace", "kubevirt", "--create-namespace"),
        *("--values", file, "--wait", "--timeout", INSTALLED_WITHIN),
    )
    assert installed.returncode == 0, f"{installed.stderr}\n{state_of_install(bed)}"
    return bed


def state_of_install(bed: Bed) -> str:
    shown = [
        ("kubectl", "get", "pods", "-A", "-o", "wide"),
        ("kubectl", "get", "events", "-n", "kubevirt"),
        ("kubectl", "logs", "-n", "kubevirt", "deployment/hotvirt-controller", "--tail=30"),
        ("kubectl", "logs", "-n", "kubevirt", "daemonset/hotvirt-node", "--tail=30"),
    ]
    return "\n".join(answer.stdout + answer.stderr for answer in (bed.run(*words) for words in shown))


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """An API server without nodes, with the chart's objects: for what concerns the controller alone."""
    with tempfile.TemporaryDirectory(prefix="hotvirt-test-") as folder, control_plane(Path(folder)) as plane:
        yield plane
