"""The commands that act on a VM, with a real guest: console, pause, stop, start, and `down` and `up`."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.scenarios.follow import plug_pulled_meanwhile
from tests.scenarios.place import HOTVIRT, demo_vm
from tests.scenarios.shell import wait_for, wait_for_status
from tests.scenarios.sizes import watched_beside

from .up import Up

pytestmark = pytest.mark.timeout(900)
PASSWORD = "hotvirt"
GRACE = 300
"""Seconds; more than it takes to pull a plug, however slow the machine."""
MACHINE = demo_vm("first")
MACHINE["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = GRACE


class Console:
    """`hotvirt console first` in a terminal of its own."""

    def __init__(self, up: Up) -> None:
        self.master, terminal = pty.openpty()
        command = [str(HOTVIRT), "console", "first", "--kubeconfig", str(up.kubeconfig)]
        self.process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
        os.close(terminal)
        self.seen = ""

    def expect(self, pattern: str, within: float = 180.0) -> str:
        """Read until the pattern has come; what came with it is forgotten."""
        deadline = time.monotonic() + within
        while not (match := re.search(pattern, self.seen)):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                raise AssertionError(f"{pattern!r} did not come; this did: {self.seen[-2000:]!r}")
            self.seen += os.read(self.master, 4096).decode(errors="replace")
        self.seen = self.seen[match.end() :]
        return match.group(0)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def console(guest: Up) -> Iterator[Console]:
    it = Console(guest)
    yield it
    it.close()


def test_the_console_logs_in_runs_a_command_and_is_left_with_its_key(console: Console) -> None:
    console.expect(r"Connected to the console of first\. Leave it with ctrl-\]")
    console.type("\r")
    console.expect("login: ")
    console.type("root\r")
    console.expect("assword: ")
    console.type(f"{PASSWORD}\r")
    console.expect("# ")
    console.type("echo the answer is $((6 * 7))\r")
    console.expect("the answer is 42")
    console.type("exit\r")
    console.type("\x1d")
    assert console.process.wait(60) == 0


def printable(up: Up) -> str:
    return up.kubectl("get", "vm", "first", "-o", "jsonpath={.status.printableStatus}")


def until(up: Up, status: str) -> None:
    wait_for_status(up, "default", "first", status)


def say(up: Up, *arguments: str) -> str:
    done = up.hotvirt(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def boot_id(up: Up) -> str:
    found = up.kubectl("get", "vmi", "first", "-o", "jsonpath={.status.hotvirt.bootId}")
    assert found
    return found


def test_pause_and_unpause(guest: Up) -> None:
    boot = boot_id(guest)
    assert say(guest, "pause", "first", "--dry-run") == "VM first would be scheduled to pause\n"
    assert printable(guest) == "Running"
    assert say(guest, "pause", "vm", "first") == "VM first was scheduled to pause\n"
    until(guest, "Paused")
    refused = guest.hotvirt("pause", "first")
    assert refused.returncode == 1
    assert "paused" in refused.stderr
    say(guest, "unpause", "first")
    until(guest, "Running")
    assert boot_id(guest) == boot


def test_down_leaves_the_guest_and_up_takes_it_over(guest: Up) -> None:
    boot = boot_id(guest)
    stopped = say(guest, "down")
    assert "1 guest keeps running" in stopped
    guest.start()
    assert boot_id(guest) == boot
    assert printable(guest) == "Running"
    patch = {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": 2}}}}}}
    with watched_beside(guest, "default"):
        guest.kubectl("patch", "vm", "first", "--type", "merge", "-p", json.dumps(patch))
        wait_for(guest, "default", "vmi/first", "jsonpath={.status.hotvirt.vcpus.online}=2")
    assert boot_id(guest) == boot
    (machine,) = json.loads(say(guest, "status", "-o", "json"))["virtualMachines"]
    assert (machine["name"], machine["guestVcpus"], machine["guestMemory"]) == ("first", 2, "256Mi")


def test_stop_and_start(guest: Up) -> None:
    boot = boot_id(guest)
    assert say(guest, "stop", "first") == "VM first was scheduled to stop\n"
    until(guest, "Stopped")
    stopped = guest.hotvirt("console", "first")
    assert stopped.returncode == 1
    assert "hotvirt start first" in stopped.stderr
    say(guest, "start", "first")
    until(guest, "Running")
    wait_for(guest, "default", "vmi/first", "condition=AgentConnected")
    assert boot_id(guest) != boot


def test_stop_vms_stops_the_guest_and_the_next_up_starts_it_again(guest: Up) -> None:
    pods = guest.state / "pods"
    assert len(list(pods.iterdir())) == 1
    said = say(guest, "down", "--stop-vms")
    assert said == "Stopping default/first ...\nStopped default/first\nHotvirt has stopped.\n"
    assert list(pods.iterdir()) == []
    guest.start()
    until(guest, "Running")


def test_force_pulls_the_plug_of_a_guest_that_is_booting(guest: Up) -> None:
    (pod,) = guest.get("pods", "-l", "vm.kubevirt.io/name=first")["items"]
    with plug_pulled_meanwhile(guest, pod):
        assert say(guest, "stop", "first", "--force") == "VM first was scheduled to stop\n"
        started = time.monotonic()
        until(guest, "Stopped")
    assert time.monotonic() - started < GRACE
