"""Control groups: real ones where this machine lets us, and the values of both versions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotvirt.embedded.node.cgroups import Cgroups, Limits, Write

MIB = 1 << 20
UID = "3a1d6a94-0000-4000-8000-000000000001"
SMALL = Limits(100, 200, 64 * MIB)
LARGE = Limits(1000, 2000, 256 * MIB)


class Version2(Cgroups):
    """A folder that answers as cgroup v2 does: each new group has its files."""

    def _make(self, *path: str) -> None:
        for folder in self._folders(*path):
            if not folder.exists():
                folder.mkdir(parents=True)
                self.fill(folder)

    @staticmethod
    def fill(folder: Path) -> None:
        content = {
            "cgroup.subtree_control": "",
            "cgroup.procs": "",
            "cpu.weight": "100\n",
            "cpu.max": "max 100000\n",
            "memory.max": "max\n",
            "memory.current": "4096\n",
            "memory.events": "low 0\noom 1\noom_kill 2\n",
        }
        for name, text in content.items():
            (folder / name).write_text(text)


@pytest.fixture
def version2(tmp_path: Path) -> Cgroups:
    mount = tmp_path / "cgroup"
    mount.mkdir()
    (mount / "cgroup.controllers").write_text("cpu memory")
    (mount / "cgroup.subtree_control").write_text("cpu memory")
    made = Version2.__new__(Version2)
    name = "hotvirt-"
    made.name, made.log, made.reason, made.version = name, [], "", 2
    made._roots = {"unified": mount}
    return made


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Cgroups]:
    made = Cgroups(tmp_path)
    yield made
    made.remove(UID)
    made.remove_parents()


def memory_writes(writes: list[Write]) -> list[str]:
    return [Path(write.cgroup).name for write in writes if write.file.startswith("memory")]


def weights(writes: list[Write]) -> list[tuple[str, str]]:
    return [(Path(write.cgroup).name, write.value) for write in writes if write.file == "cpu.weight"]


def test_version_2_has_its_own_words(version2: Cgroups) -> None:
    version2.create(UID, SMALL, {"compute": SMALL})
    group = version2._roots["unified"] / version2.name / f"pod{UID}" / "compute"
    assert (group / "cpu.max").read_text() == "20000 100000"
    assert (group / "cpu.weight").read_text() == "4"
    assert (group / "memory.max").read_text() == str(64 * MIB)
    assert "+cpu +memory" in (group.parent / "cgroup.subtree_control").read_text()
    assert version2.read(UID, "compute") == Limits(0, 200, 64 * MIB)
    version2.apply(UID, Limits(100), {"compute": Limits(100)})
    assert (group / "cpu.max").read_text() == "max 100000"
    assert (group / "memory.max").read_text() == "max"
    assert version2.read(UID) == Limits()
    assert version2.memory_usage(UID, "compute") == 4096
    assert version2.oom_kills(UID, "compute") == 2


def test_growing_goes_outside_in_and_shrinking_inside_out(version2: Cgroups) -> None:
    version2.create(UID, SMALL, {"compute": SMALL})
    writes: list[Write] = []
    version2.log.append(writes.append)
    version2.apply(UID, LARGE, {"compute": LARGE})
    assert memory_writes(writes) == [f"pod{UID}", "compute"]
    assert weights(writes) == [(f"pod{UID}", "39"), ("compute", "39")]
    writes.clear()
    version2.apply(UID, SMALL, {"compute": SMALL})
    assert memory_writes(writes) == ["compute", f"pod{UID}"]
    assert weights(writes) == [("compute", "4"), (f"pod{UID}", "4")]
    writes.clear()
    version2.apply(UID, SMALL, {"compute": SMALL})
    assert writes == []


def test_cpu_up_and_memory_down_in_one_go(version2: Cgroups) -> None:
    version2.create(UID, Limits(100, 1000, 256 * MIB), {"compute": Limits(100, 1000, 256 * MIB)})
    writes: list[Write] = []
    version2.log.append(writes.append)
    mixed = Limits(100, 2000, 64 * MIB)
    version2.apply(UID, mixed, {"compute": mixed})
    assert [(Path(w.cgroup).name, w.file) for w in writes] == [
        (f"pod{UID}", "cpu.max"),
        ("compute", "cpu.max"),
        ("compute", "memory.max"),
        (f"pod{UID}", "memory.max"),
    ]


def test_this_machines_own(real: Cgroups) -> None:
    """Where we may write them, the kernel has what was asked for; where not, one sentence says so."""
    real.create(UID, LARGE, {"compute": SMALL})
    if not real.usable:
        assert "Pods run without limits" in real.reason
        assert real.read(UID) is None and real.container_procs(UID, "compute") == []
        return
    assert real.read(UID) == Limits(0, 2000, 256 * MIB)
    assert real.read(UID, "compute") == Limits(0, 200, 64 * MIB)
    assert real.memory_usage(UID, "compute") == 0
    for path in real.container_procs(UID, "compute"):
        assert os.access(path, os.W_OK)
    assert real.remove(UID) and real.remove(UID)
    assert real.read(UID) is None
    real.remove_parents()
    assert not any(folder.exists() for folder in real._folders())


def test_no_trace_before_the_first_pod(real: Cgroups) -> None:
    assert not any(folder.exists() for folder in real._folders())


def test_without_cgroups_there_is_a_sentence(tmp_path: Path) -> None:
    none = Cgroups(tmp_path, mounts=tmp_path)
    assert not none.usable and none.reason.endswith("Pods run without limits.")
    none.create(UID, SMALL, {"compute": SMALL})
    none.apply(UID, LARGE, {"compute": LARGE})
    assert none.remove(UID) and none.pids(UID) == set() and none.shim_procs() == []
