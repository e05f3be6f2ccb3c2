"""How a machine ends: a restart, its Pod deleted or evicted, its VM deleted. Runs after the others."""

from __future__ import annotations

import asyncio
import json

import pytest

from hotvirt.api.resources import CONTROLLERREVISIONS, PODS, VMIS, VMS
from tests.kube import Object, condition, in_phase
from tests.targets.target import wait_until

from .guests import MAIN, RATIO, SLOW, Guest
from .place import Place
from .resize import kubectl_started, restart_not_required

SHUT_DOWN = b"reboot: Power down"


async def console_to_the_end(place: Place, pod: Object) -> asyncio.subprocess.Process:
    """The console's log as it comes; it ends when the machine does. It has begun to come."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    log = await kubectl_started(place, "logs", "-f", name, "-n", namespace, "-c", "guest-console-log")
    assert log.stdout is not None
    async with asyncio.timeout(SLOW):
        assert await log.stdout.readline(), "the console has no log"
    return log


async def shuts_down_and_starts_again(guest: Guest, console: asyncio.subprocess.Process, old: Object) -> None:
    async with asyncio.timeout(SLOW):
        said, trouble = await console.communicate()
    assert SHUT_DOWN in said, f"the guest was not shut down: {said[-500:]!r} {trouble!r}"
    await guest.until(
        lambda vmi: vmi["metadata"]["uid"] != old["metadata"]["uid"] and in_phase("Running")(vmi)
    )


@pytest.mark.asyncio(loop_scope="session")
class Ending:
    async def test_what_waits_is_there_after_a_restart(self, place: Place, spare: Guest):
        spare.change({"domain": {"cpu": {"sockets": 1, "cores": 2}}})
        await spare.vm_until(lambda vm: condition(vm, "RestartRequired"))
        before = spare.boot
        old = await spare.vmi()
        place.say("restart", spare.name, "-n", spare.namespace)
        await spare.until(lambda vmi: vmi["metadata"]["uid"] != old["metadata"]["uid"])
        await spare.booted()
        assert spare.boot != before
        assert (await spare.facts())["cpus_online"] == 2
        topology = (await spare.vmi())["status"]["currentCPUTopology"]
        assert topology == {"sockets": 1, "cores": 2, "threads": 1}
        await spare.vm_until(restart_not_required)

    async def test_a_deleted_pod_is_shut_down_and_the_vm_starts_again(
        self, place: Place, guests: dict[str, Guest]
    ):
        guest = await guests[MAIN].ready()
        old, pod = await guest.vmi(), await guest.pod()
        console = await console_to_the_end(place, pod)
        place.kubectl("delete", "pod", pod["metadata"]["name"], "-n", guest.namespace, "--wait=false")
        await shuts_down_and_starts_again(guest, console, old)

    async def test_an_evicted_pod_too(self, place: Place, guests: dict[str, Guest]):
        guest = await guests[RATIO].ready()
        old, pod = await guest.vmi(), await guest.pod()
        console = await console_to_the_end(place, pod)
        name = pod["metadata"]["name"]
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": guest.namespace},
        }
        path = f"/api/v1/namespaces/{guest.namespace}/pods/{name}/eviction"
        place.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
        await shuts_down_and_starts_again(guest, console, old)

    async def test_deleting_the_vm_leaves_nothing(self, place: Place, spare: Guest):
        kube, pod = spare.kube, await spare.pod()
        folder = place.folder(pod)
        assert folder.exists()
        delete = ("delete", "vm", spare.name, "-n", spare.namespace, f"--timeout={SLOW:.0f}s")
        place.kubectl(*delete, timeout=SLOW + 60)
        await kube.gone(VMS, spare.name)
        await kube.gone(VMIS, spare.name, SLOW)
        await kube.gone(PODS, pod["metadata"]["name"], SLOW)
        for revision in (await kube.admin.list(CONTROLLERREVISIONS, kube.namespace)).items:
            if any(owner["name"] == spare.name for owner in revision["metadata"].get("ownerReferences", [])):
                await kube.gone(CONTROLLERREVISIONS, revision["metadata"]["name"], SLOW)
        # The kubelet clears up a little after the Pod is gone, and tells nobody.
        await asyncio.to_thread(wait_until, lambda: not folder.exists(), f"{folder} to go", SLOW)
