"""Hotvirt on the cluster of the test run (fixtures.py), for the tests that ask for it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotvirt.hypervisor.qemu.accel import accelerator
from tests.targets import real
from tests.targets.target import CHECKOUT

from .bed import Bed
from .control_plane import ControlPlane, control_plane

INSTALLED_WITHIN = "600s"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test: its time-out is not meant for a compiler."""
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if "helm" in used and not session.config.option.collectonly:
        real.programs("helm")


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
