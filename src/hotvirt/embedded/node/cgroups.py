"""Control groups of the Pods, v2 and v1.

    hotvirt-<hash of the state folder>/
      shims/                        the shims of all Pods: they cost a Pod nothing
      pod<uid>/<container>/         sized as the kubelet sizes them, Pod and container each

Values are written only when they differ. Growing goes from the outside in, shrinking from the inside out,
so that a child never has more than its parent allows. Without the right to write there are no cgroups, and
`reason` says so.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

CPU_PERIOD_US = 100_000
MIN_QUOTA_US = 1_000
MIN_SHARES = 2
MAX_SHARES = 262_144
V1_UNLIMITED = 9223372036854771712


@dataclass(frozen=True)
class Limits:
    """What a cgroup holds: cpu request and limit in thousandths, memory limit in bytes; None is no limit."""

    cpu_request: int = 0
    cpu_limit: int | None = None
    memory_limit: int | None = None

    @property
    def shares(self) -> int:
        return min(max(self.cpu_request * 1024 // 1000, MIN_SHARES), MAX_SHARES)

    @property
    def weight(self) -> int:
        """cgroup v2's scale, converted as the kubelet and runc do."""
        return 1 + (self.shares - 2) * 9999 // 262142

    @property
    def quota_us(self) -> int | None:
        if self.cpu_limit is None:
            return None
        return max(self.cpu_limit * CPU_PERIOD_US // 1000, MIN_QUOTA_US)


@dataclass(frozen=True)
class Write:
    """One entry of the ordered log of writes."""

    cgroup: str
    file: str
    value: str


class CgroupError(OSError):
    """A write was refused; the message names the file."""


class Cgroups:
    """All cgroups of one state folder. `log` sees every write of a size, in order."""

    def __init__(self, state_dir: Path, mounts: Path = Path("/sys/fs/cgroup")) -> None:
        self.name = "hotvirt-" + hashlib.sha256(os.fsencode(state_dir.resolve())).hexdigest()[:10]
        self.log: list[Callable[[Write], None]] = []
        self.version = 0
        self.reason = ""
        self._roots: dict[str, Path] = {}
        try:
            self._find(mounts)
        except OSError as error:
            self.version = 0
            self.reason = f"Cgroups cannot be used ({error}): Pods run without limits."

    @property
    def usable(self) -> bool:
        return self.version != 0

    def _find(self, mounts: Path) -> None:
        if (mounts / "cgroup.controllers").exists():
            self._roots = {"unified": self._unified_root(mounts)}
            self.version = 2
        elif all((mounts / controller / "tasks").exists() for controller in ("cpu", "memory")):
            self._roots = {name: mounts / name for name in ("cpu", "memory")}
            self.version = 1
        else:
            self.reason = f"No cpu and memory cgroups are mounted at {mounts}: Pods run without limits."
            return
        self._make_parents()  # to see that we may
        self.remove_parents()

    def _make_parents(self) -> None:
        self._make()
        if self.version == 2:
            self._enable_controllers(next(self._folders()))
        self._make("shims")
        # All Pods together weigh as much as the machine has CPUs, as the kubelet's kubepods does.
        whole = Limits(cpu_request=(os.cpu_count() or 1) * 1000)
        for path in ((), ("shims",)):
            file, value = ("cpu.weight", whole.weight) if self.version == 2 else ("cpu.shares", whole.shares)
            root = self._roots["unified" if self.version == 2 else "cpu"]
            (root.joinpath(self.name, *path) / file).write_text(str(value))

    def _unified_root(self, mount: Path) -> Path:
        """The mount itself where we may write it, else the nearest folder above us that was given to us."""
        own = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip().lstrip("/")
        candidates = [mount, *(mount / part for part in [Path(own), *Path(own).parents] if str(part) != ".")]
        error: OSError | None = None
        for candidate in candidates:
            try:
                self._enable_controllers(candidate)
                (candidate / self.name).mkdir(exist_ok=True)
            except OSError as refused:
                error = refused
                continue
            return candidate
        raise error or OSError("no cgroup may be written")

    @staticmethod
    def _enable_controllers(folder: Path) -> None:
        enabled = (folder / "cgroup.subtree_control").read_text().split()
        missing = [name for name in ("cpu", "memory") if name not in enabled]
        if missing:
            (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in missing))

    def _folders(self, *path: str) -> Iterator[Path]:
        for root in self._roots.values():
            yield root.joinpath(self.name, *path)

    def _make(self, *path: str) -> None:
        for folder in self._folders(*path):
            folder.mkdir(parents=True, exist_ok=True)

    def shim_procs(self) -> list[str]:
        """The files that a shim writes its pid to."""
        return [str(folder / "cgroup.procs") for folder in self._folders("shims")] if self.usable else []

    def container_procs(self, uid: str, container: str) -> list[str]:
        return [str(f / "cgroup.procs") for f in self._folders(f"pod{uid}", container)] if self.usable else []

    def create(self, uid: str, pod: Limits, containers: dict[str, Limits]) -> None:
        if not self.usable:
            return
        self._make_parents()
        self._make(f"pod{uid}")
        if self.version == 2:
            for folder in self._folders(f"pod{uid}"):
                self._enable_controllers(folder)
        for name in containers:
            self._make(f"pod{uid}", name)
        self.apply(uid, pod, containers)

    def apply(self, uid: str, pod: Limits, containers: dict[str, Limits]) -> None:
        """Bring the cgroups to these sizes: first what grows from the outside in, then what shrinks from
        the inside out.
        """
        if not self.usable:
            return
        outside_in = [
            ((f"pod{uid}",), pod),
            *(((f"pod{uid}", name), size) for name, size in containers.items()),
        ]
        files = [file for path, limits in outside_in for file in self._files(path, limits)]
        differ = [(file, value, more) for file, value in files if (more := _difference(file, value))]
        for file, value, _ in [each for each in differ if each[2] > 0]:
            self._write(file, value)
        for file, value, _ in [each for each in reversed(differ) if each[2] < 0]:
            self._write(file, value)

    def _files(self, path: tuple[str, ...], limits: Limits) -> list[tuple[Path, str]]:
        """The files of one group, and what is to be in them."""
        quota, memory = limits.quota_us, limits.memory_limit
        if self.version == 2:
            folder = next(self._folders(*path))
            return [
                (folder / "cpu.weight", str(limits.weight)),
                (folder / "cpu.max", f"{'max' if quota is None else quota} {CPU_PERIOD_US}"),
                (folder / "memory.max", "max" if memory is None else str(memory)),
            ]
        cpu = self._roots["cpu"].joinpath(self.name, *path)
        return [
            (cpu / "cpu.shares", str(limits.shares)),
            (cpu / "cpu.cfs_quota_us", str(-1 if quota is None else quota)),
            (
                self._roots["memory"].joinpath(self.name, *path) / "memory.limit_in_bytes",
                str(-1 if memory is None else memory),
            ),
        ]

    def _write(self, file: Path, value: str) -> None:
        try:
            file.write_bytes(value.encode())
        except OSError as error:
            raise CgroupError(error.errno, f"{file}: {error.strerror}") from error
        for entry in self.log:
            entry(Write(str(file.parent), file.name, value))

    def read(self, uid: str, container: str | None = None) -> Limits | None:
        """The limits in force; None where there is no such cgroup. The request cannot be read back exactly:
        0.
        """
        if not self.usable:
            return None
        path = (f"pod{uid}", container) if container else (f"pod{uid}",)
        try:
            if self.version == 2:
                folder = next(self._folders(*path))
                quota = _amount((folder / "cpu.max").read_text())
                memory = _amount((folder / "memory.max").read_text())
            else:
                quota = _amount(
                    (self._roots["cpu"].joinpath(self.name, *path) / "cpu.cfs_quota_us").read_text()
                )
                file = self._roots["memory"].joinpath(self.name, *path) / "memory.limit_in_bytes"
                memory = _amount(file.read_text())
        except FileNotFoundError:
            return None
        cpu_limit = None if quota == V1_UNLIMITED else quota * 1000 // CPU_PERIOD_US
        return Limits(0, cpu_limit, None if memory >= V1_UNLIMITED else memory)

    def memory_usage(self, uid: str, container: str | None = None) -> int | None:
        """Bytes in use, page cache included, as the kubelet looks at it."""
        if not self.usable:
            return None
        path = (f"pod{uid}", container) if container else (f"pod{uid}",)
        root, file = (
            ("unified", "memory.current") if self.version == 2 else ("memory", "memory.usage_in_bytes")
        )
        try:
            return int((self._roots[root].joinpath(self.name, *path) / file).read_text())
        except FileNotFoundError:
            return None

    def oom_kills(self, uid: str, container: str) -> int:
        if not self.usable:
            return 0
        root, file = ("unified", "memory.events") if self.version == 2 else ("memory", "memory.oom_control")
        try:
            text = (self._roots[root].joinpath(self.name, f"pod{uid}", container) / file).read_text()
        except FileNotFoundError:
            return 0
        counts = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
        return int(counts.get("oom_kill", 0))

    def pids(self, uid: str) -> set[int]:
        found: set[int] = set()
        if self.usable:
            root = next(self._folders(f"pod{uid}"))
            for file in root.rglob("cgroup.procs"):
                try:
                    found.update(int(line) for line in file.read_text().split())
                except OSError:
                    continue
        return found

    def kill(self, uid: str) -> None:
        """SIGKILL to whatever is still in the Pod's cgroup (what its containers started and left behind)."""
        for pid in self.pids(uid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def remove(self, uid: str) -> bool:
        """True when nothing of it is left; a cgroup with a dying process in it cannot go yet."""
        gone = True
        if self.usable:
            for folder in self._folders(f"pod{uid}"):
                for part in sorted((p for p in [folder, *folder.rglob("*")] if p.is_dir()), reverse=True):
                    gone = _rmdir(part) and gone
        return gone

    def remove_parents(self) -> None:
        """What all Pods share, once none of them is left."""
        if self.usable and not any(any(folder.glob("pod*")) for folder in self._folders()):
            for folder in (*self._folders("shims"), *self._folders()):
                _rmdir(folder)


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _difference(file: Path, value: str) -> int:
    """By how much more it is than what is in the file."""
    old, new = _amount(file.read_bytes().decode()), _amount(value)
    if file.name.startswith("memory"):  # kept in whole pages
        return new // 4096 - old // 4096
    return new - old


def _amount(text: str) -> int:
    """A figure that grows with what the group may use: "max" and -1 are more than any number."""
    first = text.split()[0]
    return V1_UNLIMITED if first in ("max", "-1") else int(first)
