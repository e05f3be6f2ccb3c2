"""The machine itself: ``spec.domain`` of a VMI, with its CPU, memory, firmware and devices."""

from __future__ import annotations

from typing import Any

from hotvirt.api.meta import Empty, Struct
from hotvirt.api.pods import ResourceRequirements
from hotvirt.api.quantity import Quantity


class CPUFeature(Struct, frozen=True):
    name: str = ""
    policy: str = ""


class CPU(Struct, frozen=True):
    sockets: int = 0
    cores: int = 0
    threads: int = 0
    max_sockets: int = 0
    model: str = ""
    features: tuple[CPUFeature, ...] = ()


class Hugepages(Struct, frozen=True):
    page_size: str = ""


class Memory(Struct, frozen=True):
    guest: Quantity | None = None
    max_guest: Quantity | None = None
    hugepages: Hugepages | None = None


class DomainResources(ResourceRequirements, frozen=True):
    """``domain.resources``: what the user asks for the Pod."""

    overcommit_guest_overhead: bool = False


class DiskTarget(Struct, frozen=True):
    bus: str = ""
    readonly: bool = False


class CDRomTarget(Struct, frozen=True):
    bus: str = ""
    readonly: bool | None = None


class LunTarget(Struct, frozen=True):
    bus: str = ""
    readonly: bool = False


class Disk(Struct, frozen=True):
    name: str = ""
    disk: DiskTarget | None = None
    cdrom: CDRomTarget | None = None
    lun: LunTarget | None = None
    boot_order: int | None = None
    serial: str = ""
    cache: str = ""
    io: str = ""
    shareable: bool | None = None


class Port(Struct, frozen=True):
    port: int = 0
    protocol: str = ""
    name: str = ""


class Interface(Struct, frozen=True):
    name: str = ""
    model: str = ""
    mac_address: str = ""
    boot_order: int | None = None
    ports: tuple[Port, ...] = ()
    masquerade: Empty | None = None
    bridge: Empty | None = None
    passt: Empty | None = None
    sriov: Empty | None = None
    slirp: Empty | None = None
    macvtap: Empty | None = None
    binding: dict[str, Any] | None = None


class Devices(Struct, frozen=True):
    disks: tuple[Disk, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    rng: Empty | None = None
    autoattach_serial_console: bool | None = None
    autoattach_graphics_device: bool | None = None
    autoattach_pod_interface: bool | None = None
    autoattach_mem_balloon: bool | None = None
    log_serial_console: bool | None = None


class Bios(Struct, frozen=True):
    """Boot with BIOS, which is the default."""


class Efi(Struct, frozen=True):
    secure_boot: bool | None = None


class Bootloader(Struct, frozen=True):
    bios: Bios | None = None
    efi: Efi | None = None


class KernelBootContainer(Struct, frozen=True):
    image: str = ""
    image_pull_secret: str = ""
    image_pull_policy: str = ""
    kernel_path: str = ""
    initrd_path: str = ""


class KernelBoot(Struct, frozen=True):
    kernel_args: str = ""
    container: KernelBootContainer | None = None


class Firmware(Struct, frozen=True):
    uuid: str = ""
    serial: str = ""
    bootloader: Bootloader | None = None
    kernel_boot: KernelBoot | None = None


class Machine(Struct, frozen=True):
    type: str = ""


class Domain(Struct, frozen=True):
    cpu: CPU | None = None
    memory: Memory | None = None
    resources: DomainResources | None = None
    devices: Devices = Devices()
    firmware: Firmware | None = None
    machine: Machine | None = None
