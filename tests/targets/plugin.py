"""The pytest side of the targets: which ones to run on, and one start of each per test run.

    pytest tests/conformance --target real|oldest|embedded|cluster      (may be repeated; default: all)
    pytest tests/conformance --kubeconfig PATH                 (any other; makes namespaces and a CRD there)

`real` is a bare kube-apiserver of the newest Kubernetes, `oldest` one of the oldest that Hotvirt supports,
`cluster` a whole cluster with a node. A test that asks for `target` runs on the bare servers and the embedded
one. Marked `needs_controllers` or `needs_node`, it runs where Pods are run and garbage is collected: on the
cluster and the embedded one. `oldest` has the behaviour suite only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import embedded, real
from .target import Target

BARE = ("real", "oldest")
WHOLE = ("embedded", "cluster")
OLDEST = "1.34"
ELSEWHERE = "elsewhere"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("targets")
    which = "which API to test, and again for another"
    group.addoption("--target", action="append", choices=[*BARE, *WHOLE], default=[], help=which)
    group.addoption("--kubeconfig", type=Path, help="test the Kubernetes API of this kubeconfig instead")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_controllers: only where garbage collection works")
    config.addinivalue_line("markers", "needs_node: only where Pods are scheduled and run")


def chosen(metafunc: pytest.Metafunc) -> list[str]:
    if metafunc.config.getoption("--kubeconfig"):
        return ["external"]
    if any(metafunc.definition.get_closest_marker(name) for name in ("needs_controllers", "needs_node")):
        fit = list(WHOLE)
    elif metafunc.module.__name__.startswith("tests.conformance."):
        fit = [*BARE, "embedded"]
    else:
        fit = ["real", "embedded"]
    asked = metafunc.config.getoption("--target") or fit
    return [name for name in fit if name in asked] or [ELSEWHERE]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "target" in metafunc.fixturenames:
        metafunc.parametrize("target", chosen(metafunc), indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--target`, a test that is not for that one is not asked for."""
    without = [item for item in items if target_name(item) == ELSEWHERE]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]


def target_name(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("target") if callspec else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build before the first test: its time-out is not meant for a compiler."""
    if session.config.option.collectonly:
        return
    wanted = {target_name(item) for item in session.items}
    if "real" in wanted:
        real.programs(*real.PROGRAMS)
    if "oldest" in wanted:
        real.programs(*real.PROGRAMS, minor=OLDEST)


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    if kubeconfig := request.config.getoption("--kubeconfig"):
        yield Target("external", kubeconfig)
        return
    if request.param == "cluster":
        request.getfixturevalue("images")
        yield Target("cluster", request.getfixturevalue("bed").kubeconfig)
        return
    with tempfile.TemporaryDirectory(prefix="hotvirt-test-") as folder:
        if request.param == "embedded":
            started = embedded.start(Path(folder))
        else:
            started = real.start(Path(folder), minor=OLDEST if request.param == "oldest" else None)
        try:
            yield started
        finally:
            started.stop()
