"""The pytest side of the targets: which ones to run on, and one start of each per test run.

    pytest tests/conformance --target real|embedded|all      (default: all)
    pytest tests/conformance --target real --controllers     (with a real controller-manager beside it)
    pytest tests/conformance --kubeconfig PATH               (any other; makes namespaces and a CRD there)

A test that asks for `target` runs once on each. Marked `needs_controllers`, it runs only where garbage
collection and the life cycle of namespaces work.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import embedded, real
from .target import Target

TARGETS = ["real", "embedded"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("targets")
    group.addoption("--target", choices=[*TARGETS, "all"], default="all", help="which API to test")
    group.addoption("--controllers", action="store_true", help="give `real` a controller-manager")
    group.addoption("--kubeconfig", type=Path, help="test the Kubernetes API of this kubeconfig instead")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_controllers: only where garbage collection works")


def chosen(config: pytest.Config) -> list[str]:
    if config.getoption("--kubeconfig"):
        return ["external"]
    choice = config.getoption("--target")
    return list(TARGETS) if choice == "all" else [choice]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        metafunc.parametrize("target", chosen(metafunc.config), indirect=True, scope="session")


def target_name(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("target") if callspec else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--controllers"):
        return
    without = [
        item for item in items if item.get_closest_marker("needs_controllers") and target_name(item) == "real"
    ]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test: its time-out is not meant for a compiler."""
    if session.config.option.collectonly:
        return
    if any(target_name(item) == "real" for item in session.items):
        real.programs(*real.needed(session.config.getoption("--controllers")))


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    if kubeconfig := request.config.getoption("--kubeconfig"):
        yield Target("external", kubeconfig, has_controllers=True)
        return
    with tempfile.TemporaryDirectory(prefix="hotvirt-test-") as folder:
        if request.param == "real":
            started = real.start(Path(folder), controllers=request.config.getoption("--controllers"))
        else:
            started = embedded.start(Path(folder))
        try:
            yield started
        finally:
            started.stop()
