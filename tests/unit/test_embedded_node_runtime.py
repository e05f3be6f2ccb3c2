"""Pods as real processes: started once, logged, adopted, ended, and left alone by whatever happens to the
node.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from hotvirt.embedded.node.cgroups import Limits
from hotvirt.embedded.node.inotify import Inotify
from hotvirt.embedded.node.process_runtime import ProcessPod, ProcessRuntime
from hotvirt.embedded.node.processes import Process, boot_id, start_time, wait_for_end
from hotvirt.embedded.node.runtime import Launch, PodLaunch, RuntimeFailure

UID = str(uuid.uuid4())
"""Names links and groups of this machine, where the same tests may run twice."""
MIB = 1 << 20
NO_LIMITS = Limits(cpu_request=100)


class Bench:
    """One Pod on a runtime of its own."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.inotify = Inotify()
        self.runtime = ProcessRuntime(state, self.inotify, egress=False)
        self.folder = state / "pods" / UID
        self.folder.mkdir(parents=True, exist_ok=True)
        self.pod: ProcessPod = self.runtime.pod(UID, self.folder)

    async def start(self, *scripts: str, init: tuple[str, ...] = (), limits: Limits = NO_LIMITS) -> None:
        env = {"PATH": os.environ["PATH"]}

        def launch(prefix: str, number: int, script: str) -> Launch:
            return Launch(f"{prefix}{number}", ["sh", "-c", script], env, "/")

        inits = [launch("init", number, script) for number, script in enumerate(init)]
        mains = [launch("c", number, script) for number, script in enumerate(scripts)]
        await self.pod.prepare(limits, {each.name: limits for each in (*inits, *mains)})
        await self.pod.start(PodLaunch(mains, inits))
        await self.until(lambda: ("init0" if inits else "c0") in self.pod.containers())

    @property
    def until_told(self) -> str:
        """For a script: it goes on at `tell`."""
        return f"while [ ! -e {self.folder}/told ]; do sleep 0.01; done"

    def tell(self) -> None:
        (self.folder / "told").touch()

    async def until_in(self, folder: Path, true: Callable[[], bool]) -> None:
        """Wait for another process's file."""
        changed = asyncio.Event()
        stop = self.inotify.watch(folder, changed.set)
        try:
            async with asyncio.timeout(60):
                while not true():
                    await changed.wait()
                    changed.clear()
        finally:
            stop()

    async def until(self, true: Callable[[], bool]) -> None:
        changed = asyncio.Event()
        stop = self.pod.on_change(changed.set)
        try:
            async with asyncio.timeout(60):
                while not true():
                    changed.clear()
                    if not true():
                        await changed.wait()
        finally:
            stop()

    async def until_ended(self, name: str = "c0") -> None:
        await self.until(lambda: name in self.pod.containers() and not self.pod.containers()[name].running)

    def forget(self) -> None:
        """As a node that is killed, and another that finds the folder."""
        self.pod.close()
        self.pod = self.runtime.pod(UID, self.folder)

    def record(self, name: str = "c0") -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / "containers" / f"{name}.json").read_text())
        return found

    def process(self, name: str = "c0") -> Process:
        process = Process.from_record(self.record(name))
        assert process
        return process

    def shim(self) -> Process:
        process = Process.from_record(json.loads((self.folder / "shim.json").read_text()))
        assert process
        return process

    def printed(self, name: str = "c0") -> bytes:
        text = b""
        for line in (self.folder / "logs" / name / "0.log").read_bytes().splitlines():
            _, _, tag, rest = line.split(b" ", 3)
            text += rest + (b"\n" if tag == b"F" else b"")
        return text


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for name, run in made.pod.containers().items():
        if run.running:
            made.pod.signal(name, signal.SIGKILL)
    await made.pod.release()
    made.pod.close()
    made.inotify.close()


async def test_exit_code_and_output_are_recorded(bench: Bench) -> None:
    await bench.start("echo out; echo err >&2; exit 7")
    await bench.until_ended()
    run = bench.pod.containers()["c0"]
    assert (run.exit_code, run.signal, run.reason) == (7, 0, "Error")
    assert run.started_at <= run.finished_at
    lines = (bench.folder / "logs" / "c0" / "0.log").read_text().splitlines()
    assert {line.split(" ", 1)[1] for line in lines} == {"stdout F out", "stderr F err"}


async def test_a_signal_is_recorded(bench: Bench) -> None:
    await bench.start("exec sleep 100")
    assert bench.pod.signal("c0", signal.SIGTERM)
    await bench.until_ended()
    run = bench.pod.containers()["c0"]
    assert (run.exit_code, run.signal) == (143, 15)
    assert not bench.pod.signal("c0", signal.SIGTERM)


async def test_what_cannot_be_run_is_a_start_error(bench: Bench) -> None:
    await bench.pod.prepare(NO_LIMITS, {"c0": NO_LIMITS})
    launch = Launch("c0", ["/no/such/program"], {"PATH": os.environ["PATH"]}, "/no/such/folder")
    await bench.pod.start(PodLaunch([launch]))
    await bench.until_ended()
    run = bench.pod.containers()["c0"]
    assert (run.exit_code, run.reason) == (128, "StartError")
    assert "/no/such/folder" in run.message


async def test_init_containers_run_one_after_the_other(bench: Bench) -> None:
    folder = bench.folder
    init = (f"sleep 0.1; echo a >> {folder}/order", f"echo b >> {folder}/order")
    await bench.start(f"echo c >> {folder}/order", init=init)
    await bench.until_ended()
    assert (folder / "order").read_text().split() == ["a", "b", "c"]


async def test_nothing_starts_after_a_failed_init_container(bench: Bench) -> None:
    await bench.start(f"touch {bench.folder}/ran", init=("exit 4",))
    await bench.until_ended("init0")
    assert await wait_for_end(bench.shim(), 60)
    assert bench.pod.containers()["init0"].exit_code == 4
    assert "c0" not in bench.pod.containers()
    assert not (bench.folder / "ran").exists()


async def test_a_restarted_node_adopts_what_runs(bench: Bench) -> None:
    await bench.start(f"{bench.until_told}; exit 5")
    process = bench.process()
    bench.forget()
    assert bench.pod.started and bench.pod.containers()["c0"].running
    assert process.alive()
    bench.tell()
    await bench.until_ended()
    assert bench.pod.containers()["c0"].exit_code == 5


async def test_a_pod_is_never_started_twice(bench: Bench) -> None:
    script = f"echo x >> {bench.folder}/starts; {bench.until_told}"
    await bench.start(script)
    first = bench.process()
    bench.forget()
    await bench.start(script)
    bench.tell()
    await bench.until_ended()
    assert bench.process() == first
    assert (bench.folder / "starts").read_text() == "x\n"


async def test_the_container_outlives_its_shim(bench: Bench) -> None:
    """It goes on printing into a closed pipe, as QEMU does, and is ended by its pid."""
    await bench.start(f"while :; do echo tick; echo x >> {bench.folder}/alive; sleep 0.01; done")
    alive = bench.folder / "alive"
    await bench.until_in(bench.folder, alive.exists)
    shim, process = bench.shim(), bench.process()
    shim.signal(signal.SIGKILL)
    assert await wait_for_end(shim, 60)
    before = alive.stat().st_size
    await bench.until_in(bench.folder, lambda: alive.stat().st_size > before + 20)
    assert process.alive() and bench.pod.containers()["c0"].running
    bench.forget()
    assert bench.pod.containers()["c0"].running
    assert bench.pod.signal("c0", signal.SIGKILL)
    await bench.until_ended()
    run = bench.pod.containers()["c0"]
    assert (run.exit_code, run.reason) == (255, "ContainerStatusUnknown")
    assert bench.pod.containers()["c0"] == run


async def test_after_a_reboot_the_containers_are_lost(bench: Bench) -> None:
    await bench.start("exec sleep 100")
    bench.shim().signal(signal.SIGKILL)
    bench.process().signal(signal.SIGKILL)
    assert await wait_for_end(bench.shim(), 60) and await wait_for_end(bench.process(), 60)
    record = bench.record() | {"bootId": "another", "pid": os.getpid()}
    (bench.folder / "containers" / "c0.json").write_text(json.dumps(record))
    bench.forget()
    run = bench.pod.containers()["c0"]
    assert (run.exit_code, run.reason) == (255, "ContainerStatusUnknown")
    assert "restarted" in run.message


def test_somebody_elses_process_is_never_taken_for_ours() -> None:
    stranger = Process(os.getpid(), 1, boot_id())
    assert not stranger.alive() and not stranger.signal(0) and stranger.pidfd() is None


async def test_the_log_is_bounded_whatever_is_printed(bench: Bench) -> None:
    await bench.start("head -c 30000000 /dev/zero; echo end")
    await bench.until_ended()
    files = {path.name: path.stat().st_size for path in (bench.folder / "logs" / "c0").iterdir()}
    assert set(files) == {"0.log", "0.log.1"}
    assert all(size <= 5 * MIB for size in files.values())
    assert bench.printed().endswith(b"\0end\n")


async def test_long_lines_are_cut_into_parts_and_nothing_is_lost(bench: Bench) -> None:
    await bench.start("head -c 100000 /dev/zero | tr '\\0' x; echo; printf 'no newline'")
    await bench.until_ended()
    assert bench.printed() == b"x" * 100000 + b"\nno newline\n"
    lines = (bench.folder / "logs" / "c0" / "0.log").read_bytes().splitlines()
    assert max(map(len, lines)) < 17 * 1024
    assert [line.split(b" ")[2] for line in lines][-2:] == [b"F", b"F"]


async def test_a_prompt_without_newline_reaches_the_log(bench: Bench) -> None:
    await bench.start("printf 'login: '; exec sleep 100")
    log = bench.folder / "logs" / "c0" / "0.log"
    await bench.until_in(log.parent, lambda: log.exists() and log.stat().st_size > 0)
    assert log.read_text().endswith("stdout P login: \n")


async def test_what_a_container_leaves_behind_goes_with_it(bench: Bench) -> None:
    await bench.start(f"sleep 100 & echo $! > {bench.folder}/child; exit 0")
    await bench.until_ended()
    child = int((bench.folder / "child").read_text())
    await bench.pod.release()
    assert start_time(child) is None


async def test_execute_has_environment_time_limit_and_cgroup(bench: Bench) -> None:
    await bench.start("exec sleep 100")
    env = {"PATH": os.environ["PATH"], "WHO": "me"}
    said = await bench.pod.execute(
        Launch("c0", ["sh", "-c", "echo $WHO; cat /proc/self/cgroup"], env, "/"), 60
    )
    assert said.exit_code == 0 and said.output.startswith("me\n")
    assert (f"pod{UID}/c0" in said.output) == bench.runtime.cgroups.usable
    late = await bench.pod.execute(Launch("c0", ["sleep", "100"], env, "/"), 0.1)
    assert late.exit_code == 137


async def test_memory_beyond_the_limit_is_an_oom_kill(bench: Bench) -> None:
    limits = Limits(100, None, 32 * MIB)
    await bench.start("exec python3 -c 'x = bytearray(200 << 20)'", limits=limits)
    await bench.until_ended()
    run = bench.pod.containers()["c0"]
    limited = bench.runtime.cgroups.usable
    assert (run.exit_code, run.reason) == ((137, "OOMKilled") if limited else (0, "Completed"))


async def test_everything_is_given_back(bench: Bench) -> None:
    await bench.start("exec sleep 100")
    name = bench.runtime.cgroups.name
    sandbox = bench.runtime.network.existing(UID)
    assert sandbox and sandbox.address
    assert bool(sandbox.namespace and sandbox.namespace.exists()) == bench.runtime.network.isolated
    bench.pod.signal("c0", signal.SIGKILL)
    await bench.until_ended()
    await bench.pod.release()
    await bench.pod.release()
    assert not (sandbox.namespace and sandbox.namespace.exists())
    assert bench.runtime.network.existing(UID) is None
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{name}")) and not Path(f"/sys/fs/cgroup/{name}").exists()


async def test_a_shim_that_cannot_start_says_why(bench: Bench) -> None:
    (bench.folder / "lock").mkdir()
    await bench.pod.prepare(NO_LIMITS, {"c0": NO_LIMITS})
    with pytest.raises(RuntimeFailure, match="IsADirectoryError"):
        await bench.pod.start(PodLaunch([Launch("c0", ["true"], {}, "/")]))
    (bench.folder / "lock").rmdir()
