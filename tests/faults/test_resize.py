"""Sizes of running machines change, up and down and against each other: the end is that of the last edit."""

from __future__ import annotations

import asyncio
import time

import pytest

from hotvirt.api import names
from hotvirt.api.resources import EVENTS, KUBEVIRTS, VMIMS, VMIS, VMS
from tests.faults.machines import machines
from tests.faults.resizing import LONG, boot, boot_id, edit, gate, machine, pod_of, reason, rests
from tests.kube import condition

NAME = "one"
TOGETHER = 0.1
PAIRS, TRIES = 5, 200


@pytest.fixture
async def world(in_memory):
    async with machines(in_memory) as made, made.alive():
        yield made


@pytest.fixture
async def cluster(world):
    """With one machine that runs: 2 sockets, 1Gi. Afterwards it is still the same boot."""
    before = await boot(world.cluster, machine(NAME))
    yield world.cluster
    after = await world.cluster.get(VMIS, NAME)
    assert boot_id(after) == boot_id(before)
    assert (await world.cluster.admin.list(VMIMS, world.cluster.namespace)).items == []
    vm = await world.cluster.get(VMS, NAME)
    assert condition(vm, "RestartRequired") is None


@pytest.mark.parametrize(
    ("sockets", "guest"),
    [(3, None), (8, None), (1, None), (None, "3Gi"), (None, "4Gi"), (5, "2Gi"), (1, "3Gi"), (8, "1026Mi")],
)
async def test_there_and_back(cluster, sockets, guest):
    await edit(cluster, NAME, sockets, guest)
    await rests(cluster, NAME, sockets or 2, guest or "1Gi")
    await edit(cluster, NAME, 2, "1Gi")
    await rests(cluster, NAME, 2, "1Gi")


async def test_cpu_up_and_memory_down_in_one_edit_and_the_reverse(cluster):
    await edit(cluster, NAME, guest="3Gi")
    await rests(cluster, NAME, 2, "3Gi")
    await edit(cluster, NAME, 6, "1Gi")
    await rests(cluster, NAME, 6, "1Gi")
    await edit(cluster, NAME, 1, "4Gi")
    await rests(cluster, NAME, 1, "4Gi")


async def test_a_second_edit_in_the_middle(cluster):
    await edit(cluster, NAME, 8, "4Gi")
    await cluster.until(VMIS, NAME, lambda vmi: condition(vmi, "HotMemoryChange"))
    await edit(cluster, NAME, 1, "2Gi")
    await rests(cluster, NAME, 1, "2Gi")


async def test_an_edit_and_its_revert_within_100_ms(cluster):
    """As often as it takes until there were enough pairs that close: a busy machine may hold one up."""
    close = 0
    for _ in range(TRIES):
        await edit(cluster, NAME, 5, "3Gi")
        edited = time.monotonic()
        await edit(cluster, NAME, 2, "1Gi")
        close += time.monotonic() - edited < TOGETHER
        await rests(cluster, NAME, 2, "1Gi")
        if close == PAIRS:
            return
    raise AssertionError(f"only {close} of {TRIES} pairs of edits were made within {TOGETHER} s")


async def test_ten_contradicting_edits_at_once(cluster):
    for number in range(10):
        await edit(cluster, NAME, 1 + number * 5 % 8, f"{1 + number * 3 % 4}Gi")
    await rests(cluster, NAME, 6, "4Gi")
    await asyncio.gather(*(edit(cluster, NAME, 1 + number % 8) for number in range(10)))
    await edit(cluster, NAME, 3, "2Gi")
    await rests(cluster, NAME, 3, "2Gi")


async def test_events_have_both_sizes_and_the_time(cluster):
    await edit(cluster, NAME, 3, "2Gi")
    vmi = await rests(cluster, NAME, 3, "2Gi")
    text = "sockets 2 → 3 (2 → 3 vCPUs), memory 1Gi → 2Gi"
    assert await cluster.event(vmi, "ResizeStarted") == text
    completed = await cluster.event(vmi, "ResizeCompleted")
    assert completed.startswith(f"{text} in ")
    assert completed.endswith(" ms")
    selector = f"involvedObject.uid={vmi['metadata']['uid']},type=Warning"
    assert (await cluster.admin.list(EVENTS, cluster.namespace, field_selector=selector)).items == []


async def test_resources_alone_change_the_pod_and_not_the_guest(world):
    cluster = world.cluster
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    before = await boot(cluster, machine(NAME, resources=resources))
    for cpu, memory, limit in (("900m", "1536Mi", "3Gi"), ("200m", "1Gi", "1Gi")):
        more = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": limit}}
        await cluster.patch(VMS, NAME, {"spec": {"template": {"spec": {"domain": {"resources": more}}}}})
        await cluster.until(
            VMIS, NAME, lambda vmi, cpu=cpu: vmi["spec"]["domain"]["resources"]["requests"]["cpu"] == cpu
        )
        vmi = await rests(cluster, NAME, 2, "1Gi")
        pod = await pod_of(cluster, NAME)
        assert str(pod.spec.containers[0].resources.requests["cpu"]) == cpu
        assert boot_id(vmi) == boot_id(before)
    # With limits in force, the guest grows into a limit that was raised before.
    await edit(cluster, NAME, guest="3Gi")
    await rests(cluster, NAME, 2, "3Gi")
    await edit(cluster, NAME, guest="1Gi")
    await rests(cluster, NAME, 2, "1Gi")


async def test_the_gate_off_and_on_in_the_middle(cluster):
    await cluster.create(KUBEVIRTS, {"metadata": {"name": names.KUBEVIRT_NAME}, "spec": {}})
    for sockets, guest in ((6, "3Gi"), (2, "1Gi"), (1, "4Gi"), (5, "1Gi")):
        await edit(cluster, NAME, sockets, guest)
        await cluster.until(VMIS, NAME, lambda vmi, n=sockets: vmi["spec"]["domain"]["cpu"]["sockets"] == n)
        await gate(cluster, False)
        await gate(cluster, True)
        await gate(cluster, False)
        # Whatever was reached: it is over, or it is said why nothing goes on.
        for kind in ("HotVCPUChange", "HotMemoryChange"):
            await cluster.until(
                VMIS,
                NAME,
                lambda vmi, kind=kind: not condition(vmi, kind) or reason(kind, "FeatureGateOff")(vmi),
            )
        await gate(cluster, True)
        await rests(cluster, NAME, sockets, guest)


async def test_with_the_gate_off_nothing_moves_and_the_vm_says_so(cluster):
    await cluster.create(KUBEVIRTS, {"metadata": {"name": names.KUBEVIRT_NAME}, "spec": {}})
    await edit(cluster, NAME, 4, "2Gi")
    await rests(cluster, NAME, 4, "2Gi")
    await gate(cluster, False)
    await edit(cluster, NAME, 6, "3Gi")
    vm = await cluster.until(VMS, NAME, lambda each: condition(each, "RestartRequired"), LONG)
    assert "InPlaceHotplug" in condition(vm, "RestartRequired")["message"]
    vmi = await cluster.get(VMIS, NAME)
    assert vmi["status"]["currentCPUTopology"]["sockets"] == 4
    assert vmi["status"]["memory"]["guestCurrent"] == "2Gi"
    await gate(cluster, True)
    await rests(cluster, NAME, 6, "3Gi")
    await cluster.until(VMS, NAME, lambda each: not condition(each, "RestartRequired"))


@pytest.mark.parametrize("way", ["the VM", "the cluster's value", "the cluster's ratio"])
async def test_three_ways_to_set_the_maximum(world, way):
    cluster = world.cluster
    live = {"the VM": {}, "the cluster's value": {"maxCpuSockets": 6}, "the cluster's ratio": {}}[way]
    configuration = {"liveUpdateConfiguration": live} if live else {}
    await cluster.create(
        KUBEVIRTS, {"metadata": {"name": names.KUBEVIRT_NAME}, "spec": {"configuration": configuration}}
    )
    await cluster.until(KUBEVIRTS, names.KUBEVIRT_NAME, lambda each: each.get("status"))
    manifest = machine(NAME, 4)
    cpu = manifest["spec"]["template"]["spec"]["domain"]["cpu"]
    if way != "the VM":
        del cpu["maxSockets"]
    vmi = await boot(cluster, manifest)
    most = {"the VM": 8, "the cluster's value": 6, "the cluster's ratio": 16}[way]
    assert vmi["spec"]["domain"]["cpu"]["maxSockets"] == most
    sockets = [{"op": "replace", "path": "/spec/template/spec/domain/cpu/sockets", "value": 5}]
    await cluster.patch(VMS, NAME, sockets, kind="json")
    await rests(cluster, NAME, 5, "1Gi")
    await edit(cluster, NAME, most)
    await rests(cluster, NAME, most, "1Gi")
