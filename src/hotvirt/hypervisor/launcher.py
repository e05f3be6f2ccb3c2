"""`hotvirt-launcher`: the program in a VM's Pod.

`run` prepares the disks, waits for the node agent's hand-over and then becomes the hypervisor, so that
nothing of ours stays resident beside it. `stop` is the Pod's preStop step. `console-log` is the second
container. Standard library only, and little of it: it starts in milliseconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import time
from types import SimpleNamespace

from hotvirt.hypervisor import files as machine_files
from hotvirt.hypervisor.files import (
    ALIVE_FILE,
    ENDED_FILE,
    LAUNCHER_SOCKET,
    MACHINE_FILE,
    MACHINE_VARIABLE,
    RUN_DIR,
    FilesError,
    container_path,
    listen,
    say,
)
from hotvirt.hypervisor.qemu import command
from hotvirt.hypervisor.qemu.images import ImageError, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hotvirt.plan.machine import Machine

MAX_HANDOVER = 64 * 1024
MAX_DESCRIPTORS = 8
CONSOLE_WAIT = 5.0
USAGE = "usage: hotvirt-launcher run | stop | console-log | probe"


class LauncherError(RuntimeError):
    """The machine cannot be started; the message says why."""


def main() -> None:
    verb = sys.argv[1] if len(sys.argv) == 2 else ""
    if verb == "run":
        sys.exit(run_machine())
    if verb == "stop":
        from hotvirt.hypervisor import stop

        sys.exit(stop.stop_machine())
    if verb == "console-log":
        from hotvirt.hypervisor import console_log

        sys.exit(console_log.serve())
    if verb == "probe":
        from hotvirt.hypervisor.qemu import accel

        sys.exit(accel.probe())
    sys.stderr.write(USAGE + "\n")
    sys.exit(2)


def run_machine() -> int:
    # The first process of a container ignores a SIGTERM that it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        os.chdir(container_path(RUN_DIR))
        alive = hold_alive()
        argv = _ready_to_start()
        os.set_inheritable(alive, True)
        os.execvp(argv[0], argv)
    except (LauncherError, FilesError, ImageError, command.CommandError) as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"{error.strerror}: {error.filename}" if error.filename else str(error))


def hold_alive() -> int:
    """A lock that the hypervisor inherits: whoever gets it after us knows that the machine has ended."""
    unfinished = f"{ALIVE_FILE}.{os.getpid()}"
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.rename(unfinished, ALIVE_FILE)
    return descriptor


def _failed(message: str) -> int:
    say(f"the machine could not be started: {message}")
    try:
        with open(ENDED_FILE, "w") as file:
            file.write(message + "\n")
    except OSError as error:
        say(f"could not leave the reason for the console log: {error.strerror}")
    return 1


def read_machine() -> Machine:
    text = os.environ.get(MACHINE_VARIABLE)
    if not text:
        raise LauncherError(f"{MACHINE_VARIABLE} is not set: this program runs in the Pod of a VM")
    machine: Machine = json.loads(text, object_hook=lambda fields: SimpleNamespace(**fields))
    return machine


def _ready_to_start() -> list[str]:
    """Everything up to the exec; the command line to become."""
    machine = read_machine()
    record: dict[str, Any] = {"machine": json.loads(os.environ[MACHINE_VARIABLE]), "dns": resolvers()}
    _write_record(record)
    # Listening before the disks are made lets the agent build the network meanwhile.
    listener = listen(LAUNCHER_SOCKET)
    files = machine_files.prepare(machine)
    for note in files.notes:
        say(note)
    handover, descriptors = receive_handover(listener)
    listener.close()
    network = _network(dict(handover.get("network") or {"kind": "none"}), descriptors, machine)
    accel = _accelerator(str(handover.get("accel", "tcg")))
    # The node agent of a cluster has no QEMU of its own to ask.
    version = tuple(int(part) for part in handover.get("version") or own_version())
    argv = command.argv(machine, accel=accel, network=network, files=files, version=version)
    _write_record(record | {"accel": accel, "network": network, "argv": argv, "notes": files.notes})
    if machine.serial_console:
        _await_console()
    _forget(LAUNCHER_SOCKET)
    say(f"starting {machine.namespace}/{machine.name} with {accel}")
    return argv


def _accelerator(given: str) -> str:
    """What the node can do, as far as this Pod was given the device for it."""
    if given == "kvm" and not os.access("/dev/kvm", os.R_OK | os.W_OK):
        say("this Pod has no /dev/kvm that it may use: the machine is emulated, which is slow")
        return "tcg"
    return given


def own_version() -> tuple[int, ...]:
    reader, writer = os.pipe()
    to_stdout = (os.POSIX_SPAWN_DUP2, writer, 1)
    try:
        pid = os.posix_spawnp(command.QEMU, [command.QEMU, "--version"], os.environ, file_actions=[to_stdout])
    except OSError as error:
        raise LauncherError(f"cannot start {command.QEMU}: {error.strerror}") from error
    os.close(writer)
    with os.fdopen(reader, errors="replace") as output:
        version = command.version_in(output.read(4096))
    os.waitpid(pid, 0)
    return version


def receive_handover(listener: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The agent's line and the descriptors that came with it. An agent that died half-way is forgotten."""
    while True:
        connection, _ = listener.accept()
        received = b""
        descriptors: list[int] = []
        with connection:
            while not received.endswith(b"\n") and len(received) < MAX_HANDOVER:
                data, passed, _, _ = socket.recv_fds(connection, MAX_HANDOVER, MAX_DESCRIPTORS)
                descriptors += passed
                received += data
                if not data:
                    break
            handover = _parse_handover(received)
            if handover is not None:
                return handover, descriptors
        for descriptor in descriptors:
            os.close(descriptor)


def _parse_handover(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _network(network: dict[str, Any], descriptors: list[int], machine: Machine) -> dict[str, Any]:
    if network["kind"] == "tap":
        if not descriptors:
            raise LauncherError("the node agent sent no network device: it should try again with a new Pod")
        network["fd"] = descriptors[0]
        if len(descriptors) > 1:
            network["vhostfd"] = descriptors[1]
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
    elif network["kind"] == "passt":
        start_passt(network)
    return network


def start_passt(network: dict[str, Any]) -> None:
    """passt goes to the background when its socket is there, and ends with the hypervisor (--one-off)."""
    _forget(command.PASST_SOCKET)
    # A relative name, as for the other sockets: a path longer than 107 bytes would be cut, without a word.
    argv = ["passt", "--quiet", "--one-off", "--socket", command.PASST_SOCKET]
    argv += [
        "--address",
        command.GUEST_ADDRESS,
        "--netmask",
        "24",
        "--gateway",
        command.GATEWAY_ADDRESS,
        "--ipv4-only",
    ]
    if os.geteuid() == 0:
        argv += ["--runas", "0:0"]  # else it becomes nobody, who may not write here
    for option, key in (("--tcp-ports", "tcp"), ("--udp-ports", "udp")):
        ports = ",".join(str(port) for port in network.get(key, ()))
        argv += [option, f"{network['address']}/{ports}" if ports else "none"]
    run(argv)


def _await_console() -> None:
    """What a guest prints before its log process listens is lost, so give that a moment to come up."""
    deadline = time.monotonic() + CONSOLE_WAIT
    while not os.path.exists(command.SERIAL_SOCKET):
        if time.monotonic() > deadline:
            say("the console log does not listen yet; the guest starts without it")
            return
        time.sleep(0.01)  # a file appearing has no event in the standard library


def _write_record(record: dict[str, Any]) -> None:
    unfinished = MACHINE_FILE + ".new"
    with open(unfinished, "w") as file:
        json.dump(record, file)
    os.rename(unfinished, MACHINE_FILE)


def resolvers() -> dict[str, list[str]]:
    """The Pod's name servers, for the guest. One on this machine's loopback is of no use to a guest."""
    found: dict[str, list[str]] = {"servers": [], "search": []}
    for path in ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"):
        try:
            with open(path) as file:
                lines = file.read(16384).splitlines()
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) >= 2 and words[0] == "nameserver" and not words[1].startswith(("127.", "::1")):
                found["servers"].append(words[1])
            elif len(words) >= 2 and words[0] in ("search", "domain"):
                found["search"] = words[1:7]
        if found["servers"]:
            break
    return found


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


if __name__ == "__main__":
    main()
