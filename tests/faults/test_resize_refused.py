"""A size that does not fit: the machine runs on, it is said what is missing, nobody writes in a loop, and it
is done without anybody's help when there is room.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from hotvirt.api import names
from hotvirt.api.resources import KUBEVIRTS, LEASES, LIMITRANGES, NODES, RESOURCEQUOTAS, VMIS, VMS
from tests.faults.machines import Machines, machines
from tests.faults.resizing import (
    LONG,
    boot,
    boot_id,
    edit,
    gate,
    machine,
    pod_of,
    ready_is_current,
    reason,
    rests,
)
from tests.inprocess import NODE, Cluster
from tests.kube import Object, condition

NAME, OTHER = "one", "other"
OURS = (names.CONTROLLER_USER, names.NODE_USER)
QUIET = 4.0
"""Seconds; what is asked again in a loop is asked within these."""
SETTLED_WITHIN = 60.0
MOST_LEFT_TO_WRITE = 12
"""What one refusal leads to after it was told: events, those of the boots before it too, the VM's own status,
one more try (`SECOND_TRY`). A loop that asks less and less often writes more than that before it is silent
for so long."""


@asynccontextmanager
async def small(folder, **allocatable):
    async with machines(folder, {"cpu": "64", "memory": "256Gi"} | allocatable) as made, made.alive():
        yield made


@pytest.fixture
async def world(in_memory):
    async with small(in_memory) as made:
        yield made


async def nothing_is_written(world: Machines) -> None:
    """But Leases; what is under way may end first, however long a busy machine takes for it."""
    deadline, start = time.monotonic() + SETTLED_WITHIN, len(world.audit)
    while True:
        before = len(world.audit)
        await asyncio.sleep(QUIET)  # there is no event for "nobody has anything more to say"
        if not (written := of_ours(world.audit[before:])):
            break
        assert time.monotonic() < deadline, written
    written = of_ours(world.audit[start:])
    assert len(written) <= MOST_LEFT_TO_WRITE, written


def of_ours(audit: list[Object]) -> list[Object]:
    return [each for each in audit if each["user"] in OURS and each["resource"] != LEASES.group_resource]


async def old_size_stays(cluster: Cluster, booted: dict) -> None:
    vmi = await cluster.get(VMIS, NAME)
    assert vmi["status"]["currentCPUTopology"] == booted["status"]["currentCPUTopology"]
    assert vmi["status"]["memory"] == booted["status"]["memory"]
    assert vmi["status"]["hotvirt"]["granted"] == booted["status"]["hotvirt"]["granted"]
    assert boot_id(vmi) == boot_id(booted)


async def test_a_full_node_and_another_machine_that_leaves(in_memory):
    async with small(in_memory, memory="6Gi") as world:
        cluster = world.cluster
        booted = await boot(cluster, machine(NAME))
        await boot(cluster, machine(OTHER, guest="3Gi"))
        await edit(cluster, NAME, guest="4Gi")
        vmi = await cluster.until(VMIS, NAME, reason("HotMemoryChange", "PodResizeDeferred"), LONG)
        assert ready_is_current(vmi)
        message = condition(vmi, "HotMemoryChange")["message"]
        assert message.startswith("memory 1Gi → 4Gi")
        assert "memory, requested: " in message
        assert f"capacity: {6 << 30}" in message
        await nothing_is_written(world)
        await old_size_stays(cluster, booted)
        await cluster.admin.delete(VMS, OTHER, cluster.namespace)
        after = await rests(cluster, NAME, 2, "4Gi")
        assert boot_id(after) == boot_id(booted)


async def test_the_gate_goes_off_while_a_size_waits_for_room(in_memory):
    """Nothing goes on, not even when there is room, and nothing is held; with the gate on it is done."""
    async with small(in_memory, memory="6Gi") as world:
        cluster = world.cluster
        await cluster.create(KUBEVIRTS, {"metadata": {"name": names.KUBEVIRT_NAME}, "spec": {}})
        booted = await boot(cluster, machine(NAME))
        before = (await pod_of(cluster, NAME)).spec.containers[0].resources
        await boot(cluster, machine(OTHER, guest="3Gi"))
        await edit(cluster, NAME, 4, "4Gi")
        await cluster.until(VMIS, NAME, reason("HotMemoryChange", "PodResizeDeferred"), LONG)
        await gate(cluster, False)
        for kind in ("HotVCPUChange", "HotMemoryChange"):
            await cluster.until(VMIS, NAME, reason(kind, "FeatureGateOff"), LONG)
        await cluster.admin.delete(VMS, OTHER, cluster.namespace)
        await cluster.gone(VMIS, OTHER, LONG)
        await nothing_is_written(world)
        await old_size_stays(cluster, booted)
        assert (await pod_of(cluster, NAME)).spec.containers[0].resources == before
        await gate(cluster, True)
        after = await rests(cluster, NAME, 4, "4Gi")
        assert boot_id(after) == boot_id(booted)


async def test_more_than_the_node_has_and_then_less(in_memory):
    async with small(in_memory, memory="3Gi") as world:
        cluster = world.cluster
        booted = await boot(cluster, machine(NAME))
        await edit(cluster, NAME, 4, "4Gi")
        vmi = await cluster.until(VMIS, NAME, reason("HotMemoryChange", "NodeCapacity"), LONG)
        assert f"allocatable: {3 << 30}" in condition(vmi, "HotMemoryChange")["message"]
        await nothing_is_written(world)
        await old_size_stays(cluster, booted)
        # The size that was refused does not stay in the Pod, where it would hold quota.
        pod = await pod_of(cluster, NAME)
        assert pod.spec.containers[0].resources.requests["memory"].value < 2 << 30
        await edit(cluster, NAME, 4, "2Gi")
        await rests(cluster, NAME, 4, "2Gi")


async def test_a_full_node_does_not_stop_what_gets_smaller(in_memory):
    async with small(in_memory, memory="4Gi") as world:
        cluster = world.cluster
        await boot(cluster, machine(NAME, 4))
        await boot(cluster, machine(OTHER, guest="2Gi"))
        await edit(cluster, NAME, 1, "3Gi")
        await cluster.until(VMIS, NAME, reason("HotMemoryChange", "PodResizeDeferred"), LONG)
        await cluster.until(VMIS, NAME, lambda vmi: vmi["status"]["currentCPUTopology"]["sockets"] == 1, LONG)
        await edit(cluster, NAME, 1, "1Gi")
        await rests(cluster, NAME, 1, "1Gi")


def quota(**hard: str) -> dict:
    return {
        "metadata": {"name": "most"},
        "spec": {"hard": {key.replace("_", "."): value for key, value in hard.items()}},
    }


async def room_in_quota(cluster: Cluster, **hard: str) -> None:
    await cluster.patch(RESOURCEQUOTAS, "most", {"spec": quota(**hard)["spec"]})


async def test_a_quota_that_is_full_and_then_larger(world):
    cluster = world.cluster
    booted = await boot(cluster, machine(NAME))
    await cluster.create(RESOURCEQUOTAS, quota(requests_memory="2Gi"))
    await edit(cluster, NAME, 4, "3Gi")
    vmi = await cluster.until(VMIS, NAME, reason("HotMemoryChange", "ResourceQuota"), LONG)
    assert ready_is_current(vmi)
    assert "exceeded quota: most, requested: requests.memory=" in condition(vmi, "HotMemoryChange")["message"]
    await nothing_is_written(world)
    await old_size_stays(cluster, booted)
    await room_in_quota(cluster, requests_memory="4Gi")
    after = await rests(cluster, NAME, 4, "3Gi")
    assert boot_id(after) == boot_id(booted)


async def test_a_quota_needs_room_for_the_difference_only(world):
    cluster = world.cluster
    await boot(cluster, machine(NAME, guest="2Gi"))
    # The Pod with 3Gi fits; both sizes side by side would not.
    await cluster.create(RESOURCEQUOTAS, quota(requests_memory="3500Mi"))
    await edit(cluster, NAME, guest="3Gi")
    await rests(cluster, NAME, 2, "3Gi")


async def test_a_quota_that_frees_up_when_another_machine_leaves(world):
    cluster = world.cluster
    await cluster.create(RESOURCEQUOTAS, quota(requests_memory="4Gi"))
    await boot(cluster, machine(NAME))
    await boot(cluster, machine(OTHER, guest="2Gi"))
    await edit(cluster, NAME, guest="3Gi")
    await cluster.until(VMIS, NAME, reason("HotMemoryChange", "ResourceQuota"), LONG)
    await nothing_is_written(world)
    await cluster.admin.delete(VMS, OTHER, cluster.namespace)
    await rests(cluster, NAME, 2, "3Gi")


async def test_a_quota_on_limits(world):
    cluster = world.cluster
    await cluster.create(RESOURCEQUOTAS, quota(limits_memory="6Gi", limits_cpu="16"))
    await boot(cluster, machine(NAME))
    pod = await pod_of(cluster, NAME)
    assert set(pod.spec.containers[0].resources.limits) == {"cpu", "memory"}
    await edit(cluster, NAME, 4, "2Gi")
    await rests(cluster, NAME, 4, "2Gi")
    await edit(cluster, NAME, 4, "4Gi")
    vmi = await cluster.until(VMIS, NAME, reason("HotMemoryChange", "ResourceQuota"), LONG)
    assert "limits.memory" in condition(vmi, "HotMemoryChange")["message"]
    await nothing_is_written(world)
    await room_in_quota(cluster, limits_memory="12Gi", limits_cpu="16")
    await rests(cluster, NAME, 4, "4Gi")
    await edit(cluster, NAME, 2, "1Gi")
    await rests(cluster, NAME, 2, "1Gi")


async def test_a_limit_range_that_refuses_and_then_allows(world):
    cluster = world.cluster
    booted = await boot(cluster, machine(NAME, resources={"limits": {"memory": "1Gi"}}))
    most = {"type": "Pod", "max": {"memory": "2Gi"}}
    await cluster.create(LIMITRANGES, {"metadata": {"name": "range"}, "spec": {"limits": [most]}})
    await edit(cluster, NAME, guest="3Gi")
    vmi = await cluster.until(VMIS, NAME, reason("HotMemoryChange", "LimitRange"), LONG)
    said = "maximum memory usage per Pod is 2Gi, but limit is "
    assert said in condition(vmi, "HotMemoryChange")["message"]
    await nothing_is_written(world)
    await old_size_stays(cluster, booted)
    await cluster.admin.delete(LIMITRANGES, "range", cluster.namespace)
    await rests(cluster, NAME, 2, "3Gi")


async def test_limits_that_a_limit_range_gives(world):
    """They are its admin's: they stay, and only what the machine outgrows is raised, as far as it must be."""
    cluster = world.cluster
    given = {"default": {"cpu": "500m", "memory": "2Gi"}, "max": {"memory": "3Gi"}, "type": "Container"}
    await cluster.create(LIMITRANGES, {"metadata": {"name": "range"}, "spec": {"limits": [given]}})
    booted = await boot(cluster, machine(NAME))
    await nothing_is_written(world)

    async def limits() -> tuple[str, ...]:
        found = (await pod_of(cluster, NAME)).spec.containers[0].resources.limits
        return str(found["cpu"]), str(found["memory"])

    assert await limits() == ("500m", "2Gi")
    await edit(cluster, NAME, 4, "1536Mi")
    await rests(cluster, NAME, 4, "1536Mi")
    assert await limits() == ("500m", "2Gi")
    await edit(cluster, NAME, 8, "2Gi")
    await rests(cluster, NAME, 8, "2Gi")
    pod = await pod_of(cluster, NAME)
    assert pod.spec.containers[0].resources.limits == pod.spec.containers[0].resources.requests
    await edit(cluster, NAME, guest="3Gi")
    vmi = await cluster.until(VMIS, NAME, reason("HotMemoryChange", "LimitRange"), LONG)
    assert "maximum memory usage per Container is 3Gi" in condition(vmi, "HotMemoryChange")["message"]
    await edit(cluster, NAME, 2, "1Gi")
    after = await rests(cluster, NAME, 2, "1Gi")
    assert boot_id(after) == boot_id(booted)


async def test_a_refused_size_that_is_taken_back(world):
    cluster = world.cluster
    await boot(cluster, machine(NAME))
    await cluster.create(RESOURCEQUOTAS, quota(requests_memory="2Gi"))
    await edit(cluster, NAME, guest="3Gi")
    vmi = await cluster.until(VMIS, NAME, reason("HotMemoryChange", "ResourceQuota"), LONG)
    await edit(cluster, NAME, guest="1Gi")
    await rests(cluster, NAME, 2, "1Gi")
    assert await cluster.event(vmi, "ResizeRefused")
    assert await cluster.event(vmi, "ResizeReverted")


async def test_a_size_that_the_kubelet_calls_infeasible(in_memory):
    """Asked again when the Node says that it has more. The kubelet knows better: it is taken back, once."""
    async with small(in_memory, memory="3Gi") as world:
        cluster = world.cluster
        booted = await boot(cluster, machine(NAME))
        await edit(cluster, NAME, guest="4Gi")
        await cluster.until(VMIS, NAME, reason("HotMemoryChange", "NodeCapacity"), LONG)
        await cluster.patch(NODES, NODE, {"status": {"allocatable": {"memory": "8Gi"}}}, status=True)
        said = f"capacity: {3 << 30}"
        await cluster.until(
            VMIS, NAME, lambda vmi: said in (condition(vmi, "HotMemoryChange") or {})["message"], LONG
        )
        await nothing_is_written(world)
        await old_size_stays(cluster, booted)
        pod = await pod_of(cluster, NAME)
        assert pod.spec.containers[0].resources.requests["memory"].value < 2 << 30
