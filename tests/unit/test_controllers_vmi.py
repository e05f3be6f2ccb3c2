"""The VMI reconciler against the real API: the Pod, the phases, what goes wrong, the end."""

import logging

import pytest
import pytest_asyncio

from hotvirt.api import codec, names
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.api.resources import KUBEVIRTS, NAMESPACES, PODS, PVCS, VMIS, VMS
from hotvirt.kube.errors import Conflict, NotFound
from hotvirt.plan.pod import pod_name
from tests.inprocess import NODE, controlled_by_module, vm_manifest
from tests.kube import condition, in_phase, shows

pytestmark = pytest.mark.asyncio(loop_scope="module")
shared = controlled_by_module()


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared):
    cluster, node = shared
    await cluster.fresh_namespace()
    return cluster, node


def vmi_manifest(name: str, **template: object) -> dict:
    return {
        "metadata": {"name": name},
        "spec": vm_manifest(name, template=template)["spec"]["template"]["spec"],
    }


async def test_a_vmi_of_its_own_boots(world):
    cluster, node = world
    await cluster.create(VMIS, vmi_manifest("solo"))
    vmi = await cluster.until(VMIS, "solo", in_phase("Scheduling"))
    assert names.FINALIZER_VMI in vmi["metadata"]["finalizers"]
    vmi = await node.boot("solo")
    assert vmi["metadata"]["labels"][names.LABEL_NODE_NAME] == NODE
    status = vmi["status"]
    pod = await node.pod_of("solo")
    assert status["nodeName"] == NODE
    assert status["activePods"] == {pod["metadata"]["uid"]: NODE}
    assert status["qosClass"] == "Burstable"
    assert [each["phase"] for each in status["phaseTransitionTimestamps"]] == [
        "Scheduling",
        "Scheduled",
        "Running",
    ]
    vmi = await cluster.until(VMIS, "solo", lambda each: condition(each, "Ready")["status"] == "True")
    assert "virtualMachineRevisionName" not in vmi["status"]


async def test_the_readiness_gate_follows_the_guest(world):
    cluster, node = world
    gate = "kubevirt.io/virtual-machine-unpaused"
    await cluster.create(VMIS, vmi_manifest("solo"))
    await node.boot("solo")
    name = (await node.pod_of("solo"))["metadata"]["name"]
    pod = await cluster.until(PODS, name, lambda each: condition(each, gate))
    assert condition(pod, gate)["status"] == "True"
    assert condition(pod, "Ready")["status"] == "True"
    vmi = await cluster.until(VMIS, "solo", lambda each: condition(each, "Ready")["status"] == "True")
    await node.guest(vmi, paused=True)
    await cluster.until(PODS, name, lambda each: condition(each, gate)["status"] == "False")


async def test_no_room_is_said(world):
    cluster, node = world
    await cluster.create(VMS, vm_manifest("one"))
    pod = await node.pod_of("one")
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes",
    }
    await node.say(pod, {"conditions": [unschedulable]})
    vm = await cluster.until(VMS, "one", shows("ErrorUnschedulable"))
    assert condition(vm, "PodScheduled")["message"] == "0/1 nodes"
    await node.boot("one")
    vm = await cluster.until(VMS, "one", shows("Running"))
    assert condition(vm, "PodScheduled") is None


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
async def test_a_missing_image_is_said_with_the_command(world, reason):
    cluster, node = world
    await cluster.create(VMS, vm_manifest("one"))
    pod = await node.pod_of("one")
    await node.bind(pod)
    message = "import it with `hotvirt image import hotvirt/demo-guest:latest FILE`"
    waiting = {"name": "compute", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    waiting["state"] = {"waiting": {"reason": reason, "message": message}}
    await node.say(pod, {"phase": "Pending", "containerStatuses": [waiting]})
    vm = await cluster.until(VMS, "one", shows(reason))
    assert condition(vm, "Synchronized")["message"] == message
    await node.run_containers(await node.pod_of("one"))
    await cluster.until(VMIS, "one", in_phase("Scheduled"))
    vm = await cluster.until(VMS, "one", shows("Starting"))
    assert condition(vm, "Synchronized") is None


async def test_a_missing_claim_is_waited_for(world):
    cluster, node = world
    manifest = vm_manifest("one")
    manifest["spec"]["template"]["spec"]["volumes"].append(
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    )
    await cluster.create(VMS, manifest)
    vm = await cluster.until(VMS, "one", shows("ErrorPvcNotFound"))
    assert "PersistentVolumeClaim data" in condition(vm, "Synchronized")["message"]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await cluster.create(PVCS, {"metadata": {"name": "data"}, "spec": claim})
    vmi = await node.boot("one")
    assert condition(vmi, "Synchronized") is None
    volumes = {each["name"]: each for each in vmi["status"]["volumeStatus"]}
    assert volumes["data"]["persistentVolumeClaimInfo"]["claimName"] == "data"


async def test_a_foreign_pod_of_its_name_is_not_taken(world):
    cluster, _ = world
    claimed = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    await cluster.create(VMIS, vmi_manifest("one", volumes=[claimed | {"name": "system"}]))
    vmi = await cluster.until(VMIS, "one", lambda each: condition(each, "Synchronized"))
    name = pod_name(codec.convert(vmi, VirtualMachineInstance))
    container = {"name": "compute", "image": f"{names.LAUNCHER_IMAGE}:other"}
    await cluster.create(PODS, {"metadata": {"name": name}, "spec": {"containers": [container]}})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await cluster.create(PVCS, {"metadata": {"name": "data"}, "spec": claim})
    vmi = await cluster.until(
        VMIS, "one", lambda each: (condition(each, "Synchronized") or {}).get("reason") == "FailedCreate"
    )
    assert f"a Pod named {name} exists" in condition(vmi, "Synchronized")["message"]
    assert "activePods" not in vmi["status"]


async def test_in_a_namespace_that_ends_nothing_is_tried_again(world, caplog):
    cluster, node = world
    ending = cluster.namespace
    await cluster.create(VMS, vm_manifest("late", "Halted"))
    await cluster.until(VMS, "late", shows("Stopped"))
    with caplog.at_level(logging.DEBUG, "hotvirt"):
        await cluster.admin.delete(NAMESPACES, ending)
        await cluster.patch(VMS, "late", {"spec": {"runStrategy": "Always"}})
        # A VM that comes later is done when the late one has been looked at, and would have been again.
        await cluster.fresh_namespace()
        await cluster.create(VMS, vm_manifest("next"))
        await node.boot("next")
        await cluster.until(VMS, "next", shows("Running"))
    said = [each for each in caplog.records if f"{ending}/late" in each.getMessage()]
    assert ["goes with its namespace" in each.getMessage() for each in said] == [True]
    assert {each.levelno for each in said} == {logging.DEBUG}


async def test_what_no_machine_can_be_built_of_is_said(world):
    cluster, _ = world
    manifest = vmi_manifest("odd", volumes=[{"name": "odd", "hostDisk": {"path": "/x", "type": "Disk"}}])
    await cluster.create(VMIS, manifest)
    vmi = await cluster.until(VMIS, "odd", lambda each: condition(each, "Synchronized"))
    assert condition(vmi, "Synchronized")["reason"] == "FailedCreate"
    assert "volume odd" in condition(vmi, "Synchronized")["message"]


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed"), (137, "Failed")])
async def test_the_end_of_the_machine_is_the_end_of_the_vmi(world, code, phase):
    cluster, node = world
    await cluster.create(VMIS, vmi_manifest("solo"))
    await node.boot("solo")
    await node.end("solo", code)
    vmi = await cluster.until(VMIS, "solo", in_phase(phase))
    assert condition(vmi, "Ready")["status"] == "False"
    said = await cluster.event(vmi, "Stopped")
    assert said.endswith("was shut down.") if code == 0 else f"exit code {code}" in said


async def test_a_pod_that_vanishes_fails_the_vmi_and_is_not_made_again(world):
    cluster, node = world
    await cluster.create(VMIS, vmi_manifest("solo"))
    await node.boot("solo")
    pod = await node.pod_of("solo")
    await cluster.admin.delete(PODS, pod["metadata"]["name"], cluster.namespace, grace=0)
    await cluster.until(VMIS, "solo", in_phase("Failed"))
    with pytest.raises(NotFound):
        await cluster.get(PODS, pod["metadata"]["name"])


async def test_deletion_gives_the_guest_its_time_and_can_be_hurried(world):
    cluster, node = world
    await cluster.create(VMIS, vmi_manifest("solo", terminationGracePeriodSeconds=60))
    await node.boot("solo")
    name = (await node.pod_of("solo"))["metadata"]["name"]
    await cluster.admin.delete(VMIS, "solo", cluster.namespace)
    pod = await cluster.until(PODS, name, lambda each: each["metadata"].get("deletionTimestamp"))
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 62
    await cluster.patch(VMIS, "solo", {"spec": {"terminationGracePeriodSeconds": 0}})
    await cluster.until(PODS, name, lambda each: each["metadata"]["deletionGracePeriodSeconds"] == 1)
    await node.finish_deletion("solo")
    await cluster.gone(VMIS, "solo")


async def test_a_vmi_that_never_got_a_pod_can_be_deleted(world):
    cluster, _ = world
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "nowhere"}}]
    await cluster.create(VMIS, vmi_manifest("solo", volumes=volumes))
    await cluster.until(VMIS, "solo", in_phase("Pending"))
    await cluster.admin.delete(VMIS, "solo", cluster.namespace)
    await cluster.gone(VMIS, "solo")


async def test_events_tell_of_the_pod(world):
    cluster, node = world
    vmi = await cluster.create(VMIS, vmi_manifest("solo"))
    await node.boot("solo")
    await cluster.admin.delete(VMIS, "solo", cluster.namespace)
    await node.finish_deletion("solo")
    await cluster.gone(VMIS, "solo")
    for reason in ("SuccessfulCreate", "SuccessfulHandOver", "SuccessfulDelete"):
        assert "virt-launcher-solo-" in await cluster.event(vmi, reason)


async def test_a_stale_write_is_a_conflict(world):
    cluster, node = world
    await cluster.create(VMIS, vmi_manifest("solo"))
    vmi = await node.boot("solo")
    version = vmi["metadata"]["resourceVersion"]
    await cluster.patch(VMIS, "solo", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Conflict):
        await cluster.patch(
            VMIS, "solo", {"metadata": {"resourceVersion": version}, "status": {"reason": "x"}}, status=True
        )


async def test_the_kubevirt_object_says_that_hotvirt_is_there(world):
    cluster, _ = world
    await cluster.create(KUBEVIRTS, {"metadata": {"name": "kubevirt"}, "spec": {}})
    kubevirt = await cluster.until(KUBEVIRTS, "kubevirt", in_phase("Deployed"))
    assert condition(kubevirt, "Available")["status"] == "True"
    assert condition(kubevirt, "Degraded")["status"] == "False"
    assert kubevirt["status"]["observedGeneration"] == kubevirt["metadata"]["generation"]
    assert kubevirt["status"]["observedKubeVirtVersion"].startswith("v")
