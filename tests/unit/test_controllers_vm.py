"""The VM reconciler against the real API: run strategies, restarts, failures, edits, deletion."""

import pytest
import pytest_asyncio

from hotvirt.api import names
from hotvirt.api.resources import CONTROLLERREVISIONS, CRDS, DATAVOLUMES, PVCS, VMIS, VMS
from hotvirt.kube.errors import NotFound
from hotvirt.plan.revision import firmware_uuid, mac_address
from tests.inprocess import controlled_by_module, vm_manifest
from tests.kube import condition, in_phase, shows

pytestmark = pytest.mark.asyncio(loop_scope="module")
shared = controlled_by_module()


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared):
    cluster, node = shared
    await cluster.fresh_namespace()
    return cluster, node


async def test_a_vm_boots(world):
    cluster, node = world
    vm = await cluster.create(VMS, vm_manifest("one"))
    await cluster.until(VMS, "one", shows("Starting"))
    await node.boot("one")
    vm = await cluster.until(VMS, "one", shows("Running"))
    assert names.FINALIZER_VM in vm["metadata"]["finalizers"]
    status = vm["status"]
    assert (status["created"], status["runStrategy"]) == (True, "Always")
    assert status["observedGeneration"] == status["desiredGeneration"] == vm["metadata"]["generation"]
    ready = await cluster.until(VMS, "one", lambda each: each["status"].get("ready"))
    assert condition(ready, "Ready")["status"] == "True"


async def test_the_vmi_is_made_from_the_template_with_names_that_stay(world):
    cluster, _ = world
    vm = await cluster.create(VMS, vm_manifest("one"))
    vmi = await cluster.until(VMIS, "one", lambda _: True)
    uid = vm["metadata"]["uid"]
    assert vmi["metadata"]["annotations"][names.ANNOTATION_VM_GENERATION] == "1"
    assert vmi["metadata"]["ownerReferences"][0]["uid"] == uid
    assert vmi["spec"]["domain"]["firmware"]["uuid"] == firmware_uuid(uid)
    assert vmi["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"] == mac_address(uid, "default")
    revision = await cluster.get(CONTROLLERREVISIONS, f"revision-start-vm-{uid}-1")
    assert revision["data"]["spec"]["template"] == vm["spec"]["template"]
    vmi = await cluster.until(
        VMIS, "one", lambda each: each.get("status", {}).get("virtualMachineRevisionName")
    )
    assert vmi["status"]["virtualMachineRevisionName"] == revision["metadata"]["name"]


async def test_always_starts_again_with_the_same_names_and_one_revision(world):
    cluster, node = world
    vm = await cluster.create(VMS, vm_manifest("one"))
    first = await node.boot("one")
    await cluster.patch(VMS, "one", {"metadata": {"labels": {"touched": "yes"}}})
    await node.end("one")
    second = await cluster.until(VMIS, "one", lambda vmi: vmi["metadata"]["uid"] != first["metadata"]["uid"])
    assert second["spec"]["domain"]["firmware"] == first["spec"]["domain"]["firmware"]
    assert (
        second["spec"]["domain"]["devices"]["interfaces"] == first["spec"]["domain"]["devices"]["interfaces"]
    )
    revisions = await cluster.admin.list(CONTROLLERREVISIONS, cluster.namespace)
    assert [each["metadata"]["name"] for each in revisions.items] == [
        f"revision-start-vm-{vm['metadata']['uid']}-1"
    ]


async def test_halting_deletes_the_vmi(world):
    cluster, node = world
    await cluster.create(VMS, vm_manifest("one"))
    await node.boot("one")
    await cluster.patch(VMS, "one", {"spec": {"runStrategy": "Halted"}})
    await cluster.until(VMS, "one", shows("Stopping"))
    await node.finish_deletion("one")
    await cluster.gone(VMIS, "one")
    vm = await cluster.until(VMS, "one", shows("Stopped"))
    assert "created" not in vm["status"]
    assert condition(vm, "Ready")["reason"] == "VMINotExists"


async def test_manual_waits_for_requests_and_keeps_what_has_ended(world):
    cluster, node = world
    await cluster.create(VMS, vm_manifest("one", "Manual"))
    await cluster.until(VMS, "one", shows("Stopped"))
    await cluster.patch(VMS, "one", {"status": {"stateChangeRequests": [{"action": "Start"}]}}, status=True)
    vmi = await node.boot("one")
    vm = await cluster.until(VMS, "one", shows("Running"))
    assert "stateChangeRequests" not in vm["status"]
    await node.end("one")
    await cluster.until(VMIS, "one", in_phase("Succeeded"))
    await cluster.until(VMS, "one", shows("Stopped"))
    requests = [{"action": "Stop", "uid": vmi["metadata"]["uid"]}, {"action": "Start"}]
    await cluster.patch(VMS, "one", {"status": {"stateChangeRequests": requests}}, status=True)
    again = await cluster.until(VMIS, "one", lambda each: each["metadata"]["uid"] != vmi["metadata"]["uid"])
    assert again["metadata"]["name"] == "one"
    await cluster.until(VMS, "one", lambda each: not each["status"].get("stateChangeRequests"))


async def test_rerun_on_failure_starts_after_a_failure_only(world):
    cluster, node = world
    await cluster.create(VMS, vm_manifest("one", "RerunOnFailure"))
    first = await node.boot("one")
    await node.end("one", exit_code=1)
    second = await cluster.until(VMIS, "one", lambda vmi: vmi["metadata"]["uid"] != first["metadata"]["uid"])
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    await node.boot("one")
    await node.end("one", exit_code=0)
    await cluster.gone(VMIS, "one")
    await cluster.until(VMS, "one", shows("Stopped"))


async def test_once_runs_once(world):
    cluster, node = world
    await cluster.create(VMS, vm_manifest("one", "Once"))
    await node.boot("one")
    await node.end("one")
    await cluster.until(VMS, "one", shows("Stopped"))
    assert (await cluster.get(VMIS, "one"))["status"]["phase"] == "Succeeded"


async def test_a_start_that_fails_is_counted_and_the_next_waits(world, monkeypatch):
    monkeypatch.setattr("hotvirt.plan.status.FIRST_DELAY", 300.0)  # longer than any machine takes for this
    cluster, node = world
    await cluster.create(VMS, vm_manifest("one"))
    pod = await node.pod_of("one")
    await node.bind(pod)
    await node.end("one", exit_code=1)
    vm = await cluster.until(VMS, "one", lambda each: each.get("status", {}).get("startFailure"))
    failure = vm["status"]["startFailure"]
    assert failure["consecutiveFailCount"] == 1
    assert "exit code 1" in await cluster.event(vm, "StartFailed")
    assert failure["retryAfterTimestamp"] > vm["metadata"]["creationTimestamp"]
    await cluster.gone(VMIS, "one")
    await cluster.until(VMS, "one", shows("CrashLoopBackOff"))
    with pytest.raises(NotFound):
        await cluster.get(VMIS, "one")
    await cluster.patch(VMS, "one", {"status": {"startFailure": None}}, status=True)
    await node.boot("one")
    vm = await cluster.until(VMS, "one", shows("Running"))
    assert "startFailure" not in vm["status"]


async def test_halted_with_a_paused_start_becomes_always_and_starts_paused(world):
    cluster, _ = world
    await cluster.create(VMS, vm_manifest("one", "Halted"))
    await cluster.until(VMS, "one", shows("Stopped"))
    requests = [{"action": "Start", "data": {"paused": "true"}}]
    await cluster.patch(VMS, "one", {"status": {"stateChangeRequests": requests}}, status=True)
    vmi = await cluster.until(VMIS, "one", lambda _: True)
    assert vmi["spec"]["startStrategy"] == "Paused"
    assert (await cluster.get(VMS, "one"))["spec"]["runStrategy"] == "Always"


async def test_deleting_the_vm_stops_it_first(world):
    cluster, node = world
    await cluster.create(VMS, vm_manifest("one"))
    await node.boot("one")
    await cluster.admin.delete(VMS, "one", cluster.namespace)
    await cluster.until(VMS, "one", shows("Terminating"))
    await node.finish_deletion("one")
    await cluster.gone(VMIS, "one")
    await cluster.gone(VMS, "one")


async def test_an_orphaned_vmi_stays_and_is_adopted(world):
    cluster, node = world
    await cluster.create(VMS, vm_manifest("one"))
    vmi = await node.boot("one")
    await cluster.admin.delete(VMS, "one", cluster.namespace, propagation="Orphan")
    vm = await cluster.until(
        VMS, "one", lambda each: names.FINALIZER_VM not in each["metadata"]["finalizers"]
    )
    assert vm["metadata"]["finalizers"] == ["orphan"]
    # What the garbage collector does, which is not part of this test.
    await cluster.patch(VMIS, "one", {"metadata": {"ownerReferences": None}})
    await cluster.patch(VMS, "one", {"metadata": {"finalizers": None}})
    await cluster.gone(VMS, "one")
    again = await cluster.create(VMS, vm_manifest("one"))
    adopted = await cluster.until(VMIS, "one", lambda each: each["metadata"].get("ownerReferences"))
    assert adopted["metadata"]["uid"] == vmi["metadata"]["uid"]
    assert adopted["metadata"]["ownerReferences"][0]["uid"] == again["metadata"]["uid"]
    await cluster.until(VMS, "one", shows("Running"))


async def test_a_vmi_of_somebody_else_is_left_alone(world):
    cluster, _ = world
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y", "controller": True}
    manifest = vm_manifest("one")
    spec = manifest["spec"]["template"]["spec"]
    await cluster.create(VMIS, {"metadata": {"name": "one", "ownerReferences": [owner]}, "spec": spec})
    await cluster.create(VMS, manifest)
    vm = await cluster.until(VMS, "one", lambda each: condition(each, "Failure"))
    assert "belongs to another owner" in condition(vm, "Failure")["message"]


async def test_data_volumes_are_made_and_owned(world):
    cluster, node = world
    template = {
        "metadata": {"name": "data"},
        "spec": {"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "1Gi"}}}},
    }
    manifest = vm_manifest("one", dataVolumeTemplates=[template])
    manifest["spec"]["template"]["spec"]["volumes"].append({"name": "data", "dataVolume": {"name": "data"}})
    vm = await cluster.create(VMS, manifest)
    made = await cluster.until(DATAVOLUMES, "data", lambda _: True)
    assert made["metadata"]["ownerReferences"][0]["uid"] == vm["metadata"]["uid"]
    assert made["spec"]["source"] == {"blank": {}}
    await cluster.until(VMS, "one", shows("Provisioning"))
    waiting = await cluster.until(VMIS, "one", in_phase("Pending"))
    assert condition(waiting, "DataVolumesReady")["reason"] == "NotAllDVsReady"
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await cluster.create(PVCS, {"metadata": {"name": "data"}, "spec": claim})
    await cluster.patch(DATAVOLUMES, "data", {"status": {"phase": "Succeeded"}}, status=True)
    vmi = await node.boot("one")
    assert condition(vmi, "DataVolumesReady")["status"] == "True"
    await cluster.until(VMS, "one", shows("Running"))


async def test_without_cdi_a_vm_says_so_and_a_claim_of_that_name_does(world):
    cluster, node = world
    await cluster.admin.delete(CRDS, DATAVOLUMES.group_resource)
    await cluster.gone(CRDS, DATAVOLUMES.group_resource)
    template = {
        "metadata": {"name": "data"},
        "spec": {"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "1Gi"}}}},
    }
    manifest = vm_manifest("one", dataVolumeTemplates=[template])
    manifest["spec"]["template"]["spec"]["volumes"].append({"name": "data", "dataVolume": {"name": "data"}})
    await cluster.create(VMS, manifest)
    vm = await cluster.until(VMS, "one", lambda each: condition(each, "Failure"))
    assert "install CDI, or make a claim of that name" in condition(vm, "Failure")["message"]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await cluster.create(PVCS, {"metadata": {"name": "data"}, "spec": claim})
    await node.boot("one")
    await cluster.until(VMS, "one", shows("Running"))


async def test_what_is_not_live_waits_for_a_restart_and_says_all_causes(world):
    cluster, node = world
    await cluster.create(VMS, vm_manifest("one"))
    await node.boot("one")
    await cluster.until(VMS, "one", shows("Running"))
    change = {"domain": {"cpu": {"sockets": 2, "cores": 2}, "memory": {"guest": "512Mi"}}}
    await cluster.patch(VMS, "one", {"spec": {"template": {"spec": change}}})
    vm = await cluster.until(VMS, "one", lambda each: condition(each, "RestartRequired"))
    restart = condition(vm, "RestartRequired")
    assert "domain.cpu.cores" in restart["message"]
    assert "domain.memory.guest" in restart["message"]
    assert vm["status"]["observedGeneration"] == 1
    assert {each["observedGeneration"] for each in vm["status"]["conditions"]} == {2}
    vmi = await cluster.until(VMIS, "one", lambda each: each["spec"]["domain"]["cpu"]["sockets"] == 2)
    assert vmi["spec"]["domain"]["cpu"]["cores"] == 1
    back = {"domain": {"cpu": {"sockets": 2, "cores": 1}, "memory": {"guest": "256Mi"}}}
    await cluster.patch(VMS, "one", {"spec": {"template": {"spec": back}}})
    vm = await cluster.until(VMS, "one", lambda each: not condition(each, "RestartRequired"))
    vm = await cluster.until(VMS, "one", lambda each: each["status"]["observedGeneration"] == 3)
    assert vm["status"]["desiredGeneration"] == 3


async def test_the_time_of_a_restart_condition_stays_while_its_text_changes(world):
    cluster, node = world
    await cluster.create(VMS, vm_manifest("one"))
    await node.boot("one")
    await cluster.patch(VMS, "one", {"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 2}}}}}})
    first = condition(
        await cluster.until(VMS, "one", lambda each: condition(each, "RestartRequired")), "RestartRequired"
    )
    stamp = "2020-01-01T00:00:00Z"
    vm = await cluster.get(VMS, "one")
    aged = [
        each | ({"lastTransitionTime": stamp} if each["type"] == "RestartRequired" else {})
        for each in vm["status"]["conditions"]
    ]
    await cluster.patch(VMS, "one", {"status": {"conditions": aged}}, status=True)
    await cluster.patch(VMS, "one", {"spec": {"template": {"spec": {"domain": {"cpu": {"cores": 3}}}}}})
    vm = await cluster.until(
        VMS, "one", lambda each: (condition(each, "RestartRequired") or first)["message"] != first["message"]
    )
    assert condition(vm, "RestartRequired")["lastTransitionTime"] == stamp


async def test_events_tell_of_start_and_stop(world):
    cluster, node = world
    vm = await cluster.create(VMS, vm_manifest("one"))
    await node.boot("one")
    await cluster.patch(VMS, "one", {"spec": {"runStrategy": "Halted"}})
    await node.finish_deletion("one")
    for reason in ("SuccessfulCreate", "SuccessfulDelete"):
        assert "virtual machine instance one" in await cluster.event(vm, reason)


async def test_conditions_of_the_vmi_are_mirrored(world):
    cluster, node = world
    await cluster.create(VMS, vm_manifest("one"))
    vmi = await node.boot("one")
    vmi = await cluster.until(
        VMIS, "one", lambda each: (condition(each, "Ready") or {}).get("status") == "True"
    )
    await node.guest(vmi, paused=True)
    vm = await cluster.until(VMS, "one", shows("Paused"))
    assert condition(vm, "Paused")["status"] == "True"
    vm = await cluster.until(VMS, "one", lambda each: condition(each, "Ready")["status"] == "False")
    assert condition(vm, "Ready")["reason"] == "Paused"
