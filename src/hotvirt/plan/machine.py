"""One machine, described without a hypervisor: what the launcher starts and what a restarted node agent adopts.

The field names here are the JSON's (no renaming, nothing omitted), because the launcher reads the JSON with the
standard library alone (it must start in milliseconds) and finds every field as an attribute, as on these types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from hotvirt.api.kubevirt import VirtualMachineInstance

MIB = 1 << 20
# Linux adds memory in blocks of 128 MiB: a smaller rest at the end of the region could never be brought online.
MEMORY_BLOCK = 128 * MIB

DiskKind = Literal["disk", "cdrom", "lun"]
Bus = Literal["virtio", "scsi", "sata"]
SourceKind = Literal["containerDisk", "claim", "emptyDisk", "cloudInit"]


class MachineError(ValueError):
    """This VMI cannot be built as a machine; the message says what to change."""


class _Part(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A part of a machine."""


class CpuFeature(_Part, frozen=True):
    name: str
    policy: str = "require"


class Cpu(_Part, frozen=True):
    sockets: int = 1
    cores: int = 1
    threads: int = 1
    max_sockets: int = 1
    model: str = "host-model"
    features: tuple[CpuFeature, ...] = ()


class Memory(_Part, frozen=True):
    """Bytes. `boot` is ordinary RAM; `region` is what can be plugged later, of which `plugged` is asked for at start."""

    boot: int
    region: int = 0
    plugged: int = 0
    hugepages: int = 0  # the page size


class Source(_Part, frozen=True):
    """Where a disk's bytes come from; which fields count depends on `kind`."""

    kind: SourceKind
    volume: str
    path: str = ""  # containerDisk: a file in the image other than the only one in disk/
    capacity: int = 0  # emptyDisk
    user_data: str = ""
    network_data: str = ""
    user_data_secret: bool = False
    network_data_secret: bool = False


class Disk(_Part, frozen=True):
    name: str
    kind: DiskKind = "disk"
    bus: Bus = "virtio"
    source: Source | None = None  # an empty CD-ROM drive has none
    boot_order: int = 0
    serial: str = ""
    cache: str = ""
    io: str = ""
    readonly: bool = False
    shareable: bool = False


class Port(_Part, frozen=True):
    port: int
    protocol: str = "TCP"


class Interface(_Part, frozen=True):
    """A network card on the Pod's network. No ports named means every port is forwarded."""

    name: str
    mac: str
    model: str = "virtio"
    ports: tuple[Port, ...] = ()
    boot_order: int = 0


class Kernel(_Part, frozen=True):
    kernel_path: str = ""
    initrd_path: str = ""
    args: str = ""


class Firmware(_Part, frozen=True):
    kind: Literal["bios", "efi"] = "bios"
    secure_boot: bool = False
    serial: str = ""


class Machine(_Part, frozen=True):
    name: str
    namespace: str
    hostname: str
    uuid: str
    cpu: Cpu
    memory: Memory
    disks: tuple[Disk, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    kernel: Kernel | None = None
    firmware: Firmware = Firmware()
    graphics: bool = True
    serial_console: bool = True
    rng: bool = True
    balloon: bool = True


def to_json(machine: Machine) -> str:
    return msgspec.json.encode(machine).decode()


def from_json(text: str | bytes) -> Machine:
    return msgspec.json.decode(text, type=Machine)
