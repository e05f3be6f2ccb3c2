"""What a container's CPU request comes to in its cgroup: its weight beside others."""

from __future__ import annotations

from pathlib import Path

from hotvirt.embedded.node.cgroups import Cgroups, Limits


def check_weight(cgroups: Cgroups, uid: str, cpu_request: int) -> None:
    """As the kernel has it; `Cgroups.read` cannot tell. Without the right to write cgroups there is none."""
    if not cgroups.usable:
        return
    expected = Limits(cpu_request)
    folder = Path(cgroups.container_procs(uid, "compute")[0]).parent
    if cgroups.version == 2:
        assert int((folder / "cpu.weight").read_text()) == expected.weight
    else:
        assert int((folder / "cpu.shares").read_text()) == expected.shares
