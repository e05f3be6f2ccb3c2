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
    HotvirtStatus,
    Machine,
    MemoryStatus,
    NetworkInterfaceStatus,
    VCPUs,
    VirtualMachineInstance,
    VMIStatus,
)
from hotvirt.api.quantity import Quantity
from hotvirt.hypervisor.driver import GuestView, Observed, Status
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


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a machine, with what the agent knows of it."""

    observed: Observed
    accelerator: str
    hypervisor: str
    boot_memory: int
    pod_address: str
    machine: plan_machine.Machine


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
    vcpus = observed.plugged
    if observed.guest is not None and observed.guest.vcpus:
        vcpus = min(vcpus, observed.guest.online)
    sockets = max(1, vcpus // (shape.cores * shape.threads))
    return CPUTopology(sockets=sockets, cores=shape.cores, threads=shape.threads)


def _memory(vmi: VirtualMachineInstance, seen: Seen) -> MemoryStatus:
    wanted = guest_memory(vmi.spec)
    memory = seen.observed.memory
    return msgspec.structs.replace(
        vmi.status.memory or MemoryStatus(),
        guest_at_boot=Quantity.bytes(seen.boot_memory).in_family_of(wanted),
        guest_requested=wanted,
        guest_current=Quantity.bytes(memory.boot + memory.plugged).in_family_of(wanted),
    )


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
        vcpus=VCPUs(plugged=seen.observed.plugged, online=guest.online if guest else 0),
        boot_id=guest.boot_id if guest else old.boot_id,
        accelerator=seen.accelerator,
        hypervisor=seen.hypervisor,
        guest_mem_total=Quantity.bytes(guest.memory_total) if guest and guest.memory_total else None,
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
        message="No guest starts with KVM on this node: the machine runs in software (TCG), more slowly.",
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
    slots = len(seen.observed.vcpus)
    if slots <= topology(vmi.spec.domain).vcpus:
        reasons.append(("NoFreeSockets", f"the machine has room for {slots} vCPUs, all given"))
    if not seen.observed.agent_connected:
        reasons.append(
            (
                "NoGuestAgent",
                "no guest agent answers, so nobody can say what the guest uses",
            )
        )
    if seen.observed.status is Status.PAUSED:
        reasons.append(("Paused", "the guest is paused and cannot take anything"))
    if not reasons:
        return Condition(
            type=RESIZABLE,
            status=TRUE,
            reason="Ready",
            message=f"Up to {slots} vCPUs can be given while the guest runs.",
        )
    sentence = "; ".join(text for _, text in reasons)
    return Condition(
        type=RESIZABLE, status=FALSE, reason=reasons[0][0], message=sentence[0].upper() + sentence[1:] + "."
    )
