"""The Pod status, in the kubelet's words, from what is known."""

from __future__ import annotations

from typing import Any

import pytest

from hotvirt.api import codec
from hotvirt.api.conditions import Condition
from hotvirt.api.pods import Pod
from hotvirt.embedded.node.runtime import ContainerRun
from hotvirt.embedded.node.status import Knowledge, Waiting, pod_status

START, END = "2026-01-01T00:00:00.123456789Z", "2026-01-01T00:00:05.5Z"
RUNNING = ContainerRun(START)
DONE = ContainerRun(START, 0, 0, END, "Completed")
FAILED = ContainerRun(START, 3, 0, END, "Error")


def pod(*names: str, init: tuple[str, ...] = (), status: dict[str, Any] | None = None, **spec: Any) -> Pod:
    containers = [{"name": name, "image": "hotvirt/launcher:1"} for name in names]
    inits = [{"name": name, "image": "hotvirt/launcher:1"} for name in init]
    content = {
        "metadata": {"name": "p", "uid": "u", "generation": 4},
        "spec": {"containers": containers, "initContainers": inits, **spec},
        "status": status or {},
    }
    return codec.convert(content, Pod)


def status(of: Pod, raw: dict[str, Any] | None = None, **known: Any) -> dict[str, Any]:
    return pod_status(of, raw or {}, Knowledge(**known))


def conditions(of: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in of["conditions"]}


@pytest.mark.parametrize(
    ("runs", "phase"),
    [
        ({}, "Pending"),
        ({"a": RUNNING}, "Pending"),
        ({"a": RUNNING, "b": RUNNING}, "Running"),
        ({"a": DONE, "b": RUNNING}, "Running"),
        ({"a": FAILED, "b": RUNNING}, "Running"),
        ({"a": DONE, "b": DONE}, "Succeeded"),
        ({"a": DONE, "b": FAILED}, "Failed"),
    ],
)
def test_phase(runs: dict[str, ContainerRun], phase: str) -> None:
    assert status(pod("a", "b"), runs=runs)["phase"] == phase


def test_init_containers_decide_first() -> None:
    made = pod("a", init=("i",))
    starting = status(made, runs={"i": RUNNING})
    assert starting["phase"] == "Pending"
    assert starting["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert conditions(starting)["Initialized"]["message"] == "containers with incomplete status: [i]"
    assert status(made, runs={"i": FAILED})["phase"] == "Failed"
    assert conditions(status(made, runs={"i": DONE, "a": RUNNING}))["Initialized"]["status"] == "True"


def test_waiting_says_why() -> None:
    shown = status(pod("a"), waiting={"a": Waiting("ErrImagePull", "import it")})
    assert shown["containerStatuses"][0]["state"] == {
        "waiting": {"reason": "ErrImagePull", "message": "import it"}
    }
    ready = conditions(shown)["Ready"]
    assert (ready["reason"], ready["message"]) == (
        "ContainersNotReady",
        "containers with unready status: [a]",
    )


def test_the_end_has_code_signal_and_times() -> None:
    killed = ContainerRun(START, 137, 9, END, "OOMKilled", "")
    (container,) = status(pod("a"), runs={"a": killed})["containerStatuses"]
    assert container["state"] == {
        "terminated": {
            "exitCode": 137,
            "signal": 9,
            "reason": "OOMKilled",
            "containerID": "hotvirt://u/a",
            "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": "2026-01-01T00:00:05Z",
        }
    }
    assert (container["ready"], container["started"]) == (False, False)


def test_times_move_only_with_the_status() -> None:
    old = {
        "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"},
            {"type": "ContainersReady", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},
            {"type": "Foreign", "status": "True", "lastTransitionTime": "2019-01-01T00:00:00Z"},
        ],
        "startTime": "2020-01-01T00:00:00Z",
    }
    shown = status(pod("a", status=old), old, runs={"a": RUNNING}, start_time="2030-01-01T00:00:00Z")
    found = conditions(shown)
    assert found["ContainersReady"]["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    assert found["Ready"]["lastTransitionTime"] > "2020-01-01T00:00:00Z"
    assert found["Foreign"]["lastTransitionTime"] == "2019-01-01T00:00:00Z"
    assert shown["startTime"] == "2020-01-01T00:00:00Z"


def test_the_same_knowledge_gives_the_same_status() -> None:
    made = pod("a")
    first = status(made, runs={"a": RUNNING}, start_time=START)
    again = pod_status(pod("a", status=first), first, Knowledge(runs={"a": RUNNING}, start_time="later"))
    assert again == first


def test_readiness_gates() -> None:
    gate = {"readinessGates": [{"conditionType": "x/y"}]}
    missing = conditions(status(pod("a", **gate), runs={"a": RUNNING}))
    assert (
        missing["Ready"]["message"] == 'corresponding condition of pod readiness gate "x/y" does not exist.'
    )
    assert missing["ContainersReady"]["status"] == "True"
    closed = {"conditions": [{"type": "x/y", "status": "False"}]}
    shown = conditions(status(pod("a", status=closed, **gate), closed, runs={"a": RUNNING}))
    assert shown["Ready"]["message"] == 'the status of pod readiness gate "x/y" is not "True", but False'
    opened = {"conditions": [{"type": "x/y", "status": "True"}]}
    assert (
        conditions(status(pod("a", status=opened, **gate), opened, runs={"a": RUNNING}))["Ready"]["status"]
        == "True"
    )


def test_a_resize_shows_and_goes() -> None:
    pending = Condition(type="PodResizePending", status="True", reason="Deferred", message="full")
    shown = status(pod("a"), runs={"a": RUNNING}, resize_pending=pending)
    assert conditions(shown)["PodResizePending"]["reason"] == "Deferred"
    assert "PodResizePending" not in conditions(status(pod("a", status=shown), shown, runs={"a": RUNNING}))


def test_a_rejected_pod_says_why() -> None:
    shown = status(pod("a"), rejected=("OutOfcpu", "no room"))
    assert (shown["phase"], shown["reason"], shown["message"]) == ("Failed", "OutOfcpu", "no room")
    assert "containerStatuses" not in shown
