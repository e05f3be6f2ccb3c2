"""Fixtures: each kubectl there is, on each target, with a home and a namespace of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.objects import GROUP, widgets_crd
from tests.targets import real
from tests.targets.target import Target

from .kubectl import Kubectl, on_path


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "binary" in metafunc.fixturenames:
        there = ["on-path", "newest"] if on_path() else ["newest"]
        metafunc.parametrize("binary", there, indirect=True, scope="session")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test: its time-out is not meant for a compiler."""
    if not session.config.option.collectonly and any(
        "binary" in getattr(i, "fixturenames", ()) for i in session.items
    ):
        real.programs("kubectl")


@pytest.fixture(scope="session")
def binary(request: pytest.FixtureRequest) -> Path:
    if request.param == "on-path":
        found = on_path()
        assert found
        return found
    return real.programs("kubectl") / "kubectl"


@pytest.fixture(scope="session")
def prepared(target: Target) -> Target:
    target.install_crd(widgets_crd())
    target.wait_until_described(f"{GROUP}/v1")
    return target


@pytest.fixture(scope="session")
def home(prepared: Target, binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """kubectl keeps discovery in its home: each pair of target and kubectl has its own."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def kubectl(prepared: Target, binary: Path, home: Path) -> Iterator[Kubectl]:
    name = f"kubectl-{uuid.uuid4().hex[:10]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    status, answer = prepared.request("POST", "/api/v1/namespaces", body)
    assert status == 201, answer
    yield Kubectl(binary, prepared.kubeconfig, home, name)
    prepared.request("DELETE", f"/api/v1/namespaces/{name}")


def vm(name: str = "vm1", *, sockets: int = 1, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A VirtualMachine that is off."""
    domain = {"cpu": {"sockets": sockets}, "memory": {"guest": "64Mi"}, "devices": {}}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name} | ({"labels": labels} if labels else {}),
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": domain}}},
    }
