"""The run strategies, one row per situation that a user can be in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotvirt.plan.runstrategy import (
    ALWAYS,
    HALTED,
    MANUAL,
    ONCE,
    RERUN_ON_FAILURE,
    WAIT_AS_RECEIVER,
    Action,
    Instance,
    Request,
    decide,
    effective,
    settle,
)

START = Request("Start")
STOP = Request("Stop", uid="a")
NOTHING, START_IT, STOP_IT = Action.NOTHING, Action.START, Action.STOP


def vmi(phase: str, deleting: bool = False, uid: str = "a") -> Instance:
    return Instance(uid, phase, deleting)


@pytest.mark.parametrize(
    ("strategy", "requests", "instance", "action", "left"),
    [
        (ALWAYS, (), None, START_IT, ()),
        (ALWAYS, (), vmi("Running"), NOTHING, ()),
        (ALWAYS, (), vmi("Succeeded"), STOP_IT, ()),
        (ALWAYS, (), vmi("Failed"), STOP_IT, ()),
        (ALWAYS, (), vmi("Failed", deleting=True), NOTHING, ()),
        (ALWAYS, (STOP, START), vmi("Running"), STOP_IT, (STOP, START)),
        (ALWAYS, (STOP, START), vmi("Running", deleting=True), NOTHING, (STOP, START)),
        (ALWAYS, (STOP, START), None, START_IT, (START,)),
        (ALWAYS, (STOP, START), vmi("Scheduling", uid="b"), NOTHING, ()),
        (RERUN_ON_FAILURE, (), None, NOTHING, ()),
        (RERUN_ON_FAILURE, (START,), None, START_IT, (START,)),
        (RERUN_ON_FAILURE, (), vmi("Failed"), STOP_IT, (START,)),
        (RERUN_ON_FAILURE, (START,), vmi("Failed"), STOP_IT, (START,)),
        (RERUN_ON_FAILURE, (), vmi("Failed", deleting=True), NOTHING, ()),
        (RERUN_ON_FAILURE, (), vmi("Succeeded"), STOP_IT, ()),
        (RERUN_ON_FAILURE, (STOP,), vmi("Running"), STOP_IT, (STOP,)),
        (RERUN_ON_FAILURE, (STOP,), None, NOTHING, ()),
        (MANUAL, (), None, NOTHING, ()),
        (MANUAL, (START,), None, START_IT, (START,)),
        (MANUAL, (), vmi("Succeeded"), NOTHING, ()),
        (MANUAL, (STOP, START), vmi("Succeeded"), STOP_IT, (STOP, START)),
        (MANUAL, (STOP,), vmi("Running"), STOP_IT, (STOP,)),
        (MANUAL, (STOP,), vmi("Running", uid="b"), NOTHING, ()),
        (MANUAL, (START,), vmi("Running"), NOTHING, ()),
        (MANUAL, (START,), vmi("Running", deleting=True), NOTHING, (START,)),
        (HALTED, (), None, NOTHING, ()),
        (HALTED, (), vmi("Running"), STOP_IT, ()),
        (HALTED, (), vmi("Failed"), STOP_IT, ()),
        (ONCE, (), None, START_IT, ()),
        (ONCE, (), vmi("Running"), NOTHING, ()),
        (ONCE, (), vmi("Succeeded"), NOTHING, ()),
        (ONCE, (), vmi("Failed"), NOTHING, ()),
    ],
)
def test_what_each_strategy_does(strategy, requests, instance, action, left):
    decision = decide(strategy, requests, instance, last_strategy=strategy)
    assert (decision.action, decision.requests) == (action, left)
    assert decision.strategy is None
    assert not decision.problem


def test_switching_to_rerun_on_failure_starts_the_vm_once():
    decision = decide(RERUN_ON_FAILURE, (), None, last_strategy=HALTED)
    assert (decision.action, decision.requests) == (START_IT, (START,))
    assert decide(RERUN_ON_FAILURE, (), None, last_strategy=RERUN_ON_FAILURE).action is NOTHING


def test_a_start_request_switches_halted_to_always_and_stays_queued():
    paused = Request("Start", data={"paused": "true"})
    decision = decide(HALTED, (paused,), None)
    assert (decision.action, decision.strategy, decision.requests) == (NOTHING, ALWAYS, (paused,))
    then = decide(ALWAYS, decision.requests, None)
    assert then.action is START_IT
    assert then.paused


def test_a_start_waits_for_the_backoff():
    decision = decide(ALWAYS, (), None, backoff=7.5)
    assert (decision.action, decision.wait) == (NOTHING, 7.5)
    assert decide(ONCE, (), None, backoff=7.5).action is START_IT


def test_an_unsupported_strategy_says_what_to_use():
    decision = decide(WAIT_AS_RECEIVER, (), None)
    assert decision.action is NOTHING
    assert "WaitAsReceiver is not supported" in decision.problem
    assert "Always" in decision.problem


@pytest.mark.parametrize(
    ("run_strategy", "running", "expected"),
    [("Manual", None, MANUAL), (None, True, ALWAYS), (None, False, HALTED), (None, None, HALTED)],
)
def test_running_is_the_old_way_to_write_the_strategy(run_strategy, running, expected):
    assert effective(run_strategy, running) == expected


requests = st.builds(Request, st.sampled_from(["Start", "Stop"]), st.sampled_from(["a", "b"]))
instances = st.none() | st.builds(
    Instance,
    st.sampled_from(["a", "b"]),
    st.sampled_from(["", "Scheduling", "Running", "Succeeded", "Failed"]),
    st.booleans(),
)


@given(st.lists(requests, max_size=3), instances)
def test_settling_is_idempotent_and_takes_from_the_head_only(queue, instance):
    left = settle(queue, instance)
    assert settle(left, instance) == left
    assert tuple(queue)[len(queue) - len(left) :] == left


@given(
    st.sampled_from([ALWAYS, RERUN_ON_FAILURE, MANUAL, HALTED, ONCE]),
    st.lists(requests, max_size=3),
    instances,
)
def test_nothing_is_started_twice_or_stopped_twice(strategy, queue, instance):
    decision = decide(strategy, queue, instance, last_strategy=strategy)
    if instance is not None:
        assert decision.action is not START_IT
    if instance is None or instance.deleting:
        assert decision.action is not STOP_IT
