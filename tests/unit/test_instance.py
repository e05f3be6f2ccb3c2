"""What a VMI's status says of its Pod and its volumes; and the names that survive a restart."""

import pytest

from hotvirt.api import codec
from hotvirt.api.cdi import DataVolume
from hotvirt.api.conditions import Condition, find
from hotvirt.api.core import PersistentVolumeClaim, Pod
from hotvirt.api.kubevirt import VirtualMachineInstance, VMIStatus, Volume
from hotvirt.plan.instance import (
    Problem,
    VolumesView,
    conditions_of,
    last_words,
    observed_at,
    phase_of,
    pod_problem,
    ready_of,
    volume_status,
    volumes_view,
    was_running,
    with_phase,
)
from hotvirt.plan.revision import firmware_uuid, mac_address, revision_name, with_stable_names

READY = (Condition(type="Ready", status="True"),)


def pod(phase: str = "Running", state: dict | None = None, **more: object) -> Pod:
    return codec.convert(
        {
            "metadata": more.pop("metadata", {}),
            "spec": {"nodeName": more.pop("node", "n1")},
            "status": {
                "phase": phase,
                "containerStatuses": [{"name": "compute", "state": state or {"running": {}}}],
                **more,
            },
        },
        Pod,
    )


@pytest.mark.parametrize(
    ("current", "seen", "expected"),
    [
        ("", None, "Pending"),
        ("Pending", None, "Pending"),
        ("Scheduling", None, "Failed"),
        ("Running", None, "Failed"),
        ("Succeeded", None, "Succeeded"),
        ("", pod("Pending", {"waiting": {}}, node=""), "Scheduling"),
        ("Scheduling", pod("Pending", {"waiting": {}}), "Scheduling"),
        ("Scheduling", pod("Running", {"waiting": {}}), "Scheduling"),
        ("Scheduling", pod(), "Scheduled"),
        ("", pod(), "Scheduled"),
        ("Scheduled", pod(), "Scheduled"),
        ("Running", pod(), "Running"),
        ("Running", pod("Running", {"terminated": {"exitCode": 0}}), "Succeeded"),
        ("Running", pod("Running", {"terminated": {"exitCode": 1}}), "Failed"),
        ("Scheduled", pod("Failed", {"waiting": {}}), "Failed"),
        ("Failed", pod("Running", {"terminated": {"exitCode": 0}}), "Failed"),
    ],
)
def test_the_phase(current, seen, expected):
    assert phase_of(current, seen) == expected


def test_every_phase_has_its_time_once():
    status = with_phase(VMIStatus(), "Pending", "t1")
    status = with_phase(status, "Pending", "t2")
    status = with_phase(status, "Running", "t3")
    assert [(each.phase, each.phase_transition_timestamp) for each in status.phase_transition_timestamps] == [
        ("Pending", "t1"),
        ("Running", "t3"),
    ]
    assert was_running(status)
    assert not was_running(VMIStatus())


def test_the_last_words_say_why_the_machine_ended():
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": "qemu: no such device"}}
    assert last_words(pod("Failed", ended)) == "It ended with exit code 1 (Error): qemu: no such device"
    assert last_words(None) == "Its launcher Pod is gone."
    evicted = codec.convert({"status": {"phase": "Failed", "reason": "Evicted", "message": "no memory"}}, Pod)
    assert last_words(evicted) == "no memory"
    step = {"exitCode": 1, "message": "cp: can't stat '/disk': No such file or directory\n"}
    steps = [
        {"name": "tools", "state": {"terminated": {"exitCode": 0}}},
        {"name": "disk-system", "state": {"terminated": step}},
    ]
    unprepared = pod("Failed", {"waiting": {"reason": "PodInitializing"}}, initContainerStatuses=steps)
    assert last_words(unprepared) == (
        "Its Pod's init step disk-system ended with exit code 1: "
        "cp: can't stat '/disk': No such file or directory"
    )


@pytest.mark.parametrize(
    ("phase", "conditions", "seen", "reason"),
    [
        ("Scheduling", (), None, "PodNotExists"),
        ("Scheduled", (), pod(), "GuestNotRunning"),
        ("Running", (), pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), "PodTerminating"),
        ("Running", (Condition(type="Paused", status="True"),), pod(), "Paused"),
        ("Running", (), pod(), "PodConditionMissing"),
        ("Succeeded", (), pod(), "PodTerminated"),
    ],
)
def test_not_ready_and_why(phase, conditions, seen, reason):
    ready = ready_of(phase, conditions, seen)
    assert (ready.status, ready.reason) == ("False", reason)
    assert ready.message.endswith(".")


def test_ready_is_the_pods():
    seen = pod(conditions=[{"type": "Ready", "status": "True"}])
    assert ready_of("Running", (), seen).status == "True"


def test_an_image_that_the_init_step_cannot_pull_is_a_problem():
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    steps = [{"name": "tools", "state": {"terminated": {}}}, {"name": "disk-system", "state": waiting}]
    seen = pod("Pending", {"waiting": {"reason": "PodInitializing"}}, initContainerStatuses=steps)
    problem = pod_problem(seen)
    assert problem is not None
    assert (problem.reason, problem.message) == ("ImagePullBackOff", "no such image")


def test_an_image_that_cannot_be_pulled_is_a_problem():
    message = "no image os:1: run `hotvirt image import os:1 FILE`"
    seen = pod("Pending", {"waiting": {"reason": "ErrImagePull", "message": message}})
    problem = pod_problem(seen)
    assert problem is not None
    assert (problem.reason, problem.message) == ("ErrImagePull", message)
    conditions = conditions_of((), phase="Scheduling", pod=seen, volumes=VolumesView(), problem=problem)
    synchronized = find(conditions, "Synchronized")
    assert synchronized is not None
    assert (synchronized.status, synchronized.reason) == ("False", "ErrImagePull")
    healed = conditions_of(conditions, phase="Scheduled", pod=pod(), volumes=VolumesView(), problem=None)
    assert find(healed, "Synchronized") is None


def test_an_unschedulable_pod_is_mirrored_and_forgotten():
    seen = pod(
        "Pending",
        {"waiting": {}},
        conditions=[
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
        ],
    )
    conditions = conditions_of((), phase="Scheduling", pod=seen, volumes=VolumesView(), problem=None)
    scheduled = find(conditions, "PodScheduled")
    assert scheduled is not None
    assert (scheduled.reason, scheduled.message) == ("Unschedulable", "0/1 nodes")
    assert (
        find(
            conditions_of(conditions, phase="Running", pod=pod(), volumes=VolumesView(), problem=None),
            "PodScheduled",
        )
        is None
    )


def test_a_new_generation_alone_is_no_reason_to_write():
    def at(old, generation, problem=None):
        return conditions_of(
            old, phase="Running", pod=pod(), volumes=VolumesView(), problem=problem, generation=generation
        )

    first = at((), 1)
    assert [(each.type, each.observed_generation) for each in first] == [("Ready", 1)]
    assert at(first, 2) == first
    second = at(first, 2, Problem("ErrPvc", "no such claim"))
    assert {each.type: each.observed_generation for each in second} == {"Ready": 1, "Synchronized": 2}
    agent = Condition(type="AgentConnected", status="True", observed_generation=1)
    brought_up = observed_at((*second, agent), 3)
    assert {each.type: each.observed_generation for each in brought_up} == {
        "Ready": 3,
        "Synchronized": 3,
        "AgentConnected": 1,
    }
    assert at(brought_up, 3, Problem("ErrPvc", "no such claim")) == brought_up


def test_conditions_of_others_stay():
    agent = Condition(type="AgentConnected", status="True", last_transition_time="t")
    conditions = conditions_of((agent,), phase="Running", pod=pod(), volumes=VolumesView(), problem=None)
    assert agent in conditions


def volume(**source: object) -> Volume:
    return codec.convert({"name": "v", **source}, Volume)


def test_volumes_are_waited_for():
    claim = volume(persistentVolumeClaim={"claimName": "c"})
    made = volume(dataVolume={"name": "d"})
    missing = volumes_view([claim], {}, {})
    assert missing.missing is not None
    assert missing.missing.reason == "FailedPvcNotFound"
    assert not missing.ready
    assert volumes_view([claim], {}, {"c": PersistentVolumeClaim()}).ready
    assert volumes_view([made], {}, {"d": PersistentVolumeClaim()}).ready
    assert volumes_view([made], {}, {}).missing is not None
    pending = codec.convert({"status": {"phase": "ImportInProgress"}}, DataVolume)
    assert volumes_view([made], {"d": pending}, {}).unready == ("d",)
    done = codec.convert({"status": {"phase": "Succeeded"}}, DataVolume)
    view = volumes_view([made], {"d": done}, {})
    assert view.ready
    ready = find(conditions_of((), phase="Pending", pod=None, volumes=view, problem=None), "DataVolumesReady")
    assert ready is not None
    assert ready.status == "True"


def test_volume_status_tells_of_the_claim_and_keeps_the_target():
    vmi = codec.convert(
        {
            "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
            "status": {"volumeStatus": [{"name": "v", "target": "vda"}, {"name": "gone", "target": "vdb"}]},
        },
        VirtualMachineInstance,
    )
    claim = codec.convert(
        {"metadata": {"name": "c"}, "status": {"capacity": {"storage": "1Gi"}}}, PersistentVolumeClaim
    )
    (entry,) = volume_status(vmi, {"c": claim})
    assert entry.target == "vda"
    assert entry.persistent_volume_claim_info is not None
    assert str(entry.persistent_volume_claim_info.capacity["storage"]) == "1Gi"


def test_names_stay_the_same_for_a_vm_and_differ_between_vms():
    assert firmware_uuid("a") == firmware_uuid("a") != firmware_uuid("b")
    assert mac_address("a", "default") == mac_address("a", "default") != mac_address("a", "second")
    assert int(mac_address("a", "default")[:2], 16) & 3 == 2
    assert revision_name("a", 3) == "revision-start-vm-a-3"
    spec = {"domain": {"devices": {"interfaces": [{"name": "default"}, {"name": "x", "macAddress": "m"}]}}}
    named = with_stable_names(spec, "a")["domain"]
    assert named["firmware"]["uuid"] == firmware_uuid("a")
    assert [each["macAddress"] for each in named["devices"]["interfaces"]] == [
        mac_address("a", "default"),
        "m",
    ]
    own = with_stable_names({"domain": {"firmware": {"uuid": "mine"}}}, "a")
    assert own["domain"]["firmware"]["uuid"] == "mine"
    assert spec["domain"]["devices"]["interfaces"][0] == {"name": "default"}
