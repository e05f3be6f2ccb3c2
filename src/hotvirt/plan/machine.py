"""One machine, described without a hypervisor: what the launcher starts and what a restarted node agent
adopts.

The field names here are the JSON's (no renaming, nothing omitted), because the launcher reads the JSON with
the standard library alone (it must start in milliseconds) and finds every field as an attribute, as on
these types.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from typing import Final, Literal

import msgspec

from hotvirt.api import kubevirt as api
from hotvirt.api import names
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.api.quantity import Quantity
from hotvirt.plan.memory import MEMORY_BLOCK, boot_memory, guest_memory
from hotvirt.plan.topology import topology

_UUID_NAMESPACE = uuid.UUID("4f1d4a52-3f0f-5d4e-9f7b-3a4c0a6f7f10")

DiskKind = Literal["disk", "cdrom", "lun"]
Bus = Literal["virtio", "scsi", "sata"]
SourceKind = Literal["containerDisk", "claim", "emptyDisk", "cloudInit"]


MACHINES: Final = "amd64"
"""The architecture of the machines that the drivers start."""


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
    """Bytes. `boot` is ordinary RAM; `region` is what can be plugged later, of which `plugged` is asked for
    at start.
    """

    boot: int
    region: int = 0
    plugged: int = 0
    hugepages: int = 0  # the page size


class Source(_Part, frozen=True):
    """Where a disk's bytes come from; which fields count depends on `kind`."""

    kind: SourceKind
    volume: str
    readonly: bool = False  # the claim may only be read
    path: str = ""  # containerDisk: a file in the image other than the only one in disk/
    capacity: int = 0  # emptyDisk
    user_data: str = ""
    user_data_base64: str = ""  # may be binary: gzip
    network_data: str = ""
    network_data_base64: str = ""
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
    paused: bool = False


def to_json(machine: Machine) -> str:
    """For an environment variable of a Pod: Kubernetes would expand a dollar sign in it."""
    return msgspec.json.encode(machine).decode().replace("$", "\\u0024")


def from_json(text: str | bytes) -> Machine:
    return msgspec.json.decode(text, type=Machine)


def machine_for(vmi: VirtualMachineInstance) -> Machine:
    """The machine that a VMI asks for. Raises MachineError for what no machine can be built of."""
    spec = vmi.spec
    if spec.architecture not in ("", MACHINES):
        raise MachineError(
            f"this release of Hotvirt starts {MACHINES} machines only, not {spec.architecture}"
        )
    firmware = spec.domain.firmware or api.Firmware()
    devices = spec.domain.devices
    return Machine(
        name=vmi.metadata.name,
        namespace=vmi.metadata.namespace,
        hostname=_hostname(vmi),
        uuid=_uuid(vmi, firmware),
        cpu=_cpu(spec),
        memory=_memory(vmi),
        disks=_disks(spec),
        interfaces=_interfaces(vmi),
        kernel=_kernel(firmware),
        firmware=_firmware(firmware),
        graphics=devices.autoattach_graphics_device is not False,
        serial_console=devices.autoattach_serial_console is not False,
        balloon=devices.autoattach_mem_balloon is not False,
        paused=spec.start_strategy == "Paused",
    )


def _hostname(vmi: VirtualMachineInstance) -> str:
    return (vmi.spec.hostname or vmi.metadata.name).split(".")[0][:63].rstrip("-")


def _uuid(vmi: VirtualMachineInstance, firmware: api.Firmware) -> str:
    """The same machine keeps its UUID over restarts: guests and licences hang on it."""
    if not firmware.uuid:
        return str(uuid.uuid5(_UUID_NAMESPACE, f"{vmi.metadata.namespace}/{vmi.metadata.name}"))
    try:
        return str(uuid.UUID(firmware.uuid))
    except ValueError:
        raise MachineError(f"spec.domain.firmware.uuid: {firmware.uuid!r} is not a UUID") from None


def _cpu(spec: api.VMISpec) -> Cpu:
    shape = topology(spec.domain)
    cpu = spec.domain.cpu or api.CPU()
    return Cpu(
        sockets=shape.sockets,
        cores=shape.cores,
        threads=shape.threads,
        max_sockets=max(cpu.max_sockets, shape.sockets),
        model=cpu.model or "host-model",
        features=tuple(CpuFeature(name=f.name, policy=f.policy or "require") for f in cpu.features),
    )


def _memory(vmi: VirtualMachineInstance) -> Memory:
    memory = vmi.spec.domain.memory or api.Memory()
    guest = guest_memory(vmi.spec).value
    most = max(guest, memory.max_guest.value if memory.max_guest else 0)
    boot = boot_memory(guest, vmi.metadata.annotations.get(names.ANNOTATION_MIN_GUEST))
    return Memory(
        boot=boot,
        region=_aligned(most - boot),
        plugged=guest - boot,
        hugepages=Quantity(memory.hugepages.page_size).value
        if memory.hugepages and memory.hugepages.page_size
        else 0,
    )


def _aligned(size: int) -> int:
    return -(-size // MEMORY_BLOCK) * MEMORY_BLOCK


def _kernel(firmware: api.Firmware) -> Kernel | None:
    boot = firmware.kernel_boot
    if boot is None or boot.container is None:
        return None
    if not boot.container.kernel_path:
        raise MachineError(
            "spec.domain.firmware.kernelBoot.container.kernelPath: name the kernel in the image"
        )
    return Kernel(
        kernel_path=boot.container.kernel_path, initrd_path=boot.container.initrd_path, args=boot.kernel_args
    )


def _firmware(firmware: api.Firmware) -> Firmware:
    efi = firmware.bootloader.efi if firmware.bootloader else None
    if efi is None:
        return Firmware(serial=firmware.serial)
    # As KubeVirt: EFI means secure boot unless it is switched off.
    return Firmware(kind="efi", secure_boot=efi.secure_boot is not False, serial=firmware.serial)


def _disks(spec: api.VMISpec) -> tuple[Disk, ...]:
    sources = {volume.name: _source(volume) for volume in spec.volumes}
    built = [_disk(disk, sources.get(disk.name)) for disk in spec.domain.devices.disks]
    have = {disk.name for disk in built}
    # A volume without a disk gets one, as in KubeVirt.
    built += [Disk(name=name, source=source) for name, source in sources.items() if name not in have]
    return tuple(built)


def _disk(disk: api.Disk, source: Source | None) -> Disk:
    kind: DiskKind = "cdrom" if disk.cdrom is not None else "lun" if disk.lun is not None else "disk"
    target = disk.cdrom or disk.lun or disk.disk or api.DiskTarget()
    bus = target.bus or {"disk": "virtio", "cdrom": "sata", "lun": "scsi"}[kind]
    if bus not in ("virtio", "scsi", "sata"):
        raise MachineError(f"disk {disk.name}: the bus {bus!r} is not known: use virtio, scsi or sata")
    if kind != "disk" and bus == "virtio":
        raise MachineError(f"disk {disk.name}: a {kind} cannot be on the bus virtio: use scsi or sata")
    if kind != "cdrom" and source is None:
        raise MachineError(f"disk {disk.name} has no volume of that name: only a CD-ROM drive may be empty")
    return Disk(
        name=disk.name,
        kind=kind,
        bus=msgspec.convert(bus, Bus),
        source=source,
        boot_order=disk.boot_order or 0,
        serial=disk.serial,
        cache=disk.cache,
        io=disk.io,
        readonly=bool(target.readonly),
        shareable=bool(disk.shareable),
    )


def _source(volume: api.Volume) -> Source:
    name = volume.name
    if volume.container_disk:
        return Source(kind="containerDisk", volume=name, path=volume.container_disk.path)
    if volume.claim_name:
        claim = volume.persistent_volume_claim
        return Source(kind="claim", volume=name, readonly=bool(claim and claim.read_only))
    if volume.empty_disk:
        return Source(kind="emptyDisk", volume=name, capacity=volume.empty_disk.capacity.value)
    seed = volume.cloud_init_no_cloud
    if seed:
        return Source(
            kind="cloudInit",
            volume=name,
            user_data=seed.user_data,
            user_data_base64=_base64(seed.user_data_base64, f"volume {name}: userDataBase64"),
            network_data=seed.network_data,
            network_data_base64=_base64(seed.network_data_base64, f"volume {name}: networkDataBase64"),
            user_data_secret=seed.user_data_secret_ref is not None,
            network_data_secret=seed.network_data_secret_ref is not None,
        )
    raise MachineError(
        f"volume {name}: Hotvirt has containerDisk, persistentVolumeClaim, dataVolume, emptyDisk and "
        "cloudInitNoCloud so far. Use one of those"
    )


def _base64(text: str, what: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        raise MachineError(f"{what} is not base64") from None
    return text


def _interfaces(vmi: VirtualMachineInstance) -> tuple[Interface, ...]:
    devices = vmi.spec.domain.devices
    wanted = devices.interfaces
    if not wanted:
        if devices.autoattach_pod_interface is False:
            return ()
        wanted = (api.Interface(name="default"),)
    if len(wanted) > 1:
        raise MachineError(
            "spec.domain.devices.interfaces: Hotvirt has one interface, on the Pod's network, so far"
        )
    return tuple(
        Interface(
            name=interface.name,
            mac=(interface.mac_address or _mac(vmi, interface.name)).lower().replace("-", ":"),
            model=interface.model or "virtio",
            ports=tuple(Port(port=p.port, protocol=(p.protocol or "TCP").upper()) for p in interface.ports),
            boot_order=interface.boot_order or 0,
        )
        for interface in wanted
    )


def _mac(vmi: VirtualMachineInstance, interface: str) -> str:
    """A locally administered address that stays the same for this VMI and card."""
    digest = hashlib.sha256(f"{vmi.metadata.uid}/{interface}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))
