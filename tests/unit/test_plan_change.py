"""A change of size seen as a whole: what rises, and what stands while the gate is off."""

from __future__ import annotations

from typing import Any

import pytest

from hotvirt.api import codec
from hotvirt.api.core import Pod
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.controllers.resize import _answers
from hotvirt.plan.change import HOT_MEMORY_CHANGE, HOT_VCPU_CHANGE, Guest, pending, view

GIB = 1 << 30


def vmi_of(*, sockets: int, guest: str, has: Guest) -> VirtualMachineInstance:
    size: dict[str, Any] = {"vcpus": has.vcpus, "memory": str(has.memory)}
    obj = {
        "metadata": {"name": "one", "namespace": "ns", "generation": 2},
        "spec": {"domain": {"cpu": {"sockets": sockets}, "memory": {"guest": guest}}},
        "status": {
            "phase": "Running",
            "currentCPUTopology": {"sockets": has.vcpus, "cores": 1, "threads": 1},
            "memory": {"guestCurrent": str(has.memory)},
            "hotvirt": {"claimed": size, "granted": size},
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
