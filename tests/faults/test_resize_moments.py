"""An edit of the size at a moment when the guest cannot follow it: the answers in `docs/resize.md`."""

from __future__ import annotations

import pytest

from hotvirt.api.resources import VMIS, VMS
from tests.faults.machines import machines
from tests.faults.resizing import LONG, boot, boot_id, edit, machine, pod_of, reason, rests
from tests.inprocess import Cluster
from tests.kube import condition, shows

NAME = "one"


@pytest.fixture
async def world(in_memory):
    async with machines(in_memory) as made, made.alive():
        yield made


async def ask(cluster: Cluster, action: str) -> None:
    """As the subresources `pause` and `unpause` do."""
    wish = {"requests": [{"action": action, "id": action}]}
    await cluster.patch(VMIS, NAME, {"status": {"hotvirt": wish}}, status=True)


def both_wait_for_the_pause_to_end(vmi: dict) -> bool:
    return all(reason(kind, "Paused")(vmi) for kind in ("HotVCPUChange", "HotMemoryChange"))


@pytest.mark.parametrize(("sockets", "guest", "milli"), [(4, "2Gi", 400), (1, "1Gi", 200)])
async def test_paused(world, sockets, guest, milli):
    """The Pod grows at once, and shrinks after the guest; the guest follows when it goes on."""
    cluster = world.cluster
    before = "1Gi" if guest == "2Gi" else "2Gi"
    await boot(cluster, machine(NAME))
    await edit(cluster, NAME, guest=before)
    booted = await rests(cluster, NAME, 2, before)
    await ask(cluster, "Pause")
    await cluster.until(VMIS, NAME, lambda vmi: condition(vmi, "Paused"))
    await edit(cluster, NAME, sockets, guest)
    vmi = await cluster.until(VMIS, NAME, both_wait_for_the_pause_to_end, LONG)
    assert vmi["status"]["currentCPUTopology"] == booted["status"]["currentCPUTopology"]
    assert vmi["status"]["memory"]["guestCurrent"] == before
    assert (await pod_of(cluster, NAME)).spec.containers[0].resources.requests["cpu"].milli == milli
    await ask(cluster, "Unpause")
    after = await rests(cluster, NAME, sockets, guest)
    assert boot_id(after) == boot_id(booted)


@pytest.mark.parametrize(("sockets", "guest"), [(4, "3Gi"), (1, "2Gi")])
async def test_on_its_way_in(world, sockets, guest):
    """It starts as its Pod was made, and is changed when it runs."""
    cluster = world.cluster
    await cluster.create(VMS, machine(NAME, 2, "2Gi"))
    await cluster.until(VMIS, NAME, lambda vmi: vmi.get("status", {}).get("phase"))
    await edit(cluster, NAME, sockets, guest)
    vmi = await rests(cluster, NAME, sockets, guest)
    assert vmi["status"]["memory"]["guestAtBoot"] == "2Gi"


async def test_stopped(world):
    cluster = world.cluster
    halted = machine(NAME)
    halted["spec"]["runStrategy"] = "Halted"
    await cluster.create(VMS, halted)
    await cluster.until(VMS, NAME, shows("Stopped"))
    await edit(cluster, NAME, 5, "3Gi")
    await cluster.patch(VMS, NAME, {"spec": {"runStrategy": "Always"}})
    vmi = await rests(cluster, NAME, 5, "3Gi")
    assert vmi["status"]["memory"]["guestAtBoot"] == "3Gi"


async def test_on_its_way_out(world):
    """It is let through, and nothing is done."""
    cluster = world.cluster
    booted = await boot(cluster, machine(NAME))
    await cluster.patch(
        VMIS, NAME, {"metadata": {"finalizers": ["tests/hold", *booted["metadata"]["finalizers"]]}}
    )
    await cluster.admin.delete(VMS, NAME, cluster.namespace)
    await edit(cluster, NAME, 5, "3Gi")
    ended = await cluster.until(VMIS, NAME, lambda vmi: vmi["metadata"]["finalizers"] == ["tests/hold"], LONG)
    assert ended["spec"]["domain"]["cpu"]["sockets"] == 2
    assert ended["spec"]["domain"]["memory"]["guest"] == "1Gi"
    await cluster.patch(VMIS, NAME, {"metadata": {"finalizers": None}})
    await cluster.gone(VMS, NAME, LONG)
