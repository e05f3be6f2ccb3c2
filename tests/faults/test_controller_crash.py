"""Controllers or the node agent killed after any single API write: the end is that of a run without faults.

The path: a VM is made and boots, gets a second vCPU while it runs, is restarted, and is deleted. Beside it, a
VM that its owner deletes while it is being started.
"""

from __future__ import annotations

from typing import Any

import pytest

from hotvirt.api import names
from hotvirt.api.resources import CONTROLLERREVISIONS, PODS, VMIS, VMS
from tests.faults.machines import Machines, each_of, machines
from tests.inprocess import vm_manifest
from tests.kube import condition, shows

Object = dict[str, Any]
# What differs between any two runs, and what depends on who was first of two that may be in any order.
PASSING = {
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "observedGeneration",
    "desiredGeneration",
    "lastTransitionTime",
    "lastProbeTime",
    "phaseTransitionTimestamps",
    "startTime",
    "startedAt",
    "managedFields",
    "activePods",
    "bootId",
    "virtualMachineRevisionName",
    "containerID",
    "podIP",
    "podIPs",
    "ipAddress",
    "ipAddresses",
    "ownerReferences",
}


# What each does on that path, at the least.
DEEDS = {
    "controllers": {
        "create controllerrevisions/",
        "create virtualmachineinstances/",
        "create pods/",
        "patch virtualmachines/",
        "patch virtualmachines/status",
        "patch virtualmachineinstances/",
        "patch virtualmachineinstances/status",
        "patch pods/status",
        "patch pods/resize",
        "delete virtualmachineinstances/",
        "delete pods/",
    },
    "agent": {"patch virtualmachineinstances/status", "command plugged", "command online"},
}


def lasting(obj: Any, name: str) -> Any:
    """What of an object should be the same in every run."""
    if isinstance(obj, dict):
        return {
            key: sorted_conditions(lasting(value, name)) if key == "conditions" else lasting(value, name)
            for key, value in obj.items()
            if key not in PASSING and not key.startswith("kubevirt.io/")
        }
    if isinstance(obj, list):
        return [lasting(each, name) for each in obj]
    return obj.replace(name, "NAME") if isinstance(obj, str) else obj


def sorted_conditions(conditions: list[Object]) -> list[Object]:
    return sorted(conditions, key=lambda each: each["type"])


def grown(vmi: Object) -> bool:
    status = vmi.get("status", {})
    return (
        status.get("phase") == "Running"
        and status.get("currentCPUTopology", {}).get("sockets") == 2
        and condition(vmi, "HotVCPUChange") is None
        and status.get("hotvirt", {}).get("settledGeneration") == vmi["metadata"]["generation"]
        and (condition(vmi, "Ready") or {}).get("status") == "True"
    )


def settled(vm: Object) -> bool:
    status = vm.get("status", {})
    return (
        status.get("printableStatus") == "Running"
        and status.get("ready") is True
        and status.get("observedGeneration") == vm["metadata"]["generation"]
        and condition(vm, "HotVCPUChange") is None
        and not status.get("stateChangeRequests")
    )


async def live_through(world: Machines, name: str) -> Object:
    """The whole path; what stood in the API when the guest had grown and when it had been restarted."""
    cluster = world.cluster
    manifest = vm_manifest(name)
    domain = manifest["spec"]["template"]["spec"]["domain"]
    # Named, because what Hotvirt would choose differs from VM to VM.
    domain["firmware"] = {"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223"}
    domain["devices"]["interfaces"][0]["macAddress"] = "02:00:00:00:00:01"
    await cluster.create(VMS, manifest)
    first = await cluster.until(
        VMIS, name, lambda vmi: vmi.get("status", {}).get("hotvirt", {}).get("bootId")
    )
    await cluster.until(VMS, name, shows("Running"))
    await cluster.patch(VMS, name, {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": 2}}}}}})
    vmi = await cluster.until(VMIS, name, grown)
    assert vmi["status"]["hotvirt"]["bootId"] == first["status"]["hotvirt"]["bootId"]
    after_growth = await settled_state(world, name)

    requests = [{"action": "Stop", "uid": vmi["metadata"]["uid"]}, {"action": "Start"}]
    await cluster.patch(VMS, name, {"status": {"stateChangeRequests": requests}}, status=True)
    again = await cluster.until(
        VMIS, name, lambda each: each["metadata"]["uid"] != vmi["metadata"]["uid"] and grown(each)
    )
    assert again["status"]["hotvirt"]["bootId"] != vmi["status"]["hotvirt"]["bootId"]
    after_restart = await settled_state(world, name)

    await cluster.admin.delete(VMS, name, cluster.namespace)
    await cluster.gone(VMS, name)
    await cluster.gone(VMIS, name)
    for pod in (await cluster.admin.list(PODS, cluster.namespace)).items:
        await cluster.gone(PODS, pod["metadata"]["name"])
    return {"grown": after_growth, "restarted": after_restart}


async def settled_state(world: Machines, name: str) -> Object:
    cluster = world.cluster
    vm = await cluster.until(VMS, name, settled)
    vmi = await cluster.until(VMIS, name, grown)
    (pod,) = (await cluster.admin.list(PODS, cluster.namespace)).items
    revisions = (await cluster.admin.list(CONTROLLERREVISIONS, cluster.namespace)).items
    revision = next(
        each for each in revisions if each["metadata"]["name"] == vmi["status"]["virtualMachineRevisionName"]
    )
    assert condition(vm, "Failure") is None
    return {
        "vm": lasting(vm, name),
        "vmi": lasting(vmi, name),
        "pod": lasting(pod["spec"]["containers"], name),
        "revision": lasting(revision["data"], name),
        "revisions": sum(owner_of(each) == vm["metadata"]["uid"] for each in revisions),
    }


def owner_of(obj: Object) -> str:
    """Those of VMs that were deleted may still be there: the garbage collector takes its time."""
    (owner,) = obj["metadata"]["ownerReferences"]
    return str(owner["uid"])


@pytest.mark.parametrize("victim", ["controllers", "agent"])
@pytest.mark.timeout(900)
async def test_killed_after_every_single_write(in_memory, victim):
    async with machines(in_memory) as world:
        async with world.alive(victim) as unharmed:
            expected = await live_through(world, "calm")
        assert unharmed is not None
        count = len(unharmed.writes)
        assert count >= 5, unharmed.writes
        killed_after = set()
        for number, deed in enumerate(each_of(unharmed.writes)):
            name = f"vm-{number}"
            async with world.alive(victim, dies_after=deed) as killed:
                found = await live_through(world, name)
            assert killed is not None
            if killed.was_killed:
                killed_after.add(deed)
            assert found == expected, f"killed after {deed}, its {len(killed.writes)}th"
        # On a slow machine more is told of a change on its way: not all may be there every time.
        assert len(killed_after) > count // 3, (count, killed_after)
        assert {what for what, _ in killed_after} >= DEEDS[victim], killed_after


def has_finalizer(vm: Object) -> bool:
    return names.FINALIZER_VM in vm["metadata"].get("finalizers", ())


STEPS_OF_A_START = (
    (VMS, lambda _: True),
    (VMIS, lambda _: True),
    (VMS, has_finalizer),
    (VMIS, lambda vmi: vmi.get("status", {}).get("phase")),
    (VMS, lambda vm: vm.get("status", {}).get("printableStatus")),
)


@pytest.mark.parametrize("step", range(len(STEPS_OF_A_START)))
async def test_a_vm_deleted_at_any_step_of_its_start_leaves_nothing(in_memory, step):
    resource, reached = STEPS_OF_A_START[step]
    async with machines(in_memory) as world, world.alive("controllers"):
        cluster = world.cluster
        await cluster.create(VMS, vm_manifest("one"))
        await cluster.until(resource, "one", reached)
        await cluster.admin.delete(VMS, "one", cluster.namespace)
        await cluster.gone(VMS, "one")
        # Whatever was being made at that moment comes after it, and goes too.
        for kind in (VMIS, PODS, CONTROLLERREVISIONS):
            for left in (await cluster.admin.list(kind, cluster.namespace)).items:
                await cluster.gone(kind, left["metadata"]["name"])
        await cluster.create(VMS, vm_manifest("one"))
        await cluster.until(VMS, "one", shows("Running"))
        await cluster.admin.delete(VMS, "one", cluster.namespace)
        await cluster.gone(VMS, "one")
