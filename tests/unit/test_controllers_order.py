"""What may wait while many VMs are made, and what may not."""

from __future__ import annotations

import msgspec
import pytest

from hotvirt.api.conditions import Condition
from hotvirt.api.core import Pod
from hotvirt.api.kubevirt import StateChangeRequest, VirtualMachine, VirtualMachineInstance, VMIStatus
from hotvirt.api.meta import ObjectMeta, now
from hotvirt.controllers.order import news_of_pod, news_of_vm, news_of_vmi, news_of_vmi_for_vm
from hotvirt.controllers.vm import MIRROR_DELAY, mirror_delay
from hotvirt.kube.rush import Priority

META = ObjectMeta(name="one", namespace="ns", uid="u1", generation=1)
VM = VirtualMachine(metadata=META)
DELETING = msgspec.structs.replace(META, deletion_timestamp=now())
EDITED = msgspec.structs.replace(META, generation=2)


def vmi(phase: str = "", *conditions: Condition, metadata: ObjectMeta = META) -> VirtualMachineInstance:
    return VirtualMachineInstance(metadata=metadata, status=VMIStatus(phase=phase, conditions=conditions))


STUCK = vmi("Pending", Condition(type="Synchronized", status="False", reason="FailedCreate"))
HOMELESS = vmi("Scheduling", Condition(type="PodScheduled", status="False", reason="Unschedulable"))


def pod(phase: str = "Pending", **status: object) -> Pod:
    return msgspec.convert({"metadata": {"name": "one"}, "status": {"phase": phase, **status}}, Pod)


def test_an_edit_a_request_and_an_end_of_a_vm_are_urgent_and_the_echo_of_a_report_is_not() -> None:
    told = msgspec.structs.replace(
        VM, status=msgspec.structs.replace(VM.status, printable_status="Starting", created=True)
    )
    asked = msgspec.structs.replace(
        VM, status=msgspec.structs.replace(VM.status, state_change_requests=(StateChangeRequest("Start"),))
    )
    assert news_of_vm(VM, told) is Priority.MIRROR
    for old, new in (
        (None, VM),
        (VM, None),
        (VM, asked),
        (VM, VirtualMachine(metadata=EDITED)),
        (VM, VirtualMachine(metadata=DELETING)),
    ):
        assert news_of_vm(old, new) is Priority.CHANGE


@pytest.mark.parametrize("phase", ["Pending", "Scheduling"])
def test_what_is_said_of_a_vmi_on_its_way_may_wait(phase: str) -> None:
    assert news_of_vmi(vmi(), vmi(phase)) is Priority.REPORT
    assert news_of_vmi_for_vm(vmi(), vmi(phase)) is Priority.MIRROR
    assert news_of_vmi_for_vm(None, vmi()) is Priority.MIRROR


def test_a_new_vmi_needs_its_pod() -> None:
    assert news_of_vmi(None, vmi()) is Priority.CHANGE


@pytest.mark.parametrize(
    "new",
    [vmi("Scheduled"), vmi("Running"), vmi("Failed"), vmi(metadata=DELETING), STUCK, HOMELESS],
    ids=["handed over", "runs", "ended", "deleting", "stuck", "no room"],
)
def test_what_happens_to_a_machine_or_keeps_it_from_running_is_urgent(new: VirtualMachineInstance) -> None:
    assert news_of_vmi(vmi("Scheduling"), new) is Priority.CHANGE
    assert news_of_vmi_for_vm(vmi("Scheduling"), new) is Priority.CHANGE


def test_a_pod_that_waits_for_its_turn_may_wait_and_one_that_is_stuck_or_runs_may_not() -> None:
    waiting = {"name": "compute", "state": {"waiting": {"reason": "ErrImagePull"}}}
    homeless = [{"type": "PodScheduled", "status": "False"}]
    assert news_of_pod(None, pod()) is Priority.REPORT
    assert news_of_pod(pod(), pod(conditions=[{"type": "PodScheduled", "status": "True"}])) is Priority.REPORT
    for new in (None, pod("Running"), pod("Failed"), pod(containerStatuses=[waiting])):
        assert news_of_pod(pod(), new) is Priority.CHANGE
    assert news_of_pod(pod(), pod(conditions=homeless)) is Priority.CHANGE


def test_a_vmi_that_says_nothing_yet_is_shown_with_what_it_says_first() -> None:
    assert mirror_delay(None, vmi()) == MIRROR_DELAY
    assert mirror_delay(vmi(), vmi("Scheduling")) == 0.0
    assert mirror_delay(None, vmi("Running")) == mirror_delay(vmi("Running"), None) == 0.0
