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

LARGEST_GUEST: Final = Quantity.bytes(16 * 1024 * GIB)
ALIGNMENT: Final = 2 * MIB
HUGE_ALIGNMENT: Final = GIB

# Linux adds memory in blocks of this size: a smaller rest at the end of a region is never brought online.
MEMORY_BLOCK: Final = 128 * MIB
# What is plugged is movable: programs can use it, but the guest's kernel keeps its own things (16 MiB for
# each plugged GiB, page tables, caches of inodes and network buffers) in the memory it booted with. With
# more than this many times the boot memory the kernel starves while most of the memory is free.
MOVABLE_PER_BOOT: Final = 7


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


def boot_memory(guest: int, least: str | None) -> int:
    """Bytes that are ordinary RAM in a machine that starts with a guest of this size.

    `least` is the annotation hotvirt.io/min-guest: then only that much is, in whole blocks, and the rest is
    plugged at start, so that it can be taken away.
    """
    if not least or Quantity.parse_error(least):
        return guest
    return min(guest, -(-Quantity(least).value // MEMORY_BLOCK) * MEMORY_BLOCK)


def most_with(boot: int) -> int:
    """Bytes that a guest with this much boot memory may have in all."""
    return boot * (1 + MOVABLE_PER_BOOT)


def boot_for(guest: int) -> int:
    """The least boot memory, in whole blocks, with which a guest may have this size."""
    least = -(-guest // (1 + MOVABLE_PER_BOOT))
    return -(-least // MEMORY_BLOCK) * MEMORY_BLOCK


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
