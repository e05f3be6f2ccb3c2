"""Checks of a machine's size and firmware: CPU, memory, resources, kernel, boot loader."""

from __future__ import annotations

import uuid
from typing import Any, Final

from hotvirt.api.domain import Domain, Firmware
from hotvirt.api.kubevirt import VMISpec
from hotvirt.api.quantity import Quantity
from hotvirt.plan.causes import Causes
from hotvirt.plan.memory import (
    LARGEST_GUEST,
    MIB,
    MOVABLE_PER_BOOT,
    alignment,
    boot_for,
    boot_memory,
    guest_memory,
    most_with,
)
from hotvirt.plan.topology import MOST_VCPUS, topology

SMALLEST_GUEST: Final = Quantity.bytes(16 * MIB)
PAGE_SIZES: Final = ("2Mi", "1Gi")
POLICIES: Final = ("force", "require", "optional", "disable", "forbid")
ARCHITECTURES: Final = ("amd64", "arm64")
_NONE: Final = Quantity(0)


def check_cpu(causes: Causes, raw: dict[str, Any], domain: Domain, path: str) -> None:
    """`raw` is the domain as it was written: there a zero can be told from what was left out."""
    here = f"{path}.cpu"
    written = raw.get("cpu") or {}
    whole = True
    for name in ("sockets", "cores", "threads", "maxSockets"):
        value = written.get(name)
        if value is not None and value < 1:
            causes.invalid(
                f"{here}.{name}", f"{value} is too few: it must be at least 1; leave it out for the default"
            )
            whole = False
    if not whole:
        return
    shape = topology(domain)
    most = domain.cpu.max_sockets if domain.cpu else 0
    if shape.vcpus > MOST_VCPUS:
        causes.invalid(
            here, f"{shape} sockets × cores × threads are {shape.vcpus} vCPUs; {MOST_VCPUS} are possible"
        )
    if most and shape.sockets > most:
        causes.invalid(
            f"{here}.sockets",
            f"{shape.sockets} sockets are more than maxSockets ({most}): raise maxSockets too",
        )
    elif most * shape.cores * shape.threads > MOST_VCPUS >= shape.vcpus:
        causes.invalid(
            f"{here}.maxSockets",
            f"{most} sockets would be {most * shape.cores * shape.threads} vCPUs; {MOST_VCPUS} are possible",
        )
    for index, feature in enumerate(domain.cpu.features if domain.cpu else ()):
        if not feature.name:
            causes.required(f"{here}.features[{index}].name", "a CPU feature needs a name")
        causes.one_of(f"{here}.features[{index}].policy", feature.policy, POLICIES)


def check_memory(causes: Causes, spec: VMISpec, path: str, instancetype: str | None = None) -> None:
    memory = spec.domain.memory
    here = f"{path}.memory"
    written = memory.guest if memory else None
    guest = written if written is not None else guest_memory(spec)
    given = f"{here}.guest"
    if not guest and written is None:
        hint = "set it, like 1Gi"
        if instancetype:
            hint = f"Hotvirt does not read the instance type {instancetype!r} yet: set it here, like 1Gi"
        causes.required(given, f"the machine has no memory size: {hint}")
    elif guest < SMALLEST_GUEST:
        causes.invalid(given, f"{guest} is too little: a guest needs at least {SMALLEST_GUEST}")
    elif guest > LARGEST_GUEST:
        causes.invalid(given, f"{guest} is too much: {LARGEST_GUEST} are possible")
    if memory is None:
        return
    if memory.max_guest is not None:
        if memory.max_guest <= _NONE or memory.max_guest > LARGEST_GUEST:
            causes.invalid(
                f"{here}.maxGuest", f"{memory.max_guest} is not between {SMALLEST_GUEST} and {LARGEST_GUEST}"
            )
        elif guest > memory.max_guest:
            causes.invalid(given, f"{guest} is more than maxGuest ({memory.max_guest}): raise maxGuest too")
        check_alignment(causes, f"{here}.maxGuest", memory.max_guest, alignment(spec))
    if memory.hugepages:
        _check_hugepages(causes, memory.hugepages.page_size, guest, here)
    elif memory.max_guest is not None:
        # It is to change while it runs; otherwise any size will do to start with.
        check_alignment(causes, given, guest, alignment(spec))


def check_alignment(causes: Causes, field: str, size: Quantity, step: int) -> None:
    """A size that a running machine can have is a multiple of the step."""
    if size <= _NONE or not size.value % step:
        return
    below, above = size.value // step * step, -(-size.value // step) * step
    near = " or ".join(str(Quantity.bytes(each)) for each in (below, above) if each)
    causes.invalid(field, f"{size} is not a multiple of {Quantity.bytes(step)}: use {near}")


def _check_hugepages(causes: Causes, page_size: str, guest: Quantity, here: str) -> None:
    field = f"{here}.hugepages.pageSize"
    if page_size not in PAGE_SIZES:
        causes.unsupported(field, f"{page_size!r} is not known: use {' or '.join(PAGE_SIZES)}")
    elif guest.value % Quantity(page_size).value:
        causes.invalid(f"{here}.guest", f"{guest} is not a multiple of the page size {page_size}")


def check_min_guest(causes: Causes, text: str, spec: VMISpec, field: str) -> None:
    """The annotation that says how small the guest may become."""
    error = Quantity.parse_error(text)
    if error:
        causes.invalid(field, error)
        return
    least, guest = Quantity(text), guest_memory(spec)
    boot = boot_memory(guest.value, text)
    if least < SMALLEST_GUEST:
        causes.invalid(field, f"{least} is too little: a guest needs at least {SMALLEST_GUEST}")
    elif least > guest:
        causes.invalid(field, f"{least} is more than the guest's memory ({guest})")
    elif guest.value > most_with(boot):
        needed = Quantity.bytes(boot_for(guest.value))
        causes.invalid(
            field,
            f"{least} is too little for a guest of {guest}, of which {MOVABLE_PER_BOOT} times that may be "
            f"plugged: it needs at least {needed}",
        )
    else:
        check_alignment(causes, field, least, alignment(spec))


def check_resources(causes: Causes, spec: VMISpec, path: str) -> None:
    resources = spec.domain.resources
    if resources is None:
        return
    here = f"{path}.resources"
    for part, amounts in (("requests", resources.requests), ("limits", resources.limits)):
        for name, amount in amounts.items():
            if amount < _NONE:
                causes.invalid(f"{here}.{part}.{name}", f"{amount} is negative")
    for name, request in resources.requests.items():
        limit = resources.limits.get(name)
        if limit is not None and request > limit:
            causes.invalid(f"{here}.requests.{name}", f"{request} is more than its limit ({limit})")


def check_firmware(causes: Causes, firmware: Firmware | None, path: str) -> None:
    if firmware is None:
        return
    here = f"{path}.firmware"
    if firmware.uuid:
        try:
            uuid.UUID(firmware.uuid)
        except ValueError:
            causes.invalid(f"{here}.uuid", f"{firmware.uuid!r} is not a UUID")
    if firmware.bootloader and firmware.bootloader.bios and firmware.bootloader.efi:
        causes.forbidden(f"{here}.bootloader", "set bios or efi, not both")
    boot = firmware.kernel_boot
    if boot is None:
        return
    container = f"{here}.kernelBoot.container"
    if boot.container is None:
        causes.required(container, "kernelBoot needs the image that holds the kernel")
        return
    if not boot.container.image:
        causes.required(f"{container}.image", "name the image that holds the kernel")
    if not boot.container.kernel_path:
        causes.required(f"{container}.kernelPath", "name the kernel's path in the image, like /boot/vmlinuz")
    for name, inside in (
        ("kernelPath", boot.container.kernel_path),
        ("initrdPath", boot.container.initrd_path),
    ):
        check_image_path(causes, f"{container}.{name}", inside)


def check_image_path(causes: Causes, field: str, inside: str) -> None:
    """A path in an image starts at its root and stays in it."""
    if inside and (not inside.startswith("/") or ".." in inside.split("/")):
        causes.invalid(field, f"{inside!r} must be a full path in the image, without '..'")


def check_machine_type(causes: Causes, domain: Domain, architecture: str, path: str) -> None:
    kind = domain.machine.type if domain.machine else ""
    if architecture == "arm64":
        causes.one_of(f"{path}.machine.type", kind, ("virt",))
    elif kind and kind != "q35" and not kind.startswith("pc-q35-"):
        causes.unsupported(f"{path}.machine.type", f"{kind!r} is not known: use q35, or leave it out")
