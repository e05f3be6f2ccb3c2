"""printableStatus: every word, and that the order decides where two would fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotvirt.api.conditions import Condition
from hotvirt.plan.runstrategy import Instance, Request
from hotvirt.plan.status import Situation, Volumes, printable_status, ready_condition, start_delay


def vmi(phase: str, deleting: bool = False) -> Instance:
    return Instance("a", phase, deleting)


def false(type: str, reason: str) -> tuple[Condition, ...]:
    return (Condition(type=type, status="False", reason=reason),)


PAUSED = (Condition(type="Paused", status="True"),)
NO_IMAGE = false("Synchronized", "ErrImagePull")
START = (Request("Start"),)


@pytest.mark.parametrize(
    ("word", "situation"),
    [
        ("Terminating", {"deleting": True, "instance": vmi("Running")}),
        ("Stopping", {"instance": vmi("Running", deleting=True)}),
        ("Stopping", {"instance": vmi("Scheduling"), "stopping": True}),
        ("Migrating", {"instance": vmi("Running"), "migrating": True}),
        ("Paused", {"instance": vmi("Running"), "conditions": PAUSED}),
        ("Running", {"instance": vmi("Running"), "volumes": Volumes(failed=True)}),
        (
            "ErrorPvcNotFound",
            {"instance": vmi("Pending"), "conditions": false("Synchronized", "FailedPvcNotFound")},
        ),
        ("DataVolumeError", {"volumes": Volumes(failed=True, provisioning=True)}),
        (
            "ErrorUnschedulable",
            {"instance": vmi("Scheduling"), "conditions": false("PodScheduled", "Unschedulable")},
        ),
        ("Provisioning", {"instance": vmi("Pending"), "volumes": Volumes(provisioning=True)}),
        ("WaitingForVolumeBinding", {"instance": vmi("Pending"), "volumes": Volumes(unbound=True)}),
        ("Stopped", {"strategy": "Halted", "volumes": Volumes(unbound=True)}),
        ("ErrImagePull", {"instance": vmi("Scheduling"), "conditions": NO_IMAGE}),
        (
            "ImagePullBackOff",
            {"instance": vmi("Scheduling"), "conditions": false("Synchronized", "ImagePullBackOff")},
        ),
        ("Starting", {"instance": vmi("")}),
        ("Starting", {"instance": vmi("Scheduled")}),
        ("Starting", {"starting": True, "start_failures": 2}),
        ("CrashLoopBackOff", {"instance": vmi("Failed"), "start_failures": 1}),
        ("CrashLoopBackOff", {"start_failures": 3}),
        ("Stopped", {"strategy": "Manual", "start_failures": 3}),
        ("Stopped", {"instance": vmi("Succeeded"), "strategy": "Manual"}),
        ("Stopped", {"strategy": "Halted"}),
        ("Stopped", {"strategy": "Manual", "requests": START}),
        ("WaitingForReceiver", {"strategy": "WaitAsReceiver"}),
        ("Unknown", {"instance": vmi("Unknown")}),
    ],
)
def test_the_word(word, situation):
    assert printable_status(Situation(**{"strategy": "Always", **situation})) == word


def test_ready_is_the_vmis():
    conditions = (Condition(type="Ready", status="True", last_transition_time="2026-01-01T00:00:00Z"),)
    assert ready_condition(vmi("Running"), conditions) is conditions[0]
    assert ready_condition(vmi("Running", deleting=True), conditions).reason == "VMINotExists"
    assert ready_condition(None, ()).reason == "VMINotExists"
    assert ready_condition(vmi("Running"), ()).reason == "VMIConditionMissing"


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 10), (2, 40), (3, 90), (5, 250), (6, 300), (1000, 300)]
)
def test_the_delay_grows_with_the_square_up_to_five_minutes(failures, seconds):
    assert start_delay(failures, 0.0) == seconds


@given(st.integers(1, 100), st.floats(0, 1))
def test_jitter_adds_at_most_a_half(failures, jitter):
    delay = start_delay(failures, jitter)
    assert start_delay(failures, 0.0) <= delay <= min(1.5 * start_delay(failures, 0.0), 300)
