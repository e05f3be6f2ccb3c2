"""The launcher as a program: hand-over, exec, console log, stop. A stand-in plays QEMU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotvirt.hypervisor.console_log import MAX_BUFFER
from hotvirt.hypervisor.files import MACHINE_VARIABLE, ROOT_VARIABLE
from hotvirt.plan.machine import Cpu, Interface, Machine, Memory, to_json

LAUNCHER = [sys.executable, "-m", "hotvirt.hypervisor.launcher"]
MIB = 1 << 20

# What the launcher becomes: writes down how it was started, listens on stop.sock, talks on serial.sock.
STAND_IN = """#!{python}
import json, os, socket, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(print("QEMU emulator version 9.2.0 (stand-in)"))
with open("started.new", "w") as file:
    links = {{}}
    for fd in os.listdir("/proc/self/fd"):
        try:
            links[fd] = os.readlink(f"/proc/self/fd/{{fd}}")
        except OSError:
            pass
    json.dump({{"argv": sys.argv, "pid": os.getpid(), "fds": links}}, file)
serial = socket.socket(socket.AF_UNIX)
serial.connect("serial.sock")
serial.sendall(b"hello from the guest\\r\\n")
stop = socket.socket(socket.AF_UNIX)
stop.bind("stop.sock")
stop.listen()
os.rename("started.new", "started")
monitor, _ = stop.accept()
heard = b""
while b"system_powerdown" not in heard:
    heard += monitor.recv(4096)
serial.sendall(b"goodbye\\r\\n")
sys.exit(0)
"""


def until(ready: Callable[[], Any], what: str, patience: float = 60) -> Any:
    """Poll: other processes' files have no event for a test to await."""
    deadline = time.monotonic() + patience
    while not (answer := ready()):
        assert time.monotonic() < deadline, f"no {what} within {patience:g} s"
        time.sleep(0.01)
    return answer


class Pod:
    def __init__(self, root: Path) -> None:
        self.run = root / "var/run/hotvirt"
        self.run.mkdir(parents=True)
        (root / "var/run/hotvirt-scratch").mkdir()
        programs = root / "bin"
        programs.mkdir()
        stand_in = programs / "qemu-system-x86_64"
        stand_in.write_text(STAND_IN.format(python=sys.executable))
        stand_in.chmod(0o755)
        machine = Machine(
            name="vm",
            namespace="ns",
            hostname="vm",
            uuid="5d1b2f6e-8c1e-4b62-9a51-1d6d5c0f3a77",
            cpu=Cpu(sockets=2, max_sockets=4),
            memory=Memory(boot=64 * MIB),
            interfaces=(Interface(name="default", mac="02:00:00:00:00:01"),),
        )
        self.env = os.environ | {
            ROOT_VARIABLE: str(root),
            MACHINE_VARIABLE: to_json(machine),
            "PATH": f"{programs}:{os.environ['PATH']}",
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, verb: str, **more: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([*LAUNCHER, verb], env=self.env, **more)
        self.processes.append(process)
        return process

    def connect(self, name: str) -> socket.socket:
        until((self.run / name).exists, name)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(str(self.run / name))
        return connection

    def hand_over(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        with self.connect("launcher.sock") as connection:
            socket.send_fds(connection, [json.dumps(message).encode() + b"\n"], descriptors or [])

    def started(self) -> dict[str, Any]:
        until((self.run / "started").exists, "the machine")
        found: dict[str, Any] = json.loads((self.run / "started").read_text())
        return found


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()


def test_the_whole_life_of_a_machine(pod: Pod) -> None:
    log = pod.start("console-log", stdout=subprocess.PIPE)
    compute = pod.start("run", stderr=subprocess.DEVNULL)
    with pod.connect("launcher.sock"):
        pass  # an agent that died before it said anything
    reader, writer = os.pipe()
    pod.hand_over({"accel": "tcg", "network": {"kind": "tap"}}, [reader])
    os.close(reader)
    os.close(writer)
    started = pod.started()
    assert started["pid"] == compute.pid, "the launcher became the hypervisor: nothing stays beside it"
    netdev = started["argv"][started["argv"].index("-netdev") + 1]
    descriptor = netdev.split("fd=")[1]
    assert started["fds"][descriptor].startswith("pipe:"), "the descriptor came through"
    record = json.loads((pod.run / "machine.json").read_text())
    assert (record["accel"], record["argv"]) == ("tcg", ["qemu-system-x86_64", *started["argv"][1:]])
    assert record["machine"]["name"] == "vm"
    assert not (pod.run / "launcher.sock").exists()

    assert subprocess.run([*LAUNCHER, "stop"], env=pod.env, timeout=60).returncode == 0
    assert compute.wait(timeout=60) == 0
    output, _ = log.communicate(timeout=60)
    assert log.returncode == 0
    assert output == b"hello from the guest\r\ngoodbye\r\n"


@pytest.mark.parametrize(("given", "option"), [([9, 1, 2], "reconnect=1"), ([], "reconnect-ms=1000")])
def test_without_a_version_from_the_agent_it_asks_its_own_hypervisor(
    pod: Pod, given: list[int], option: str
) -> None:
    """The node agent of a cluster has none to ask; the stand-in says 9.2."""
    pod.start("console-log", stdout=subprocess.DEVNULL)
    pod.start("run")
    pod.hand_over({"accel": "tcg", "version": given, "network": {"kind": "none"}})
    assert any(option in word for word in pod.started()["argv"])


def test_it_starts_without_the_libraries_that_take_long(pod: Pod) -> None:
    code = (
        "import sys; from hotvirt.hypervisor import console_log, launcher, stop;"
        "heavy = {'msgspec', 'asyncio', 'typing', 'pathlib', 'subprocess', 'logging', 'dataclasses'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    # -S: what the environment's own start-up files import is not ours.
    shown = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("src"))},
        capture_output=True,
        text=True,
    )
    assert shown.stdout.strip() == "[]", shown.stderr


def test_a_signal_before_the_hand_over_ends_it(pod: Pod) -> None:
    compute = pod.start("run", stderr=subprocess.DEVNULL)
    until((pod.run / "launcher.sock").exists, "launcher.sock")
    compute.terminate()
    assert compute.wait(timeout=60) == 143


def test_stop_without_a_machine_is_done_at_once(pod: Pod) -> None:
    assert (
        subprocess.run([*LAUNCHER, "stop"], env=pod.env, timeout=10, stderr=subprocess.DEVNULL).returncode
        == 0
    )


@pytest.mark.parametrize("arguments", [[], ["walk"], ["run", "fast"]])
def test_anything_else_is_refused_with_the_usage(arguments: list[str]) -> None:
    refused = subprocess.run([*LAUNCHER, *arguments], capture_output=True, text=True)
    assert refused.returncode == 2 and "usage: hotvirt-launcher" in refused.stderr


def test_no_machine_in_the_environment_is_a_sentence(pod: Pod) -> None:
    del pod.env[MACHINE_VARIABLE]
    refused = subprocess.run([*LAUNCHER, "run"], env=pod.env, capture_output=True, text=True)
    assert refused.returncode == 1 and "HOTVIRT_MACHINE is not set" in refused.stderr


def test_the_log_ends_with_a_machine_that_was_killed_before_it_began(pod: Pod) -> None:
    compute = pod.start("run", stderr=subprocess.DEVNULL)
    until((pod.run / "launcher.sock").exists, "launcher.sock")
    compute.kill()
    compute.wait()
    log = pod.start("console-log", stdout=subprocess.DEVNULL)
    assert log.wait(timeout=60) == 0


def test_a_console_that_does_not_read_holds_up_nobody(pod: Pod) -> None:
    pod.start("console-log", stdout=subprocess.DEVNULL)
    with (
        pod.connect("serial.sock") as serial,
        pod.connect("console.sock") as deaf,
        pod.connect("console.sock") as console,
    ):
        console.sendall(b"typed")
        assert serial.recv(16) == b"typed"
        deaf.sendall(b"me too")
        assert serial.recv(16) == b"me too"
        sent = 0
        block = b"x" * 65536
        while sent < 4 * MAX_BUFFER:
            serial.sendall(block)  # would time out if the relay stopped reading
            read = 0
            while read < len(block):
                read += len(console.recv(65536))
            sent += len(block)
        gap = b""
        deaf.settimeout(60)
        while b"bytes dropped" not in gap:
            serial.sendall(b"more ")
            gap = gap[-200:] + deaf.recv(1 << 20)


def test_the_serial_port_may_come_back(pod: Pod) -> None:
    pod.start("console-log", stdout=subprocess.DEVNULL)
    with pod.connect("console.sock") as console:
        for word in (b"first", b"second"):
            with pod.connect("serial.sock") as serial:
                serial.sendall(word)
                heard = b""
                while word not in heard:
                    heard += console.recv(64)
