"""What the agent says of a machine: asked for, plugged and seen are never mixed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hotvirt.api import codec
from hotvirt.api.conditions import find, is_true
from hotvirt.api.kubevirt import Obstacle, VirtualMachineInstance, VMIStatus
from hotvirt.hypervisor.driver import GuestVcpu, GuestView, MemoryView, Observed, Slot, Status
from hotvirt.node.status import Seen, vmi_status
from hotvirt.plan.machine import machine_for

MIB = 1 << 20
OFFLINE = Obstacle(resource="memory", reason="NotOnline", message="the guest has 1Gi of 2Gi.")
PAUSED = Obstacle(resource="memory", reason="Paused", message="the guest is paused.")
NOW = "2026-01-01T00:00:00Z"


def vmi(sockets: int = 2, cores: int = 1, status: dict[str, Any] | None = None) -> VirtualMachineInstance:
    domain = {"cpu": {"sockets": sockets, "cores": cores, "maxSockets": 4}, "memory": {"guest": "1Gi"}}
    return codec.convert(
        {
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u", "generation": 7},
            "spec": {"domain": domain},
            "status": {"phase": "Scheduled", **(status or {})},
        },
        VirtualMachineInstance,
    )


def observed(plugged: int, online: int | None, total: int = 4, **changes: Any) -> Observed:
    guest = None
    if online is not None:
        vcpus = tuple(GuestVcpu(number=n, online=n < online) for n in range(plugged))
        guest = GuestView(vcpus=vcpus, boot_id="boot", memory_total=900 * MIB, os={"id": "debian"})
    seen = Observed(
        status=Status.RUNNING,
        vcpus=tuple(Slot(socket=n, core=0, thread=0, plugged=n < plugged) for n in range(total)),
        memory=MemoryView(boot=1024 * MIB),
        agent_connected=guest is not None,
        guest=guest,
    )
    return msgspec.structs.replace(seen, **changes)


def status(of: VirtualMachineInstance, seen: Observed, accelerator: str = "tcg", **changes: Any) -> VMIStatus:
    return vmi_status(
        of,
        Seen(
            observed=seen,
            accelerator=accelerator,
            hypervisor="QEMU 7.2.22",
            boot_memory=1024 * MIB,
            pod_address="10.1.2.3",
            machine=machine_for(of),
            **changes,
        ),
        NOW,
    )


def test_a_machine_that_runs() -> None:
    found = status(vmi(), observed(2, 2))
    assert found.phase == "Running"
    assert found.phase_transition_timestamps[-1].phase == "Running"
    assert found.current_cpu_topology is not None and found.current_cpu_topology.sockets == 2
    assert found.memory is not None
    assert [str(q) for q in (found.memory.guest_at_boot, found.memory.guest_current)] == ["1Gi", "1Gi"]
    assert found.interfaces[0].ip_address == "10.1.2.3"
    assert (found.hotvirt.boot_id, found.hotvirt.accelerator) == ("boot", "tcg")
    assert is_true(found.conditions, "AgentConnected") and is_true(found.conditions, "SoftwareEmulation")
    assert is_true(found.conditions, "Resizable")
    assert find(found.conditions, "Paused") is None
    assert all(condition.observed_generation == 7 for condition in found.conditions)


def test_what_the_guest_does_not_use_does_not_count() -> None:
    found = status(vmi(sockets=4), observed(4, 2))
    assert found.current_cpu_topology is not None and found.current_cpu_topology.sockets == 2
    assert found.hotvirt.vcpus is not None
    assert (found.hotvirt.vcpus.plugged, found.hotvirt.vcpus.online) == (4, 2)


def test_half_a_socket_is_no_socket() -> None:
    found = status(vmi(sockets=2, cores=2), observed(4, 3))
    assert found.current_cpu_topology is not None and found.current_cpu_topology.sockets == 1


def test_without_an_agent_plugged_is_known_and_online_is_not() -> None:
    found = status(vmi(sockets=2), observed(2, None))
    assert found.current_cpu_topology is not None and found.current_cpu_topology.sockets == 2
    assert codec.builtins(found.hotvirt.vcpus) == {"plugged": 2}
    assert find(found.conditions, "AgentConnected") is None
    resizable = find(found.conditions, "Resizable")
    assert resizable is not None and (resizable.status, resizable.reason) == ("False", "NoGuestAgent")


def test_no_room_is_a_reason() -> None:
    resizable = find(status(vmi(sockets=1), observed(1, 1, total=1)).conditions, "Resizable")
    assert resizable is not None and (resizable.status, resizable.reason) == ("False", "NoHeadroom")


def test_vcpus_that_were_parked_stay_so_when_the_agent_goes() -> None:
    found = status(vmi(sockets=1), observed(4, None, parked=3))
    assert found.current_cpu_topology is not None and found.current_cpu_topology.sockets == 1
    assert codec.builtins(found.hotvirt.vcpus) == {"plugged": 4}


@pytest.mark.parametrize(
    ("changes", "reason", "said"),
    [
        ({"gate": False}, "FeatureGateOff", "The feature gate InPlaceHotplug is off."),
        ({"obstacles": (OFFLINE,)}, "NotOnline", "The guest has 1Gi of 2Gi."),
        ({"obstacles": (PAUSED,)}, "Ready", "up to 4 vCPUs"),
        ({}, "Ready", "its memory stays as it is"),
    ],
)
def test_who_would_not_take_a_change(changes: dict[str, Any], reason: str, said: str) -> None:
    resizable = find(status(vmi(), observed(2, 2), **changes).conditions, "Resizable")
    assert resizable is not None and resizable.reason == reason and said in resizable.message


def test_the_room_is_told() -> None:
    memory = MemoryView(boot=1024 * MIB, region=3072 * MIB, online=0)
    resizable = find(status(vmi(), observed(2, 2, memory=memory)).conditions, "Resizable")
    assert resizable is not None and "4 vCPUs and 4Gi" in resizable.message


def test_memory_counts_when_the_guest_has_it_online() -> None:
    memory = MemoryView(
        boot=1024 * MIB, region=3072 * MIB, requested=1024 * MIB, plugged=1024 * MIB, online=256 * MIB
    )
    found = status(vmi(), observed(2, 2, memory=memory))
    assert found.memory is not None and found.hotvirt.memory is not None
    assert (str(found.memory.guest_requested), str(found.memory.guest_current)) == ("2Gi", "1280Mi")
    assert found.hotvirt.memory.plugged == 2048 * MIB


def test_conditions_go_with_their_causes_and_those_of_others_stay() -> None:
    old = status(vmi(), observed(2, 2, status=Status.PAUSED))
    assert is_true(old.conditions, "Paused")
    others = {"conditions": [{"type": "HotVCPUChange", "status": "True"}, *codec.builtins(old)["conditions"]]}
    new = status(vmi(status=others), observed(2, None))
    assert find(new.conditions, "Paused") is None
    assert find(new.conditions, "AgentConnected") is None
    assert is_true(new.conditions, "HotVCPUChange")


def test_the_same_look_twice_is_the_same_status() -> None:
    first = status(vmi(), observed(2, 2))
    again = status(vmi(status=codec.builtins(first)), observed(2, 2))
    assert codec.builtins(again) == codec.builtins(first)


def test_kvm_is_not_emulation_and_requests_that_are_done_go() -> None:
    wish = {"hotvirt": {"requests": [{"action": "Pause", "id": "1"}]}}
    found = status(vmi(status=wish), observed(2, 2), accelerator="kvm")
    emulation = find(found.conditions, "SoftwareEmulation")
    assert emulation is not None and emulation.status == "False"
    assert found.hotvirt.requests == ()


def test_a_guest_that_lost_its_agent_keeps_what_it_last_said_of_its_system() -> None:
    first = status(vmi(), observed(2, 2))
    later = status(vmi(status=codec.builtins(first)), observed(2, None))
    assert later.guest_os_info.id == "debian" and later.hotvirt.boot_id == "boot"
