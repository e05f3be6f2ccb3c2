"""What the node agent says of a machine in its VMI's status: pure, from what hypervisor and guest were seen
to say.

The other fields of the status have other writers (see `docs/architecture.md`) and stay as they are.
"""

from __future__ import annotations

from typing import Final

import msgspec

from hotvirt.api.conditions import FALSE, TRUE, Condition, remove, set_condition
from hotvirt.api.kubevirt import (
    CPUTopology,
    GuestOSInfo,
    GuestSize,
    HotvirtMemory,
    HotvirtStatus,
    Machine,
    MemoryStatus,
    NetworkInterfaceStatus,
    Obstacle,
    VCPUs,
    VirtualMachineInstance,
    VMIStatus,
)
from hotvirt.api.quantity import Quantity
from hotvirt.hypervisor.driver import GuestView, Observed, Status
from hotvirt.node.sizes import reached
from hotvirt.plan import machine as plan_machine
from hotvirt.plan.instance import with_phase
from hotvirt.plan.memory import guest_memory
from hotvirt.plan.runstrategy import RUNNING, STARTING_PHASES
from hotvirt.plan.topology import topology

AGENT_CONNECTED: Final = "AgentConnected"
PAUSED: Final = "Paused"
SOFTWARE_EMULATION: Final = "SoftwareEmulation"
LIVE_MIGRATABLE: Final = "LiveMigratable"
RESIZABLE: Final = "Resizable"
STOPPED: Final = frozenset({"NotOnline", "GuestRefused", "HypervisorRefused"})
"""Obstacles in the way of any change, not of this one only."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a machine, with what the agent knows of it."""

    observed: Observed
    accelerator: str
    hypervisor: str
    boot_memory: int
    pod_address: str
    machine: plan_machine.Machine
    claimed: GuestSize | None = None
    obstacles: tuple[Obstacle, ...] = ()
    gate: bool = True


def vmi_status(vmi: VirtualMachineInstance, seen: Seen, now: str) -> VMIStatus:
    """The VMI's status with this agent's part of it brought up to date."""
    status = vmi.status
    if status.phase in STARTING_PHASES:
        status = with_phase(status, RUNNING, now)
    guest = seen.observed.guest
    return msgspec.structs.replace(
        status,
        current_cpu_topology=current_topology(vmi, seen.observed),
        memory=_memory(vmi, seen),
        interfaces=_interfaces(seen),
        guest_os_info=_os_info(guest) if guest is not None else status.guest_os_info,
        machine=Machine(type="q35"),
        conditions=tuple(_conditions(vmi, seen)),
        hotvirt=_hotvirt(status.hotvirt, seen),
    )


def current_topology(vmi: VirtualMachineInstance, observed: Observed) -> CPUTopology:
    """Whole sockets that are plugged and, where the guest can be asked, in use there."""
    shape = topology(vmi.spec.domain)
    sockets = max(1, reached(observed).vcpus // (shape.cores * shape.threads))
    return CPUTopology(sockets=sockets, cores=shape.cores, threads=shape.threads)


def _memory(vmi: VirtualMachineInstance, seen: Seen) -> MemoryStatus:
    wanted = guest_memory(vmi.spec)
    memory = seen.observed.memory
    return msgspec.structs.replace(
        vmi.status.memory or MemoryStatus(),
        guest_at_boot=Quantity.bytes(seen.boot_memory).in_family_of(wanted),
        guest_requested=_as_written(memory.boot + memory.requested, wanted),
        guest_current=_as_written(reached(seen.observed).memory, wanted),
    )


def _as_written(amount: int, wanted: Quantity) -> Quantity:
    """In the words of the spec, where it is that size: people wait for the very text."""
    return wanted if amount == wanted.value else Quantity.bytes(amount).in_family_of(wanted)


def _interfaces(seen: Seen) -> tuple[NetworkInterfaceStatus, ...]:
    guest = seen.observed.guest
    return tuple(
        NetworkInterfaceStatus(
            name=card.name,
            ip_address=seen.pod_address,
            ip_addresses=(seen.pod_address,) if seen.pod_address else (),
            mac=card.mac,
            interface_name=guest.names.get(card.mac, "") if guest else "",
            info_source="domain, guest-agent" if guest and card.mac in guest.names else "domain",
            pod_interface_name="eth0",
            link_state="up",
            queue_count=1,
        )
        for card in seen.machine.interfaces
    )


def _os_info(guest: GuestView) -> GuestOSInfo:
    os = guest.os
    return GuestOSInfo(
        name=os.get("name", ""),
        id=os.get("id", ""),
        version=os.get("version", ""),
        version_id=os.get("version-id", ""),
        pretty_name=os.get("pretty-name", ""),
        kernel_release=os.get("kernel-release", ""),
        kernel_version=os.get("kernel-version", ""),
        machine=os.get("machine", ""),
    )


def _hotvirt(old: HotvirtStatus, seen: Seen) -> HotvirtStatus:
    guest = seen.observed.guest
    return msgspec.structs.replace(
        old,
        requests=(),  # carried out before this look
        claimed=seen.claimed or old.claimed,
        obstacles=seen.obstacles,
        vcpus=VCPUs(plugged=seen.observed.plugged, online=guest.online if guest else 0),
        memory=_hotvirt_memory(seen),
        boot_id=guest.boot_id if guest else old.boot_id,
        accelerator=seen.accelerator,
        hypervisor=seen.hypervisor,
        guest_mem_total=Quantity.bytes(guest.memory_total) if guest and guest.memory_total else None,
    )


def _hotvirt_memory(seen: Seen) -> HotvirtMemory:
    memory = seen.observed.memory
    return HotvirtMemory(
        boot=memory.boot,
        requested=memory.boot + memory.requested,
        plugged=memory.boot + memory.plugged,
        online=memory.boot + memory.online if memory.online is not None else 0,
    )


def _conditions(vmi: VirtualMachineInstance, seen: Seen) -> list[Condition]:
    conditions = list(vmi.status.conditions)
    generation = vmi.metadata.generation or None
    present = [_software_emulation(seen), _live_migratable(), _resizable(vmi, seen)]
    if seen.observed.agent_connected:
        present.append(
            Condition(
                type=AGENT_CONNECTED, status=TRUE, reason="Connected", message="The guest agent answers."
            )
        )
    else:
        conditions = remove(conditions, AGENT_CONNECTED)
    if seen.observed.status is Status.PAUSED:
        present.append(_paused(seen.observed))
    else:
        conditions = remove(conditions, PAUSED)
    for condition in present:
        conditions = set_condition(
            conditions, msgspec.structs.replace(condition, observed_generation=generation)
        )
    return conditions


def _paused(observed: Observed) -> Condition:
    if observed.detail == "io-error":
        return Condition(
            type=PAUSED,
            status=TRUE,
            reason="PausedIOError",
            message="A disk failed or is full: the machine waits. Make room and unpause it.",
        )
    return Condition(type=PAUSED, status=TRUE, reason="PausedByUser", message="VMI was paused by user")


def _software_emulation(seen: Seen) -> Condition:
    if seen.accelerator == "kvm":
        return Condition(
            type=SOFTWARE_EMULATION, status=FALSE, reason="KVM", message="The machine runs with KVM."
        )
    return Condition(
        type=SOFTWARE_EMULATION,
        status=TRUE,
        reason="KVMUnavailable",
        message="The machine runs in software (TCG), more slowly: no guest starts with KVM on this node, or "
        "the Pod was not given /dev/kvm (useEmulation).",
    )


def _live_migratable() -> Condition:
    return Condition(
        type=LIVE_MIGRATABLE,
        status=FALSE,
        reason="NotMigratable",
        message="Hotvirt does not move machines between nodes yet; they change in place.",
    )


def _resizable(vmi: VirtualMachineInstance, seen: Seen) -> Condition:
    """Whether a change of size would reach the guest now, and why not."""
    reasons: list[tuple[str, str]] = []
    observed = seen.observed
    slots = len(observed.vcpus)
    most = Quantity.bytes(observed.memory.boot + observed.memory.region)
    if slots <= 1 and not observed.memory.region:
        reasons.append(("NoHeadroom", "the machine was started with room for nothing more than it has"))
    if not observed.agent_connected:
        reasons.append(("NoGuestAgent", "no guest agent answers, so nobody can say what the guest uses"))
    if observed.status is Status.PAUSED:
        reasons.append(("Paused", "the guest is paused and cannot take anything"))
    if not seen.gate:
        reasons.append(("FeatureGateOff", "the feature gate InPlaceHotplug is off"))
    for obstacle in seen.obstacles:
        if obstacle.reason in STOPPED:
            reasons.append((obstacle.reason, obstacle.message.rstrip(".")))
    if not reasons:
        room = f"up to {slots} vCPUs"
        if observed.memory.region:
            room += f" and {most} of memory while it runs."
        else:
            room += " while it runs; its memory stays as it is: it was started without room for more."
        return Condition(type=RESIZABLE, status=TRUE, reason="Ready", message=f"It can have {room}")
    sentence = "; ".join(text for _, text in reasons)
    return Condition(
        type=RESIZABLE, status=FALSE, reason=reasons[0][0], message=sentence[0].upper() + sentence[1:] + "."
    )
