"""A change of size seen as a whole: what rises, and what stands while the gate is off."""

from __future__ import annotations

from typing import Any

import pytest

from hotvirt.api import codec
from hotvirt.api.core import Pod
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.controllers.resize import _answers
from hotvirt.plan.change import (
    HOT_MEMORY_CHANGE,
    HOT_RESOURCES_CHANGE,
    HOT_VCPU_CHANGE,
    Guest,
    claimed_with,
    goes_well,
    pending,
    view,
)

GIB = 1 << 30


def vmi_of(
    *, sockets: int, guest: str, has: Guest, conditions: dict[str, str] | None = None
) -> VirtualMachineInstance:
    size: dict[str, Any] = {"vcpus": has.vcpus, "memory": str(has.memory)}
    obj = {
        "metadata": {"name": "one", "namespace": "ns", "generation": 2},
        "spec": {"domain": {"cpu": {"sockets": sockets}, "memory": {"guest": guest}}},
        "status": {
            "phase": "Running",
            "currentCPUTopology": {"sockets": has.vcpus, "cores": 1, "threads": 1},
            "memory": {"guestCurrent": str(has.memory)},
            "hotvirt": {"claimed": size, "granted": size},
            "conditions": [
                {"type": kind, "status": "True", "reason": reason}
                for kind, reason in (conditions or {}).items()
            ],
        },
    }
    return codec.convert(obj, VirtualMachineInstance)


@pytest.mark.parametrize(
    ("granted", "before", "rises"),
    [
        (Guest(1, 3 * GIB), Guest(4, GIB), True),
        (Guest(4, GIB), Guest(1, 3 * GIB), True),
        (Guest(4, GIB), Guest(4, GIB), False),
        (Guest(1, GIB), Guest(4, GIB), False),
    ],
)
def test_a_mix_of_more_and_less_is_more(granted: Guest, before: Guest, rises: bool) -> None:
    assert granted.exceeds(before) is rises


@pytest.mark.parametrize(
    ("claimed", "before", "granted", "then"),
    [
        (Guest(1, GIB), Guest(1, GIB), Guest(4, 3 * GIB), Guest(4, 3 * GIB)),
        (Guest(1, GIB), Guest(1, GIB), Guest(4, GIB), Guest(4, GIB)),
        (Guest(1, GIB), Guest(4, GIB), Guest(4, 3 * GIB), Guest(1, 3 * GIB)),
        (Guest(4, 2 * GIB), Guest(4, 3 * GIB), Guest(5, 2 * GIB), Guest(5, 2 * GIB)),
        (Guest(1, GIB), Guest(4, GIB), Guest(1, GIB), Guest(1, GIB)),
        (Guest(2, GIB + 7), Guest(2, GIB), Guest(4, GIB), Guest(4, GIB + 7)),
    ],
    ids=["all", "vCPUs alone", "memory alone", "a mix", "less", "what stands there stays as it is"],
)
def test_what_is_granted_more_counts_as_claimed(
    claimed: Guest, before: Guest, granted: Guest, then: Guest
) -> None:
    assert claimed_with(claimed.status(), before, granted) == then.status()
    assert claimed_with(None, before, granted) is None, "nothing runs yet that the node agent has seen"


def test_a_change_that_the_gate_stopped_is_not_over() -> None:
    stopped = vmi_of(sockets=4, guest="2Gi", has=Guest(1, GIB))
    seen = view(stopped, gate=False)
    assert seen is not None
    assert seen.top == Guest(1, GIB), "nothing more is asked of the Pod"
    assert pending(stopped, seen, set()) == (HOT_VCPU_CHANGE, HOT_MEMORY_CHANGE)


def test_with_the_gate_off_a_machine_of_the_right_size_is_at_rest() -> None:
    calm = vmi_of(sockets=2, guest="1Gi", has=Guest(2, GIB))
    seen = view(calm, gate=False)
    assert seen is not None
    assert pending(calm, seen, set()) == ()


def test_the_nodes_word_about_an_earlier_size_is_not_its_answer() -> None:
    def said(**more: int) -> dict[str, Any]:
        return {"type": "PodResizePending", "status": "True", "reason": "Infeasible", **more}

    def answers(condition: dict[str, Any]) -> int:
        pod = {"metadata": {"name": "p", "generation": 5}, "status": {"conditions": [condition]}}
        return len(_answers(codec.convert(pod, Pod)))

    assert answers(said(observedGeneration=4)) == 0
    assert answers(said(observedGeneration=5)) == 1
    assert answers(said()) == 1, "an older kubelet does not say"


BOTH = {HOT_VCPU_CHANGE: "PodResize", HOT_MEMORY_CHANGE: "GuestPending"}


@pytest.mark.parametrize(
    ("differs", "left"),
    [
        (set(), (HOT_MEMORY_CHANGE,)),
        ({"memory"}, (HOT_MEMORY_CHANGE,)),
        ({"cpu"}, (HOT_VCPU_CHANGE, HOT_MEMORY_CHANGE)),
    ],
)
def test_the_finished_half_of_a_mixed_edit_is_over(differs: set[str], left: tuple[str, ...]) -> None:
    """The guest has its vCPUs and not yet its memory; the Pod may lag behind in either."""
    half = vmi_of(sockets=2, guest="2Gi", has=Guest(2, GIB), conditions=BOTH)
    seen = view(half, gate=True)
    assert seen is not None
    assert pending(half, seen, differs) == left


def test_nothing_is_over_before_the_node_has_looked_at_the_size_asked_for() -> None:
    for conditions, left in (
        (BOTH, tuple(BOTH)),
        ({HOT_RESOURCES_CHANGE: "PodResize"}, (HOT_RESOURCES_CHANGE,)),
    ):
        there = vmi_of(sockets=2, guest="1Gi", has=Guest(2, GIB), conditions=conditions)
        seen = view(there, gate=True)
        assert seen is not None
        assert pending(there, seen, set(), unseen=True) == left
        assert pending(there, seen, set()) == ()
    quiet = vmi_of(sockets=2, guest="1Gi", has=Guest(2, GIB))
    seen = view(quiet, gate=True)
    assert seen is not None
    assert pending(quiet, seen, set(), unseen=True) == ()


def test_a_change_goes_well_until_something_holds_it_up() -> None:
    size = Guest(2, GIB)
    assert goes_well(vmi_of(sockets=2, guest="1Gi", has=size))
    assert goes_well(vmi_of(sockets=2, guest="1Gi", has=size, conditions=BOTH))
    held = BOTH | {HOT_MEMORY_CHANGE: "PodResizeDeferred"}
    assert not goes_well(vmi_of(sockets=2, guest="1Gi", has=size, conditions=held))
