"""Why a size cannot change while the machine runs: one sentence for each reason, or None."""

from __future__ import annotations

from hotvirt.api import names
from hotvirt.api.kubevirt import VirtualMachineInstance, VMISpec, VMITemplate
from hotvirt.api.quantity import Quantity
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.memory import MOVABLE_PER_BOOT, alignment, boot_memory, guest_memory, most_with
from hotvirt.plan.topology import topology


def rollout_obstacle(config: ClusterConfig) -> str | None:
    """What the cluster's settings hold back."""
    if config.stages:
        return "vmRolloutStrategy is Stage"
    if not config.gate(names.GATE_IN_PLACE_HOTPLUG):
        return f"the feature gate {names.GATE_IN_PLACE_HOTPLUG} is off"
    return None


def cpu_obstacle(vmi: VirtualMachineInstance, sockets: int, config: ClusterConfig) -> str | None:
    """Why the machine cannot have so many sockets while it runs."""
    cpu = vmi.spec.domain.cpu
    most = max(cpu.max_sockets if cpu else 0, topology(vmi.spec.domain).sockets)
    if found := rollout_obstacle(config):
        return found
    if vmi.spec.architecture == "arm64":
        return "arm64 machines cannot be given vCPUs while they run, or lose them"
    if sockets > most:
        return f"the running machine has room for {most} sockets (its maxSockets)"
    return None


def memory_obstacle(
    vmi: VirtualMachineInstance,
    wanted: Quantity,
    config: ClusterConfig,
    template: VMITemplate,
    baseline: VMISpec | None = None,
) -> str | None:
    """Why the guest cannot have so much memory while it runs."""
    if found := rollout_obstacle(config):
        return found
    memory = vmi.spec.domain.memory
    if memory and memory.hugepages:
        return "huge pages of a Pod cannot change in place"
    boot, step = Quantity.bytes(boot_of(vmi, baseline)), alignment(vmi.spec)
    if wanted < boot:
        return _below_boot(boot, wanted, template)
    most = memory.max_guest if memory else None
    if not most and wanted > boot:
        return "the machine was started without room for more: set domain.memory.maxGuest"
    if most and wanted > max(most, boot):
        return f"the running machine has room for {most} (its maxGuest)"
    if wanted.value > most_with(boot.value):
        return (
            f"more than {Quantity.bytes(most_with(boot.value))} is too much for a guest that booted with "
            f"{boot}: what is plugged may be {MOVABLE_PER_BOOT} times that"
        )
    if (wanted.value - boot.value) % step:
        return f"a machine that booted with {boot} changes in steps of {Quantity.bytes(step)}"
    return None


def boot_of(vmi: VirtualMachineInstance, baseline: VMISpec | None = None) -> int:
    """Bytes that the machine has as ordinary RAM, which cannot be taken away."""
    figures, memory = vmi.status.hotvirt.memory, vmi.status.memory
    if figures and figures.boot:
        return figures.boot
    guest = memory.guest_at_boot if memory else None
    if not guest:
        guest = guest_memory(baseline if baseline is not None else vmi.spec)
    return boot_memory(guest.value, vmi.metadata.annotations.get(names.ANNOTATION_MIN_GUEST))


def _below_boot(boot: Quantity, wanted: Quantity, template: VMITemplate) -> str:
    said, mark = f"the machine booted with {boot}, which stays", names.ANNOTATION_MIN_GUEST
    least = template.metadata.annotations.get(mark)
    if least and not Quantity.parse_error(least) and Quantity(least) <= wanted:
        return f"{said} (the annotation {mark} counts from the next start)"
    return f"{said} (with the annotation {mark}: {wanted} on the template it could shrink live)"
