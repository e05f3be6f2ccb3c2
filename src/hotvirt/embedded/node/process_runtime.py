"""Containers as processes of this machine, each Pod behind a shim (see shim.py).

What runs is read from the shim's records, so that a node that was restarted, or killed, knows as much as
before. A process is ours when pid, start time and host boot id fit. Where the shim was killed its
containers go on; they are watched by pid from then on, and their exit code is unknown.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotvirt.api.meta import now_micro

from .cgroups import Cgroups, Limits
from .inotify import Inotify
from .network import NetworkError, PodNetwork, Sandbox
from .processes import EndWatch, Process, boot_id, wait_for_end
from .runtime import UNKNOWN_EXIT, ContainerRun, ExecResult, Launch, Listeners, PodLaunch, RuntimeFailure

LOG_BYTES = 5 << 20
START_SECONDS = 30.0
RELEASE_SECONDS = 10.0
OUTPUT_MAX = 4096
SHIM = Path(__file__).with_name("shim.py")
# Joins the cgroups named before "--", then becomes the command: no code of ours between fork and exec.
JOIN_AND_EXEC = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'


class ProcessRuntime:
    runs_processes = True

    def __init__(self, state_dir: Path, inotify: Inotify, *, egress: bool = True) -> None:
        self.cgroups = Cgroups(state_dir)
        self.network = PodNetwork(state_dir, egress=egress)
        self._inotify = inotify

    @property
    def notes(self) -> list[str]:
        return [n for n in (self.cgroups.reason, self.network.reason, self.network.egress_reason) if n]

    def pod(self, uid: str, folder: Path) -> ProcessPod:
        return ProcessPod(uid, folder, self.cgroups, self.network, self._inotify)

    async def forget_all_but(self, uids: set[str]) -> None:
        await self.network.keep_only(uids)

    def close(self) -> None:
        self.cgroups.remove_parents()


class ProcessPod(Listeners):
    def __init__(
        self,
        uid: str,
        folder: Path,
        cgroups: Cgroups,
        network: PodNetwork,
        inotify: Inotify,
    ) -> None:
        super().__init__()
        self._uid = uid
        self._folder = folder
        self._cgroups = cgroups
        self._network = network
        self._inotify = inotify
        self._sandbox: Sandbox | None = network.existing(uid)
        self._stop_watching: Callable[[], None] | None = None
        self._ends: dict[Process, EndWatch] = {}
        if self.started:
            self._watch()

    @property
    def address(self) -> str:
        return self._sandbox.address if self._sandbox else ""

    @property
    def started(self) -> bool:
        return (self._folder / "started").exists()

    async def prepare(self, pod: Limits, containers: dict[str, Limits]) -> None:
        try:
            self._sandbox = await self._network.add(self._uid)
            self._cgroups.create(self._uid, pod, containers)
        except (NetworkError, OSError) as error:
            raise RuntimeFailure(f"Failed to create pod sandbox: {error}") from error

    async def start(self, launch: PodLaunch) -> None:
        for name in ("containers", "logs"):
            (self._folder / name).mkdir(mode=0o700, exist_ok=True)
        start = {
            "cgroups": self._cgroups.shim_procs(),
            "initContainers": [self._container(container) for container in launch.init_containers],
            "containers": [self._container(container) for container in launch.containers],
        }
        (self._folder / "start.json").touch(mode=0o600)
        (self._folder / "start.json").write_text(json.dumps(start))
        self._watch()
        with (self._folder / "shim.log").open("wb") as errors:
            starter = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(SHIM),
                str(self._folder),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={"PATH": os.defpath},
                cwd="/",
            )
        try:
            said, _ = await asyncio.wait_for(starter.communicate(), START_SECONDS)
        except TimeoutError:
            said = b""
        if said != b"ok" and not self.started:
            why = (self._folder / "shim.log").read_text(errors="replace").strip().splitlines()
            raise RuntimeFailure(f"The Pod's shim did not start: {why[-1] if why else 'it said nothing'}")
        self._follow_processes()
        self._changed()

    def _container(self, launch: Launch) -> dict[str, Any]:
        return {
            "name": launch.name,
            "argv": [*self._enter_network(), *launch.argv],
            "env": launch.env,
            "cwd": launch.cwd,
            "cgroups": self._cgroups.container_procs(self._uid, launch.name),
            "logBytes": LOG_BYTES,
        }

    def _enter_network(self) -> list[str]:
        if self._sandbox is None or self._sandbox.namespace is None:
            return []
        return ["nsenter", f"--net={self._sandbox.namespace}", "--"]

    def _watch(self) -> None:
        records = self._folder / "containers"
        if self._stop_watching is None and records.is_dir():
            self._stop_watching = self._inotify.watch(records, self._record_written)
        self._follow_processes()

    def _record_written(self) -> None:
        self._follow_processes()
        self._changed()

    def _follow_processes(self) -> None:
        """Hear of the end of the shim; once it is gone, of the end of what it left behind."""
        shim = self._shim()
        wanted = [shim] if shim and shim.alive() else self._left_behind()
        for process in wanted:
            if process not in self._ends:
                self._ends[process] = EndWatch(process, lambda gone=process: self._process_ended(gone))  # type: ignore[misc]

    def _process_ended(self, process: Process) -> None:
        self._ends.pop(process, None)
        self._follow_processes()
        self._changed()

    def _left_behind(self) -> list[Process]:
        processes = [Process.from_record(r) for r in self._records().values() if "exitCode" not in r]
        return [process for process in processes if process and process.alive()]

    def _shim(self) -> Process | None:
        record = _read_json(self._folder / "shim.json")
        return Process.from_record(record) if record else None

    def _shim_lives(self) -> bool:
        """By its lock: true from its first moment, before it could write who it is."""
        try:
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _records(self) -> dict[str, dict[str, Any]]:
        try:
            paths = list((self._folder / "containers").glob("*.json"))
        except FileNotFoundError:  # the folder is just being removed
            return {}
        records = {path.stem: _read_json(path) for path in paths}
        return {name: record for name, record in records.items() if record}

    def containers(self) -> dict[str, ContainerRun]:
        if not self.started:
            return {}
        lives = self._shim_lives()
        records = self._records()  # read after looking at the shim: a dead one writes nothing any more
        runs = {name: self._run(name, record, lives) for name, record in records.items()}
        if not lives:
            for name in self._names() - set(runs):
                runs[name] = self._lost(name, {"startedAt": now_micro()}, "The container was never started.")
        return runs

    def _names(self) -> set[str]:
        """Which containers there should be. After a failed init container the others are never started."""
        start = _read_json(self._folder / "start.json") or {"initContainers": [], "containers": []}
        records = self._records()
        for init in start["initContainers"]:
            if records.get(init["name"], {}).get("exitCode", 0) != 0:
                return set()
        return {container["name"] for container in (*start["initContainers"], *start["containers"])}

    def _run(self, name: str, record: dict[str, Any], shim_lives: bool) -> ContainerRun:
        started = str(record.get("startedAt", ""))
        if "exitCode" in record:
            return self._ended(name, record)
        process = Process.from_record(record)
        if shim_lives or (process and process.alive()):
            return ContainerRun(started)
        if record.get("bootId") != boot_id():
            lost = "The machine was restarted while the container ran."
        else:
            lost = "The container could not be located when the pod was terminated"
        return self._lost(name, record, lost)

    def _lost(self, name: str, record: dict[str, Any], message: str) -> ContainerRun:
        record |= {"exitCode": UNKNOWN_EXIT, "finishedAt": now_micro(), "lost": message}
        self._keep(name, record)
        return self._ended(name, record)

    def _keep(self, name: str, record: dict[str, Any]) -> None:
        """What the node found out about a container that the shim will not write about any more."""
        path = self._folder / "containers" / f"{name}.json"
        path.with_suffix(".node").write_text(json.dumps(record))
        path.with_suffix(".node").replace(path)

    def _ended(self, name: str, record: dict[str, Any]) -> ContainerRun:
        code, number = int(record["exitCode"]), int(record.get("signal", 0))
        reason, message = "Error" if code else "Completed", ""
        if record.get("error"):
            reason, message = "StartError", str(record["error"])
        elif record.get("lost"):
            reason, message = "ContainerStatusUnknown", str(record["lost"])
        elif number == signal.SIGKILL:
            if "oom" not in record:  # the cgroup that knows goes soon
                record["oom"] = self._cgroups.oom_kills(self._uid, name) > 0
                self._keep(name, record)
            reason = "OOMKilled" if record["oom"] else "Error"
        return ContainerRun(
            str(record["startedAt"]), code, number, str(record["finishedAt"]), reason, message
        )

    def signal(self, container: str, number: int) -> bool:
        record = self._records().get(container)
        process = Process.from_record(record) if record and "exitCode" not in record else None
        return process.signal(number) if process else False

    async def execute(self, launch: Launch, timeout: float) -> ExecResult:
        cgroups = self._cgroups.container_procs(self._uid, launch.name)
        argv = ["sh", "-c", JOIN_AND_EXEC, "sh", *cgroups, "--", *self._enter_network(), *launch.argv]
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=launch.env,
            cwd=launch.cwd,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(timeout):
                output = b""
                while part := await process.stdout.read(1 << 16):  # all of it, or it would block
                    output = (output + part)[:OUTPUT_MAX]
                code = await process.wait()
        except TimeoutError:
            return ExecResult(137, f"It was stopped after {timeout:.0f} s.")
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return ExecResult(code, output.decode(errors="replace").strip())

    def resize(self, pod: Limits, containers: dict[str, Limits]) -> None:
        self._cgroups.apply(self._uid, pod, containers)

    def memory_usage(self, container: str | None = None) -> int | None:
        return self._cgroups.memory_usage(self._uid, container)

    async def release(self) -> None:
        deadline = asyncio.get_running_loop().time() + RELEASE_SECONDS
        self._cgroups.kill(self._uid)
        while not self._cgroups.remove(self._uid):
            if asyncio.get_running_loop().time() > deadline:
                raise RuntimeFailure(f"The cgroup of Pod {self._uid} still has processes in it.")
            # cgroup v1 has no event for "the last process is gone".
            await asyncio.sleep(0.02)
            self._cgroups.kill(self._uid)
        await self._network.remove(self._uid)
        shim = self._shim()
        if shim:
            await wait_for_end(shim, RELEASE_SECONDS)
        self._cgroups.remove_parents()

    def close(self) -> None:
        if self._stop_watching:
            self._stop_watching()
            self._stop_watching = None
        for watch in self._ends.values():
            watch.close()
        self._ends.clear()


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
