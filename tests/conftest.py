"""What holds for the whole test run: the options of the targets, and that in CI nothing is skipped."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# For kube-apiserver, etcd, kubelet, kubectl: a third of what they compute is to collect their garbage.
os.environ.setdefault("GOGC", "400")
# How long an example takes is up to what else this machine does.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
pytest_plugins = ["tests.targets.plugin", "tests.cluster.fixtures", "tests.scenarios.fixtures"]
pytest.register_assert_rewrite("tests.scenarios", "tests.faults.resizing", "tests.kube")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A test that is skipped says nothing. Where every part must be there (CI), that is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    unasked = [name for name in ("skipped", "xfailed", "xpassed") if reporter and reporter.stats.get(name)]
    if unasked and os.environ.get("CI"):
        reporter.write_line(f"CI is set, so {' and '.join(unasked)} tests are failures", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
