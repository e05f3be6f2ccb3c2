"""Memory of a machine: what the guest gets, and what the machine needs beside it."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal
from typing import Final, Literal

from hotvirt.api.kubevirt import VMISpec
from hotvirt.api.quantity import Quantity
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.topology import topology

Accelerator = Literal["kvm", "tcg"]

MIB: Final = 1 << 20
GIB: Final = 1 << 30

# The overhead of one machine, in bytes. Measured with QEMU 7.2 as the resident memory beside the guest's
# own after a boot, plus room for what I/O adds; `docs/sizes.md` has the figures.
BASE: Final = 80 * MIB  # the hypervisor: about 50 MiB with an idle guest
HELPERS: Final = 16 * MIB  # the process that presses the power button: 12 MiB
PER_VCPU: Final = 2 * MIB  # for each vCPU that may ever be plugged
PER_DEVICE: Final = 1 * MIB  # queues and buffers of a disk or a network card
GRAPHICS: Final = 16 * MIB  # video memory
EFI: Final = 16 * MIB  # flash images
TRANSLATION_BUFFER: Final = 64 * MIB  # TCG's, bounded on the command line to this size; a boot fills it
PAGE_TABLE_SHARE: Final = 512  # 8 bytes of page table for each page of 4096 bytes

ALIGNMENT: Final = 2 * MIB
HUGE_ALIGNMENT: Final = GIB


def guest_memory(spec: VMISpec) -> Quantity:
    """What the guest sees: memory.guest, else the memory requested, else its limit, else one huge page.

    Zero when the manifest says none of these; such a manifest is refused at admission.
    """
    memory, resources = spec.domain.memory, spec.domain.resources
    if memory and memory.guest:
        return memory.guest
    if resources:
        amount = resources.requests.get("memory") or resources.limits.get("memory")
        if amount:
            return amount
    if memory and memory.hugepages and not Quantity.parse_error(memory.hugepages.page_size):
        return Quantity(memory.hugepages.page_size)
    return Quantity(0)


def alignment(spec: VMISpec) -> int:
    """The memory sizes that can be plugged are multiples of this many bytes."""
    memory = spec.domain.memory
    if memory and memory.hugepages and memory.hugepages.page_size == "1Gi":
        return HUGE_ALIGNMENT
    return ALIGNMENT


def overhead(
    spec: VMISpec, config: ClusterConfig | None = None, accelerator: Accelerator | None = None
) -> Quantity:
    """What the machine needs beside the guest's memory: the one formula.

    It counts the vCPUs that may ever be plugged, so that it stays the same while vCPUs come and go.
    Which accelerator a node has is known only when the Pod is there: until then the translation buffer
    is counted.
    """
    domain = spec.domain
    shape = topology(domain)
    sockets = max(shape.sockets, domain.cpu.max_sockets if domain.cpu else 0)
    vcpus = sockets * shape.cores * shape.threads
    total = BASE + HELPERS + vcpus * PER_VCPU
    total += PER_DEVICE * (len(spec.volumes) + len(domain.devices.interfaces))
    total += -(-guest_memory(spec).value // PAGE_TABLE_SHARE)
    if domain.devices.autoattach_graphics_device is not False:
        total += GRAPHICS
    if domain.firmware and domain.firmware.bootloader and domain.firmware.bootloader.efi:
        total += EFI
    if accelerator != "kvm":
        total += TRANSLATION_BUFFER
    ratio = config.overhead_ratio if config else Decimal(1)
    return Quantity.bytes(int((total * ratio).to_integral_value(ROUND_CEILING)))
