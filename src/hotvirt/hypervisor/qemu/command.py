"""A machine as a QEMU command line: pure, and standard library only, because the launcher runs it.

Rules that shape it:
- what `-smp` plugs can never be unplugged: it gets one socket, the other boot vCPUs are devices;
- a device that may go must sit on a root port of its own, and free ports must be there from the start;
- sockets are named relative to the run folder, because a socket path may have 107 bytes only.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotvirt.hypervisor.files import DiskFile, Files
    from hotvirt.plan.machine import Cpu, Disk, Interface, Machine

QEMU = "qemu-system-x86_64"
OLDEST = (7, 2, 0)
RECONNECT_MS = (9, 2)  # the option's new name; the old one goes away some day
TCG_BUFFER_MIB = 64
FREE_ROOT_PORTS = 8
SATA_PORTS = 6

# Names in the run folder.
QMP_SOCKET = "qmp.sock"
STOP_SOCKET = "stop.sock"
AGENT_SOCKET = "agent.sock"
SERIAL_SOCKET = "serial.sock"
PASST_SOCKET = "passt.sock"

# Ids of devices that the driver talks to later.
MEMORY_DEVICE = "vmem0"
BALLOON_DEVICE = "balloon0"
AGENT_PORT = "agent0"
SCSI_BUS = "scsi0.0"

GUEST_ADDRESS = "10.0.2.2"
GATEWAY_ADDRESS = "10.0.2.1"


class CommandError(ValueError):
    """This machine cannot be started by QEMU; the message says what to change."""


class _RootPorts:
    """Root ports, eight to a slot, so that many of them fit on the root bus."""

    def __init__(self) -> None:
        self.argv: list[str] = []
        self._count = 0

    def new(self, prefix: str = "port") -> str:
        number = self._count
        self._count += 1
        slot, function = divmod(number, 8)
        name = f"{prefix}{number}"
        options = f"pcie-root-port,id={name},bus=pcie.0,addr={0x10 + slot:#x}.{function},chassis={number + 1}"
        # Modern virtio needs no I/O ports, and there are too few of them for many bridges.
        self.argv += ["-device", options + ",io-reserve=0" + (",multifunction=on" if function == 0 else "")]
        return name


def argv(
    machine: Machine,
    *,
    accel: str,
    network: dict[str, object],
    files: Files,
    version: tuple[int, ...] = (),
) -> list[str]:
    """`network` is the hand-over's: kind tap (fd, vhostfd), passt, user (address, ports) or none."""
    ports = _RootPorts()
    # Ports first in number for what is there at boot: then the guest's names of its devices are stable.
    devices = [
        *_memory_devices(machine, ports),
        *_disks(machine, files, ports),
        *_interfaces(machine, network, ports, accel),
    ]
    for _ in range(FREE_ROOT_PORTS):
        ports.new("free")
    return [
        QEMU,
        *("-name", f"guest={_escape(machine.namespace)}/{_escape(machine.name)},debug-threads=on"),
        *("-nodefaults", "-no-user-config", "-display", "none"),
        *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
        *_machine(machine, accel, files),
        *_cpu(machine.cpu, accel),
        *_memory(machine),
        *("-rtc", "base=utc,driftfix=slew"),
        *("-boot", "menu=off,strict=on"),
        # A panic is reported, not acted on: the guest's own panic= setting decides whether it reboots.
        *("-action", "panic=none", "-device", "pvpanic"),
        *("-uuid", machine.uuid),
        *("-smbios", _smbios(machine)),
        *_monitors(),
        *ports.argv,
        *_channels(machine, version or OLDEST),
        *devices,
        *_kernel(machine, files),
        *(("-S",) if machine.paused else ()),
    ]


def version_in(text: str) -> tuple[int, ...]:
    """(7, 2, 22), say, from what QEMU prints of itself; the oldest that we support where it says nothing."""
    words = text.split()
    number = words[words.index("version") + 1] if "version" in words[:-1] else ""
    parts = number.split(".")[:3]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else OLDEST


def cpu_model(cpu: Cpu, accel: str) -> str:
    """QEMU's name of the CPU model. Without KVM there is no host CPU to pass through: `max` is all that TCG
    can do.
    """
    if cpu.model in ("host-model", "host-passthrough", ""):
        return "host" if accel == "kvm" else "max"
    return cpu.model


def vcpu_id(socket: int, core: int, thread: int) -> str:
    return f"vcpu-{socket}-{core}-{thread}"


def _cpu(cpu: Cpu, accel: str) -> list[str]:
    model = cpu_model(cpu, accel)
    features = ""
    for feature in cpu.features:
        sign = "-" if feature.policy in ("disable", "forbid") else "+"
        features += f",{sign}{_escape(feature.name)}"
    per_socket = cpu.cores * cpu.threads
    out = ["-cpu", _escape(model) + features]
    out += [
        "-smp",
        f"cpus={per_socket},sockets={cpu.max_sockets},cores={cpu.cores},threads={cpu.threads},"
        f"maxcpus={cpu.max_sockets * per_socket}",
    ]
    for socket in range(1, cpu.sockets):
        for core in range(cpu.cores):
            for thread in range(cpu.threads):
                place = f"socket-id={socket},core-id={core},thread-id={thread}"
                out += ["-device", f"{model}-x86_64-cpu,id={vcpu_id(socket, core, thread)},{place}"]
    return out


def _machine(machine: Machine, accel: str, files: Files) -> list[str]:
    out = ["-machine", "q35,usb=off,dump-guest-core=off,memory-backend=ram0"]
    if machine.firmware.kind == "efi":
        if machine.firmware.secure_boot:
            out[1] += ",smm=on"
            out += ["-global", "driver=cfi.pflash01,property=secure,value=on"]
        for name, path, readonly in (
            ("efi-code", files.efi_code, True),
            ("efi-vars", files.efi_vars, False),
        ):
            node = {"driver": "raw", "node-name": name, "read-only": readonly}
            node["file"] = {"driver": "file", "filename": path}
            out += ["-blockdev", json.dumps(node)]
        out[1] += ",pflash0=efi-code,pflash1=efi-vars"
    if accel == "kvm":
        out += ["-accel", "kvm"]
    else:
        # With a thread per vCPU, a new one needs a free region of the translation buffer; QEMU aborts when
        # the others have them all. One thread has one region: a plug never kills the guest.
        out += ["-accel", f"tcg,tb-size={TCG_BUFFER_MIB},thread=single"]
    return out


def _memory_backend(name: str, size: int, hugepages: int, *, reserve: bool = True) -> str:
    if hugepages:
        return f"memory-backend-memfd,id={name},size={size},hugetlb=on,hugetlbsize={hugepages}"
    return f"memory-backend-ram,id={name},size={size}" + ("" if reserve else ",reserve=off")


def _memory(machine: Machine) -> list[str]:
    memory = machine.memory
    size = f"size={memory.boot}B"
    if memory.region:
        size += f",maxmem={memory.boot + memory.region}B"
    return ["-m", size, "-object", _memory_backend("ram0", memory.boot, memory.hugepages)]


def _memory_devices(machine: Machine, ports: _RootPorts) -> list[str]:
    memory = machine.memory
    if not memory.region:
        return []
    backend = _memory_backend("vmem-ram0", memory.region, memory.hugepages, reserve=False)
    device = f"virtio-mem-pci,id={MEMORY_DEVICE},memdev=vmem-ram0,bus={ports.new('mem')}"
    return ["-object", backend, "-device", f"{device},requested-size={memory.plugged}"]


def _monitors() -> list[str]:
    out = []
    for name, path in (("qmp", QMP_SOCKET), ("stop", STOP_SOCKET)):
        out += ["-chardev", f"socket,id={name},path={path},server=on,wait=off"]
        out += ["-mon", f"chardev={name},mode=control"]
    return out


def _channels(machine: Machine, version: tuple[int, ...]) -> list[str]:
    out = ["-chardev", f"socket,id=agent,path={AGENT_SOCKET},server=on,wait=off"]
    out += ["-device", "virtio-serial-pci,id=serial-bus0,bus=pcie.0,addr=0x3"]
    out += ["-device", f"virtserialport,id={AGENT_PORT},chardev=agent,name=org.qemu.guest_agent.0"]
    if machine.serial_console:
        # The log process listens and QEMU connects again by itself, so that either may come and go.
        again = "reconnect-ms=1000" if version >= RECONNECT_MS else "reconnect=1"
        out += ["-chardev", f"socket,id=serial0,path={SERIAL_SOCKET},server=off,{again}"]
        out += ["-device", "isa-serial,chardev=serial0"]
    if machine.rng:
        out += ["-object", "rng-random,id=rng0,filename=/dev/urandom"]
        out += ["-device", "virtio-rng-pci,rng=rng0,bus=pcie.0,addr=0x4"]
    if machine.balloon:
        out += ["-device", f"virtio-balloon-pci,id={BALLOON_DEVICE},bus=pcie.0,addr=0x5"]
    if machine.graphics:
        out += ["-device", "VGA,id=video0,bus=pcie.0,addr=0x1,vgamem_mb=16"]
    # There from the start: disks and CD-ROMs are plugged into it later.
    out += ["-device", "virtio-scsi-pci,id=scsi0,bus=pcie.0,addr=0x2"]
    return out


def _smbios(machine: Machine) -> str:
    text = f"type=1,manufacturer=Hotvirt,product=Virtual machine,uuid={machine.uuid}"
    if machine.firmware.serial:
        text += f",serial={_escape(machine.firmware.serial)}"
    return text


def blockdev(node: str, file: DiskFile, disk: Disk) -> dict[str, object]:
    """One disk's block node. The backing file and its format are named here: no header is trusted."""
    cache = {"direct": file.direct, "no-flush": False}
    protocol: dict[str, object] = {
        "driver": "host_device" if file.device else "file",
        "filename": file.path,
        "cache": cache,
        "aio": disk.io if disk.io in ("threads", "native") and file.direct else "threads",
    }
    top: dict[str, object] = {
        "driver": file.format,
        "node-name": node,
        "read-only": file.readonly,
        "discard": "unmap",
        "cache": cache,
        "file": protocol,
    }
    if file.format == "qcow2":
        top["backing"] = None
    if file.backing:
        base: dict[str, object] = {
            "driver": file.backing_format,
            "read-only": True,
            "file": {
                "driver": "file",
                "filename": file.backing,
                "cache": {"direct": file.backing_direct, "no-flush": False},
            },
        }
        if file.backing_format == "qcow2":
            base["backing"] = None
        top["backing"] = base
    return top


def _boot_indexes(machine: Machine) -> dict[str, int]:
    """By "disk/NAME" and "net/NAME". Without any boot order, disks boot in the order they stand in."""
    wanted = [(d.boot_order, f"disk/{d.name}") for d in machine.disks if d.boot_order]
    wanted += [(i.boot_order, f"net/{i.name}") for i in machine.interfaces if i.boot_order]
    if not wanted:
        wanted = [(n, f"disk/{d.name}") for n, d in enumerate(machine.disks)]
    return {name: index for index, (_, name) in enumerate(sorted(wanted, key=lambda item: item[0]), start=1)}


def _disks(machine: Machine, files: Files, ports: _RootPorts) -> list[str]:
    indexes = _boot_indexes(machine)
    out: list[str] = []
    sata = 0
    for number, disk in enumerate(machine.disks):
        node = f"node-{number}"
        device = ""
        if disk.bus == "sata":
            if sata == SATA_PORTS:
                raise CommandError(
                    f"disk {disk.name}: a machine has {SATA_PORTS} SATA ports. "
                    "Give some disks the bus virtio or scsi"
                )
            device = f"{'ide-cd' if disk.kind == 'cdrom' else 'ide-hd'},bus=ide.{sata}"
            sata += 1
        elif disk.bus == "scsi" or disk.kind in ("cdrom", "lun"):
            driver = {"cdrom": "scsi-cd", "lun": "scsi-block", "disk": "scsi-hd"}[disk.kind]
            device = f"{driver},bus={SCSI_BUS},channel=0,scsi-id=0,lun={number}"
        else:
            device = f"virtio-blk-pci,bus={ports.new('disk')}"
        device += f",id={device_id(disk.name)}"
        file = files.disks.get(disk.name)
        if disk.kind == "lun" and (file is None or not file.device):
            raise CommandError(
                f"disk {disk.name}: a LUN needs a claim with volumeMode Block, or be a disk instead"
            )
        if file is not None:
            out += ["-blockdev", json.dumps(blockdev(node, file, disk))]
            device += f",drive={node}"
            if disk.kind != "cdrom" and disk.kind != "lun":
                device += f",write-cache={'off' if disk.cache == 'writethrough' else 'on'}"
        elif disk.kind != "cdrom":
            raise CommandError(f"disk {disk.name} has no volume: only a CD-ROM drive may be empty")
        if disk.serial and disk.kind != "lun":
            device += f",serial={_escape(disk.serial)}"
        if disk.shareable:
            device += ",share-rw=on"
        index = indexes.get(f"disk/{disk.name}")
        if index:
            device += f",bootindex={index}"
        out += ["-device", device]
    return out


def device_id(disk: str) -> str:
    """The id of a disk's device: the driver finds it again by this."""
    return "disk-" + disk.replace(".", "-")


def _interfaces(machine: Machine, network: dict[str, object], ports: _RootPorts, accel: str) -> list[str]:
    kind = network.get("kind", "none")
    if kind == "none" or not machine.interfaces:
        return []
    interface: Interface = machine.interfaces[0]
    if kind == "tap":
        netdev = f"tap,id=net0,fd={network['fd']}"
        if accel == "kvm" and network.get("vhostfd") is not None:
            netdev += f",vhost=on,vhostfd={network['vhostfd']}"
    elif kind == "passt":
        netdev = f"stream,id=net0,server=off,addr.type=unix,addr.path={PASST_SOCKET}"
    elif kind == "user":
        netdev = f"user,id=net0,net=10.0.2.0/24,host={GATEWAY_ADDRESS},dhcpstart={GUEST_ADDRESS}"
        netdev += f",hostname={_escape(machine.hostname)}"
        for port in interface.ports:
            protocol = port.protocol.lower()
            netdev += f",hostfwd={protocol}:{network['address']}:{port.port}-{GUEST_ADDRESS}:{port.port}"
    else:
        raise CommandError(f"a network of kind {kind!r} is not known: use tap, passt, user or none")
    if interface.model in ("virtio", ""):
        device = f"virtio-net-pci,bus={ports.new('nic-port')}"
    else:  # conventional PCI cards cannot sit on a root port
        device = f"{_escape(interface.model)},bus=pcie.0"
    device += f",netdev=net0,id=nic0,mac={interface.mac}"
    index = _boot_indexes(machine).get(f"net/{interface.name}")
    # Without an option ROM the firmware does not try the network: seconds of a boot.
    device += f",bootindex={index}" if index else ",romfile="
    return ["-netdev", netdev, "-device", device]


def _kernel(machine: Machine, files: Files) -> list[str]:
    if machine.kernel is None or not files.kernel:
        return []
    out = ["-kernel", files.kernel]
    if files.initrd:
        out += ["-initrd", files.initrd]
    if machine.kernel.args:
        out += ["-append", machine.kernel.args]
    return out


def _escape(value: str) -> str:
    """QEMU's option syntax separates by commas; a comma in a value is written twice."""
    return value.replace(",", ",,")
