"""QEMU's command line: the rules that later changes of a running machine stand on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hotvirt.hypervisor.files import DiskFile, Files
from hotvirt.hypervisor.qemu import command
from hotvirt.plan.machine import (
    Cpu,
    CpuFeature,
    Disk,
    Firmware,
    Interface,
    Kernel,
    Machine,
    Memory,
    Port,
    Source,
)

MIB = 1 << 20
CARD = Interface(
    name="default", mac="02:00:00:00:00:01", ports=(Port(port=80), Port(port=53, protocol="UDP"))
)


def argv(
    files: Files | None = None,
    accel: str = "tcg",
    network: Any = None,
    version: tuple[int, ...] = (),
    **changes: Any,
) -> list[str]:
    settings: dict[str, Any] = {
        "name": "vm",
        "namespace": "ns",
        "hostname": "vm",
        "uuid": "5d1b2f6e-8c1e-4b62-9a51-1d6d5c0f3a77",
        "cpu": Cpu(),
        "memory": Memory(boot=256 * MIB),
    }
    machine = Machine(**(settings | changes))
    network = network or {"kind": "none"}
    return command.argv(machine, accel=accel, network=network, files=files or Files(), version=version)


def values(line: list[str], option: str) -> list[str]:
    return [line[at + 1] for at, word in enumerate(line) if word == option]


def devices(line: list[str], driver: str) -> list[str]:
    return [value for value in values(line, "-device") if value.split(",")[0] == driver]


def disk(name: str, **changes: Any) -> Disk:
    return Disk(name=name, source=Source(kind="claim", volume=name), **changes)


def files(*names: str, **settings: Any) -> Files:
    found = Files()
    found.disks = {name: DiskFile(f"/claims/{name}/disk.img", **settings) for name in names}
    return found


def test_one_socket_is_plugged_by_smp_and_the_others_are_devices() -> None:
    line = argv(cpu=Cpu(sockets=3, cores=2, threads=2, max_sockets=4))
    assert values(line, "-smp") == ["cpus=4,sockets=4,cores=2,threads=2,maxcpus=16"]
    others = devices(line, "max-x86_64-cpu")
    assert len(others) == 8
    assert others[0] == "max-x86_64-cpu,id=vcpu-1-0-0,socket-id=1,core-id=0,thread-id=0"
    assert others[-1] == "max-x86_64-cpu,id=vcpu-2-1-1,socket-id=2,core-id=1,thread-id=1"


@pytest.mark.parametrize(
    ("model", "accel", "name"),
    [
        ("host-model", "kvm", "host"),
        ("host-passthrough", "kvm", "host"),
        ("host-model", "tcg", "max"),
        ("Haswell", "tcg", "Haswell"),
    ],
)
def test_the_cpu_model_is_one_that_the_accelerator_has(model: str, accel: str, name: str) -> None:
    features = (CpuFeature(name="aes"), CpuFeature(name="la57", policy="disable"))
    line = argv(accel=accel, cpu=Cpu(model=model, features=features))
    assert values(line, "-cpu") == [f"{name},+aes,-la57"]
    assert values(line, "-accel") == ["kvm" if accel == "kvm" else "tcg,tb-size=64,thread=single"]


def test_memory_can_be_plugged_only_where_there_is_headroom() -> None:
    without = argv(memory=Memory(boot=256 * MIB))
    assert values(without, "-m") == [f"size={256 * MIB}B"] and not devices(without, "virtio-mem-pci")
    line = argv(memory=Memory(boot=256 * MIB, region=1024 * MIB, plugged=128 * MIB))
    assert values(line, "-m") == [f"size={256 * MIB}B,maxmem={1280 * MIB}B"]
    (device,) = devices(line, "virtio-mem-pci")
    assert f"requested-size={128 * MIB}" in device and "id=vmem0" in device


def test_every_pluggable_device_has_a_port_of_its_own_and_eight_are_free() -> None:
    names = [f"d{number}" for number in range(20)]
    line = argv(
        files(*names),
        disks=tuple(disk(name) for name in names),
        interfaces=(CARD,),
        network={"kind": "tap", "fd": 7},
        memory=Memory(boot=256 * MIB, region=1024 * MIB),
    )
    used = [part for value in values(line, "-device") for part in value.split(",") if part.startswith("bus=")]
    ports = [value.split("id=")[1].split(",")[0] for value in devices(line, "pcie-root-port")]
    on_ports = [part[4:] for part in used if part[4:] in ports]
    assert len(on_ports) == len(set(on_ports)) == 22, "20 disks, a card, the memory"
    assert len(set(ports) - set(on_ports)) == command.FREE_ROOT_PORTS
    places = [value.split("addr=")[1].split(",")[0] for value in devices(line, "pcie-root-port")]
    assert len(places) == len(set(places))


def test_ports_stand_before_what_sits_on_them() -> None:
    line = argv(files("a"), disks=(disk("a"),))
    assert line.index(devices(line, "pcie-root-port")[0]) < line.index(devices(line, "virtio-blk-pci")[0])


def test_disks_boot_in_their_order_unless_told_otherwise() -> None:
    plain = argv(files("a", "b"), disks=(disk("a"), disk("b", bus="scsi")))
    assert "bootindex=1" in devices(plain, "virtio-blk-pci")[0]
    assert "bootindex=2" in devices(plain, "scsi-hd")[0]
    told = argv(files("a", "b"), disks=(disk("a", boot_order=5), disk("b", bus="scsi", boot_order=2)))
    assert "bootindex=2" in devices(told, "virtio-blk-pci")[0]
    assert "bootindex=1" in devices(told, "scsi-hd")[0]


def test_buses_and_kinds() -> None:
    found = files("hd", "cd", "sata")
    found.disks["lun"] = DiskFile("/claims/lun", device=True)
    line = argv(
        found,
        disks=(
            disk("hd", bus="scsi"),
            disk("cd", kind="cdrom", bus="scsi"),
            Disk(name="empty", kind="cdrom", bus="sata"),
            disk("sata", bus="sata"),
            disk("lun", kind="lun", bus="scsi"),
        ),
    )
    assert "drive=" not in devices(line, "ide-cd")[0] and "bus=ide.0" in devices(line, "ide-cd")[0]
    assert "bus=ide.1" in devices(line, "ide-hd")[0]
    luns = [
        device.split("lun=")[1].split(",")[0]
        for kind in ("scsi-hd", "scsi-cd", "scsi-block")
        for device in devices(line, kind)
    ]
    assert len(luns) == len(set(luns)) == 3


def test_what_the_hardware_does_not_have_is_refused() -> None:
    names = [f"d{number}" for number in range(7)]
    with pytest.raises(command.CommandError, match="6 SATA ports"):
        argv(files(*names), disks=tuple(disk(name, bus="sata") for name in names))
    with pytest.raises(command.CommandError, match="volumeMode Block"):
        argv(files("a"), disks=(disk("a", kind="lun", bus="scsi"),))
    with pytest.raises(command.CommandError, match="only a CD-ROM drive may be empty"):
        argv(disks=(Disk(name="a"),))


@pytest.mark.parametrize("direct", [True, False])
def test_a_copy_on_write_disk_names_its_base_and_cuts_the_chain(direct: bool) -> None:
    file = DiskFile(
        "/scratch/a.qcow2", "qcow2", backing="/images/a/disk/x", backing_format="qcow2", direct=True
    )
    file.backing_direct = direct
    node = command.blockdev("node-0", file, disk("a"))
    assert node["backing"] == {
        "driver": "qcow2",
        "read-only": True,
        "backing": None,
        "file": {
            "driver": "file",
            "filename": "/images/a/disk/x",
            "cache": {"direct": direct, "no-flush": False},
        },
    }
    assert node["cache"] == {"direct": True, "no-flush": False}


def test_claims_are_raw_and_devices_are_devices() -> None:
    node = command.blockdev("node-0", DiskFile("/claims/a", device=True), disk("a"))
    assert node["driver"] == "raw" and node["file"]["driver"] == "host_device"  # type: ignore[index]  # a dict


def test_networks() -> None:
    tap = argv(interfaces=(CARD,), network={"kind": "tap", "fd": 7, "vhostfd": 8})
    assert values(tap, "-netdev") == ["tap,id=net0,fd=7"], "no vhost without KVM"
    fast = argv(accel="kvm", interfaces=(CARD,), network={"kind": "tap", "fd": 7, "vhostfd": 8})
    assert values(fast, "-netdev") == ["tap,id=net0,fd=7,vhost=on,vhostfd=8"]
    passt = argv(interfaces=(CARD,), network={"kind": "passt"})
    assert values(passt, "-netdev") == ["stream,id=net0,server=off,addr.type=unix,addr.path=passt.sock"]
    user = argv(interfaces=(CARD,), network={"kind": "user", "address": "127.64.0.1"})
    assert "hostfwd=tcp:127.64.0.1:80-10.0.2.2:80" in values(user, "-netdev")[0]
    assert "hostfwd=udp:127.64.0.1:53-10.0.2.2:53" in values(user, "-netdev")[0]
    assert not values(argv(interfaces=(CARD,)), "-netdev")
    assert "romfile=" in devices(tap, "virtio-net-pci")[0]


def test_sockets_are_short_relative_names_and_two_monitors_listen() -> None:
    line = argv()
    paths = [
        part[5:]
        for value in values(line, "-chardev")
        for part in value.split(",")
        if part.startswith("path=")
    ]
    assert paths == ["qmp.sock", "stop.sock", "agent.sock", "serial.sock"]
    assert values(line, "-mon") == ["chardev=qmp,mode=control", "chardev=stop,mode=control"]
    assert not [value for value in values(argv(serial_console=False), "-chardev") if "serial.sock" in value]


def test_the_serial_port_connects_again_in_the_words_of_the_version() -> None:
    assert any("reconnect=1" in value for value in values(argv(), "-chardev"))
    assert any("reconnect-ms=1000" in value for value in values(argv(version=(10, 0, 2)), "-chardev"))


def test_the_sandbox_is_always_on() -> None:
    assert values(argv(), "-sandbox") == [
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
    ]


def test_kernel_efi_and_pause() -> None:
    found = Files()
    found.kernel, found.initrd, found.efi_code, found.efi_vars = "/k", "/i", "/code.fd", "/vars.fd"
    line = argv(found, kernel=Kernel(kernel_path="/k", args="console=ttyS0"), paused=True)
    assert (values(line, "-kernel"), values(line, "-initrd"), values(line, "-append")) == (
        ["/k"],
        ["/i"],
        ["console=ttyS0"],
    )
    assert line[-1] == "-S"
    efi = argv(found, firmware=Firmware(kind="efi", secure_boot=True))
    assert "pflash0=efi-code,pflash1=efi-vars" in values(efi, "-machine")[0]
    assert json.loads(values(efi, "-blockdev")[0])["read-only"] is True


def test_a_comma_in_a_name_stays_in_the_name() -> None:
    line = argv(firmware=Firmware(serial="a,file=/etc/passwd"))
    assert "serial=a,,file=/etc/passwd" in values(line, "-smbios")[0]
