"""vCPUs and memory of a real guest, up and down while it works; one boot for all of it.

All of Hotvirt runs in this process, so that every cgroup write, every command to QEMU and every word in the
API is in one ordered log, which is checked at each entry (`tests/size_log.py`).
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import VMIS, VMS
from tests.faults.machines import Machines, machines
from tests.faults.resizing import boot_id, edit, machine, pod_of, reason, rests
from tests.inprocess import Cluster
from tests.kube import Object, condition

from .tiny_os import make_disk
from .weight import check_weight

TIMES = int(os.environ.get("HOTVIRT_SOAK", "0")) // 10 or 3
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1800 + 60 * TIMES)]

NAME = "busy"
BOOT, SLOW = 240.0, 400.0
# The guest works until it is told to rest: a CPU, the page cache and its own files. Not without a pause:
# under emulation, on two cores, it would only be waited for.
USER_DATA = r"""#!/bin/sh
(while :; do nice head -c 3000000 /dev/urandom; sleep 0.5; done >/dev/null) &
works=$!
(while :; do dd if=/dev/zero of=/tmp/fill bs=1M count=150; cat /dev/vda; sleep 2; done >/dev/null 2>&1) &
works="$works $!"
page() { # NAME COMMANDS: a page that has them done
    printf '#!/bin/sh\n%s\n' "$2" >/www/cgi-bin/$1
    cat >>/www/cgi-bin/$1 <<'END'
printf 'Content-Type: application/json\r\n\r\n{"done": true}'
END
    chmod 755 /www/cgi-bin/$1
}
page rest "kill $works"
page no-agent 'rm -f /dev/virtio-ports/org.qemu.guest_agent.0; killall qemu-ga'
page stubborn 'echo offline >/sys/devices/system/memory/auto_online_blocks; mount -o remount,ro /sys'
page willing 'mount -o remount,rw /sys'
"""


@dataclass
class Guest:
    world: Machines
    folder: Path
    address: str
    boot: str

    @property
    def cluster(self) -> Cluster:
        return self.world.cluster

    async def ask(self, page: str) -> Object:
        """A page of the guest's own web server; it may be slow to answer while it works."""
        found: Object = {}

        def get() -> Object:
            with (
                suppress(OSError, ValueError),
                urllib.request.urlopen(f"http://{self.address}/cgi-bin/{page}", timeout=10) as reply,
            ):
                answer: Object = json.load(reply)
                return answer
            return {}

        async with asyncio.timeout(BOOT):
            while not found:
                found = await asyncio.to_thread(get)
        return found

    async def becomes(self, sockets: int, guest: str) -> None:
        """All agree on the size: the API, the Pod, its cgroup, and the guest itself, in the same boot."""
        vmi = await rests(self.cluster, NAME, sockets, guest, SLOW)
        assert boot_id(vmi) == self.boot
        facts = await self.ask("facts")
        assert facts["boot_id"] == self.boot
        assert facts["cpus_online"] == sockets
        # The kernel keeps some for itself from the start.
        missing = Quantity(guest).value - facts["mem_total_kb"] * 1024
        assert 0 <= missing < 200 << 20, (guest, facts)
        self.cgroup_is_right(await pod_of(self.cluster, NAME))

    def cgroup_is_right(self, pod: Any) -> None:
        cgroups = self.world.node.runtime.cgroups
        limits = cgroups.read(pod.metadata.uid, "compute")
        if limits is None:
            assert not cgroups.usable
            return
        wanted = pod.spec.containers[0].resources
        assert limits.memory_limit == wanted.limits["memory"].value // 4096 * 4096
        assert limits.cpu_limit == wanted.limits["cpu"].milli
        # The limit of CPUs stays; their request goes with the vCPUs, and is a weight.
        check_weight(cgroups, pod.metadata.uid, wanted.requests["cpu"].milli)


def manifest(name: str, sockets: int, guest: str, **metadata: Any) -> Object:
    limits = {"requests": {"memory": guest}, "limits": {"memory": guest, "cpu": "8"}}
    made = machine(name, sockets, guest, resources=limits)
    template = made["spec"]["template"]
    template["metadata"] = metadata
    spec = template["spec"]
    spec["domain"]["devices"]["disks"].append({"name": "init", "disk": {"bus": "virtio"}})
    spec["volumes"].append({"name": "init", "cloudInitNoCloud": {"userData": USER_DATA}})
    spec["terminationGracePeriodSeconds"] = 0
    return made


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(demo_disk: Path) -> AsyncIterator[Machines]:
    with tempfile.TemporaryDirectory() as folder:
        allocatable = {"cpu": "32", "memory": "64Gi"}
        async with machines(Path(folder), allocatable, disk=demo_disk) as made, made.alive():
            yield made


async def start(world: Machines, wanted: Object, folder: Path) -> Guest:
    await world.cluster.create(VMS, wanted)
    name = wanted["metadata"]["name"]
    vmi = await world.cluster.until(
        VMIS, name, lambda each: (condition(each, "AgentConnected") or {}).get("status") == "True", BOOT
    )
    pod = await pod_of(world.cluster, name)
    guest = Guest(world, folder, pod.status.pod_ip, boot_id(vmi))
    await guest.ask("facts")
    return guest


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def guest(world: Machines, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guest]:
    started = await start(world, manifest(NAME, 4, "1Gi"), tmp_path_factory.mktemp("resize"))
    yield started
    await world.cluster.admin.delete(VMS, NAME, world.cluster.namespace)
    await world.cluster.gone(VMIS, NAME, SLOW)


async def test_down_and_up_under_load(guest: Guest):
    for _ in range(TIMES):
        await edit(guest.cluster, NAME, 1, "3Gi")
        await guest.becomes(1, "3Gi")
        await edit(guest.cluster, NAME, 4, "1Gi")
        await guest.becomes(4, "1Gi")
    await guest.ask("rest")  # nobody else needs it busy


async def test_a_guest_that_never_brings_anything_online(guest: Guest):
    """Its agent answers, and can change nothing. It is asked again, so it may come to its senses."""
    await guest.ask("stubborn")
    await edit(guest.cluster, NAME, 6, "2Gi")
    vmi = await guest.cluster.until(
        VMIS,
        NAME,
        lambda each: (
            reason("HotVCPUChange", "NotOnline")(each) and reason("HotMemoryChange", "NotOnline")(each)
        ),
        SLOW,
    )
    assert "the guest uses 4 vCPUs of 6" in condition(vmi, "HotVCPUChange")["message"]
    assert "the guest has 1Gi of 2Gi" in condition(vmi, "HotMemoryChange")["message"]
    status = vmi["status"]
    assert status["currentCPUTopology"]["sockets"] == 4
    assert status["hotvirt"]["vcpus"] == {"plugged": 6, "online": 4}
    assert (status["memory"]["guestCurrent"], status["memory"]["guestRequested"]) == ("1Gi", "2Gi")
    facts = await guest.ask("facts")
    assert (facts["cpus_online"], facts["boot_id"]) == (4, guest.boot)
    assert facts["mem_total_kb"] < 1 << 20
    await guest.ask("willing")
    await guest.becomes(6, "2Gi")
    await edit(guest.cluster, NAME, 4, "1Gi")
    await guest.becomes(4, "1Gi")


async def test_a_guest_whose_agent_is_gone_ends_in_a_true_status(guest: Guest):
    """Runs last: it is not brought back."""
    await guest.ask("no-agent")
    await guest.cluster.until(
        VMIS, NAME, lambda each: (condition(each, "AgentConnected") or {}).get("status") != "True", SLOW
    )
    await edit(guest.cluster, NAME, 2)
    vmi = await guest.cluster.until(VMIS, NAME, reason("HotVCPUChange", "NoGuestAgent"), SLOW)
    assert "qemu-guest-agent" in condition(vmi, "HotVCPUChange")["message"]
    # Those that were parked before stay so, whoever is not there to say it.
    assert (await guest.ask("facts"))["cpus_online"] == 4
    assert vmi["status"]["currentCPUTopology"]["sockets"] == 4
    assert vmi["status"]["hotvirt"]["vcpus"] == {"plugged": 6}
    await edit(guest.cluster, NAME, 6)
    message = "nobody can bring back vCPUs"
    await guest.cluster.until(
        VMIS, NAME, lambda each: message in (condition(each, "HotVCPUChange") or {}).get("message", ""), SLOW
    )
    assert (await guest.ask("facts"))["cpus_online"] == 4


async def test_a_guest_that_never_had_an_agent(world: Machines, tmp_path: Path):
    """vCPUs are given and counted as the hypervisor has them; nobody says that the guest uses them.

    The first edit comes before the machine runs: it is made with the size that its Pod was made for.
    """
    world.images.import_image("my/os:1", make_disk(tmp_path / "disk.img"))
    wanted = machine("silent", 1, "64Mi")
    wanted["spec"]["template"]["spec"]["volumes"][0]["containerDisk"]["image"] = "my/os:1"
    await world.cluster.create(VMS, wanted)
    vmi = await world.cluster.until(VMIS, "silent", lambda each: True)
    assert vmi.get("status", {}).get("phase") != "Running"
    await edit(world.cluster, "silent", 2)
    vmi = await rests(world.cluster, "silent", 2, "64Mi", BOOT)
    assert vmi["status"]["hotvirt"]["vcpus"] == {"plugged": 2}
    assert reason("Resizable", "NoGuestAgent")(vmi)
    await edit(world.cluster, "silent", 3)
    vmi = await rests(world.cluster, "silent", 3, "64Mi", SLOW)
    assert vmi["status"]["hotvirt"]["vcpus"] == {"plugged": 3}
    await edit(world.cluster, "silent", 2)
    vmi = await world.cluster.until(VMIS, "silent", reason("HotVCPUChange", "NoGuestAgent"), SLOW)
    assert vmi["status"]["currentCPUTopology"]["sockets"] == 3
    pod = await pod_of(world.cluster, "silent")
    assert pod.spec.containers[0].resources.requests["cpu"].milli == 300, "the Pod covers what is plugged"


async def test_below_the_size_at_boot_with_min_guest(world: Machines, tmp_path: Path):
    wanted = manifest("small", 1, "2Gi", annotations={"hotvirt.io/min-guest": "512Mi"})
    guest = await start(world, wanted, tmp_path)
    await guest.ask("rest")
    await rests(world.cluster, "small", 1, "2Gi", SLOW)
    await edit(world.cluster, "small", guest="512Mi")
    vmi = await rests(world.cluster, "small", 1, "512Mi", SLOW)
    assert boot_id(vmi) == guest.boot
    assert (await guest.ask("facts"))["mem_total_kb"] < 512 << 10
