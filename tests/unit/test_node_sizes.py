"""Where the agent may bring a machine: what is wanted, as far as it was granted, and with the gate on."""

from __future__ import annotations

from typing import Any

import pytest

from hotvirt.api import codec
from hotvirt.api.kubevirt import VirtualMachineInstance, VMIStatus
from hotvirt.hypervisor.driver import GuestVcpu, GuestView, MemoryView, Observed, Slot, Status
from hotvirt.node.sizes import aims, reached, recalled, used
from hotvirt.plan.change import Guest

GIB = 1 << 30
HAS = Guest(2, 2 * GIB)


def vmi(wanted: Guest, granted: Guest | None, **metadata: Any) -> VirtualMachineInstance:
    size = {"vcpus": granted.vcpus, "memory": str(granted.memory)} if granted else None
    obj = {
        "metadata": {"name": "one"} | metadata,
        "spec": {"domain": {"cpu": {"sockets": wanted.vcpus}, "memory": {"guest": str(wanted.memory)}}},
        "status": {"hotvirt": {"granted": size} if size else {}},
    }
    return codec.convert(obj, VirtualMachineInstance)


@pytest.mark.parametrize(
    ("wanted", "granted", "aim"),
    [
        (Guest(4, 4 * GIB), Guest(4, 4 * GIB), Guest(4, 4 * GIB)),
        (Guest(4, 4 * GIB), Guest(3, 3 * GIB), Guest(3, 3 * GIB)),
        (Guest(4, 4 * GIB), Guest(4, 2 * GIB), Guest(4, 2 * GIB)),
        (Guest(4, 4 * GIB), None, HAS),
        (Guest(4, 4 * GIB), Guest(1, GIB), HAS),
        (Guest(1, GIB), None, Guest(1, GIB)),
        (Guest(1, 4 * GIB), Guest(2, 4 * GIB), Guest(1, 4 * GIB)),
        (Guest(1, GIB // 2), HAS, Guest(1, GIB)),
    ],
    ids=["all", "a part", "vCPUs only", "not yet", "old grant", "less needs none", "mixed", "not below boot"],
)
def test_as_far_as_it_is_granted(wanted: Guest, granted: Guest | None, aim: Guest) -> None:
    assert aims(vmi(wanted, granted), HAS, HAS, GIB, gate=True) == aim


@pytest.mark.parametrize("wanted", [Guest(4, 4 * GIB), Guest(1, GIB)])
def test_with_the_gate_off_and_on_its_way_out_a_machine_stays_as_it_is(wanted: Guest) -> None:
    claimed = HAS.join(wanted)  # with the grant
    assert aims(vmi(wanted, Guest(4, 4 * GIB)), claimed, HAS, GIB, gate=False) == HAS
    leaving = vmi(wanted, Guest(4, 4 * GIB), deletionTimestamp="2026-01-01T00:00:00Z")
    assert aims(leaving, claimed, HAS, GIB, gate=True) == HAS


def taken_over(plugged: int, parked: int | None, online: int | None = None) -> Observed:
    """A machine of which its guest says this much, or nothing."""
    vcpus = tuple(GuestVcpu(number=n, online=n < (online or 0)) for n in range(plugged))
    return Observed(
        status=Status.PAUSED if online is None else Status.RUNNING,
        vcpus=tuple(Slot(socket=n, core=0, thread=0, plugged=n < plugged) for n in range(8)),
        memory=MemoryView(boot=GIB),
        agent_connected=online is not None,
        guest=None if online is None else GuestView(vcpus=vcpus),
        parked=parked,
    )


@pytest.mark.parametrize(
    ("observed", "told", "used_vcpus"),
    [
        (taken_over(8, None), (8, 7, 7), 7),
        (taken_over(8, None), (8, 0, 7), 7),
        (taken_over(8, None), (8, 8, 8), 8),
        (taken_over(8, None), (4, 3, 3), 7),
        (taken_over(2, None), (4, 4, 4), 2),
        (taken_over(8, None), None, 8),
        (taken_over(8, 0), (8, 7, 7), 8),
        (taken_over(8, 3), (8, 8, 8), 5),
        (taken_over(8, None, online=6), (8, 7, 7), 6),
    ],
    ids=[
        "cannot be asked",
        "could not be asked before either",
        "used all",
        "more was plugged since",
        "less was plugged since",
        "nothing told",
        "booted anew since",
        "said it before",
        "says it now",
    ],
)
def test_what_a_guest_uses_that_was_taken_over(
    observed: Observed, told: tuple[int, int, int] | None, used_vcpus: int
) -> None:
    """What was claimed for it says nothing of that: that may have been raised since."""
    status: dict[str, Any] = {"hotvirt": {"claimed": {"vcpus": 8}}}
    if told is not None:
        plugged, online, sockets = told
        status["hotvirt"]["vcpus"] = {"plugged": plugged, "online": online}
        status["currentCPUTopology"] = {"sockets": sockets, "cores": 1, "threads": 1}
    seen = recalled(observed, codec.convert(status, VMIStatus))
    assert used(seen, unplugs=False).vcpus == reached(seen).vcpus == used_vcpus
    assert used(seen, unplugs=True).vcpus == observed.plugged
