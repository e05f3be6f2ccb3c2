"""Sizes that do not fit, and a whole minute in which Hotvirt leaves them alone.

Three machines that wait, for a node, a quota and a LimitRange, in a Hotvirt of their own on the driver that
answers at once. They are brought to that before the other tests of this folder, and looked at after them: so
the minute costs nothing. Only the audit log says how long it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hotvirt.api import names
from tests.kube import condition
from tests.scenarios.place import Object, Write, demo_vm
from tests.scenarios.shell import wait_for
from tests.scenarios.sizes import watched_beside

from .up import Up

MINUTE = 60.0
OURS = (names.CONTROLLER_USER, names.NODE_USER)
BALLAST = "ballast"
MACHINE_MEMORY = "1Gi"
# The namespace, which is also the machine's name, and what it waits for.
WAITS = {"node": "PodResizeDeferred", "quota": "ResourceQuota", "range": "LimitRange"}
SOON = 180
SETTLED_WITHIN = 30.0
"""Seconds: what only tells of something may wait 15 of them, and a busy machine takes longer."""
Eventually = Callable[..., Any]


@dataclass
class Waiting:
    up: Up
    boots: dict[str, str]
    """The boot id of each."""
    since: float
    """When all were refused, and all was said about it."""

    def vmi(self, name: str) -> Object:
        return self.up.get("vmi", name, "-n", name)

    def condition(self, name: str) -> Object:
        return condition(self.vmi(name), "HotMemoryChange") or {}

    def written_since(self, since: float) -> tuple[list[Write], float]:
        """What Hotvirt has written but Leases, and how far the log has come."""
        log = [each for each in self.up.audit() if each.time > since]
        ours = [each for each in log if each.user in OURS and "leases" not in each.resource]
        return ours, max((each.time for each in log), default=since)


@pytest.fixture(scope="session")
def waiting(
    tmp_path_factory: pytest.TempPathFactory, kubectl_program: str, eventually: Eventually
) -> Iterator[Waiting]:
    folder = tmp_path_factory.mktemp("waiting")
    disk = folder / "disk.img"
    disk.write_bytes(bytes(1 << 20))
    up = Up(folder / "state", kubectl_program)
    up.start("--allocatable", "cpu=32,memory=8Gi", "--hypervisor", "instant")
    try:
        up.import_image(Up.demo_image, disk)
        for name in WAITS:
            up.kubectl("create", "namespace", name)
        with watched_beside(up, "default", *WAITS):
            boots = bring_to_wait(up, eventually)
            yield Waiting(up, boots, up.audit()[-1].time + SETTLED_WITHIN)
    finally:
        up.stop("--stop-vms")


def bring_to_wait(up: Up, eventually: Eventually) -> dict[str, str]:
    for name in WAITS:
        limits = {"limits": {"memory": MACHINE_MEMORY}}
        up.apply(demo_vm(name, name, memory={"guest": MACHINE_MEMORY}, resources=limits))
    up.apply(demo_vm(BALLAST, memory={"guest": "3Gi"}))
    for name in WAITS:
        wait_for(up, name, f"vmi/{name}", "condition=AgentConnected")
    wait_for(up, "default", f"vmi/{BALLAST}", "condition=AgentConnected")
    boots = {name: boot_id(up, name) for name in WAITS}
    up.apply(limit("ResourceQuota", "quota", {"hard": {"requests.memory": "2Gi"}}))
    up.apply(limit("LimitRange", "range", {"limits": [{"type": "Pod", "max": {"memory": "2Gi"}}]}))
    change = {"spec": {"template": {"spec": {"domain": {"memory": {"guest": "3Gi"}}}}}}
    for name, reason in WAITS.items():
        up.kubectl("patch", "vm", name, "-n", name, "--type=merge", "-p", json.dumps(change))
        eventually(
            lambda name=name, reason=reason: (
                (condition(up.get("vmi", name, "-n", name), "HotMemoryChange") or {}).get("reason") == reason
            ),
            SOON,
            f"{name} to say that it waits",
        )
    return boots


def limit(kind: str, namespace: str, spec: Object) -> Object:
    metadata = {"name": "most", "namespace": namespace}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}


def boot_id(up: Up, name: str) -> str:
    return str(up.get("vmi", name, "-n", name)["status"]["hotvirt"]["bootId"])


@pytest.mark.first
def test_each_says_what_is_missing(waiting: Waiting):
    missing = {
        "node": f"capacity: {8 << 30}",
        "quota": "exceeded quota: most, requested: requests.memory=",
        "range": "maximum memory usage per Pod is 2Gi, but limit is ",
    }
    for name, text in missing.items():
        message = waiting.condition(name)["message"]
        assert message.startswith("memory 1Gi → 3Gi")
        assert text in message
        resize(waiting, name, 6 if name == "node" else 8, "--memory", "3Gi", says=text)


@pytest.mark.last
@pytest.mark.timeout(300)
def test_nothing_but_leases_is_written_for_a_minute(waiting: Waiting, eventually: Eventually):
    """As the log's own clock has it; the first write ends the wait."""

    def a_minute_has_passed() -> bool:
        written, until = waiting.written_since(waiting.since)
        assert written == []
        return until > waiting.since + MINUTE

    eventually(a_minute_has_passed, MINUTE * 4, "a minute in the audit log")


@pytest.mark.last
def test_the_old_size_stays(waiting: Waiting):
    for name in WAITS:
        status = waiting.vmi(name)["status"]
        assert status["memory"]["guestCurrent"] == MACHINE_MEMORY
        assert status["hotvirt"]["granted"]["memory"] == MACHINE_MEMORY
        assert status["hotvirt"]["bootId"] == waiting.boots[name]


@pytest.mark.last
def test_each_completes_by_itself_when_there_is_room(waiting: Waiting):
    up = waiting.up
    up.kubectl("delete", "vm", BALLAST)
    done(waiting, "node")
    up.apply(limit("ResourceQuota", "quota", {"hard": {"requests.memory": "4Gi"}}))
    done(waiting, "quota")
    up.kubectl("delete", "vm", "node", "-n", "node")
    up.kubectl("delete", "limitrange", "most", "-n", "range")
    done(waiting, "range")


@pytest.mark.last
def test_the_command_ends_as_the_change_does(waiting: Waiting):
    """`hotvirt resize` with all of Hotvirt behind it; nothing else says that both use the same words."""
    up = waiting.up
    said = resize(waiting, "quota", 0, "--cpu", "2")
    assert [line.split()[2] for line in said.splitlines() if " ms " in line] == [
        *("asked", "Pod", "hypervisor", "guest", "done")
    ]
    resize(waiting, "quota", 1, "--cpu", "5", says="maxSockets")
    resize(waiting, "quota", 5, "--memory", "5Gi", says="room for 4Gi")
    resize(waiting, "quota", 8, "--memory", "4Gi", says="exceeded quota")
    up.apply(demo_vm("large", memory={"guest": MACHINE_MEMORY, "maxGuest": "8Gi"}))
    wait_for(up, "default", "vmi/large", "condition=AgentConnected")
    resize(waiting, "large", 6, "--memory", "5Gi", namespace="default", says="enough resource: memory")
    resize(waiting, "large", 7, "--memory", "8Gi", namespace="default", says="allocatable")
    resize(waiting, "large", 0, "--memory", MACHINE_MEMORY, namespace="default")
    up.hotvirt("pause", "large")
    wait_for(up, "default", "vmi/large", "condition=Paused")
    resize(waiting, "large", 9, "--cpu", "2", "--timeout", "1s", namespace="default", says="it goes on")


def resize(waiting: Waiting, name: str, code: int, *wanted: str, namespace: str = "", says: str = "") -> str:
    answer = waiting.up.hotvirt("resize", name, "-n", namespace or name, *wanted, "--wait")
    assert answer.returncode == code, answer.stdout + answer.stderr
    assert says in answer.stderr
    return answer.stdout


def done(waiting: Waiting, name: str) -> None:
    wait_for(waiting.up, name, f"vmi/{name}", "jsonpath={.status.memory.guestCurrent}=3Gi", SOON)
    assert waiting.vmi(name)["status"]["hotvirt"]["bootId"] == waiting.boots[name]
