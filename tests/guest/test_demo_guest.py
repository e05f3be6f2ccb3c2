"""The demo guest, from the inside: two boots of the real disk in real QEMU."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotvirt.hypervisor.iso import iso_image

from .machine import Machine

pytestmark = pytest.mark.timeout(900)
REPOSITORY = Path(__file__).resolve().parents[2]
MIB = 1024 * 1024
QUICK = 10.0
"""Seconds, on a machine that has nothing else to do."""


@pytest.fixture(scope="module")
def disk() -> Path:
    built = subprocess.run([REPOSITORY / "demo/guest/build"], capture_output=True, text=True, check=True)
    return Path(built.stdout.splitlines()[-1])


def cidata(folder: Path, **files: str) -> Path:
    """A NoCloud volume with a FAT file system."""
    image = folder / "cidata.img"
    with image.open("wb") as file:
        file.truncate(2 * MIB)
    subprocess.run(["mformat", "-i", image, "-v", "CIDATA", "::"], check=True)
    for name, text in files.items():
        subprocess.run(
            ["mcopy", "-i", image, "-", f"::/{name.replace('_', '-')}"], input=text.encode(), check=True
        )
    return image


SCRIPT = """#!/bin/sh
echo "script runs in $(hostname)"
echo written > /root/by-script
"""

NETWORK_V2 = """
version: 2
ethernets:
  enp1s0:
    addresses: [10.0.2.15/24]
    routes:
      - to: default
        via: 10.0.2.2
    nameservers: {addresses: [10.0.2.3]}
"""


@pytest.fixture(scope="module")
def machine(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("guest")
    seed = cidata(
        folder,
        meta_data="instance-id: i-1\nlocal-hostname: first\n",
        user_data=SCRIPT,
        network_config=NETWORK_V2,
    )
    machine = Machine(
        folder / "machine",
        disk,
        *("-drive", f"file={seed},if=none,id=seed,format=raw,readonly=on"),
        *(
            "-device",
            "virtio-scsi-pci,id=scsi0",
            "-device",
            "scsi-hd,drive=seed,bus=scsi0.0,serial=seed-disk",
        ),
        *("-netdev", "user,id=net,hostfwd=tcp:127.0.0.1:0-:80", "-device", "virtio-net-pci,netdev=net"),
        *("-object", "memory-backend-ram,id=vmem,size=1G"),
        *("-device", "virtio-mem-pci,id=vmem0,memdev=vmem,requested-size=0"),
    )
    try:
        began = time.monotonic()
        machine.until_console("login:")
        machine.boot_took = time.monotonic() - began
        machine.sync_agent()
        yield machine
    finally:
        machine.kill()


def test_the_console_has_boot_messages_the_ready_line_and_a_login(machine: Machine) -> None:
    console = machine.console()
    assert "Linux version" in console
    assert "hotvirt demo guest ready" in console
    assert "Log in as root with the password hotvirt" in console
    assert "first login:" in console
    assert not [line for line in console.splitlines() if "not found" in line or "modprobe:" in line]


def test_root_can_log_in_on_the_console(machine: Machine) -> None:
    machine.type("root\n")
    machine.until_console("Password:")
    machine.type("hotvirt\n")
    machine.until_console("root@first:")
    machine.type("echo $((6 * 7))-from-the-shell\n")
    machine.until_console("42-from-the-shell")


def test_the_agent_is_the_real_one_and_may_run_programs(machine: Machine) -> None:
    enabled = {each["name"] for each in machine.agent("guest-info")["supported_commands"] if each["enabled"]}
    assert {"guest-exec", "guest-file-write", "guest-set-vcpus", "guest-get-memory-blocks"} <= enabled
    assert machine.run("/usr/bin/uname", "-s") == "Linux\n"


def test_the_user_script_ran_in_the_named_host(machine: Machine) -> None:
    machine.until_console("nocloud: user-data script ended with status 0")
    assert "script runs in first" in machine.console()
    assert machine.run("/usr/bin/cat", "/root/by-script") == "written\n"


def test_the_static_address_is_in_force_although_the_interface_is_named_otherwise(machine: Machine) -> None:
    assert "10.0.2.15/24" in machine.run("/usr/bin/ip", "address", "show", "eth0")
    assert "default via 10.0.2.2" in machine.run("/usr/bin/ip", "route")
    assert machine.run("/usr/bin/cat", "/etc/resolv.conf") == "nameserver 10.0.2.3\n"
    assert "it uses DHCP" not in machine.console()


def test_the_web_server_reports_what_the_guest_sees(machine: Machine) -> None:
    forwards = machine.monitor("human-monitor-command", **{"command-line": "info usernet"})
    port = next(line.split()[3] for line in forwards.splitlines() if "HOST_FORWARD" in line)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/cgi-bin/facts", timeout=30) as answer:
        facts = json.load(answer)
    assert facts["hostname"] == "first"
    assert facts["boot_id"] == machine.run("/usr/bin/cat", "/proc/sys/kernel/random/boot_id").strip()
    assert facts["cpus_online"] == 1
    assert 100_000 < facts["mem_total_kb"] < 262_144
    assert {"name": "sda", "bytes": 2 * MIB, "serial": "seed-disk"} in facts["disks"]
    assert {each["serial"] for each in facts["disks"]} == {"boot-disk", "seed-disk"}


def test_a_hot_added_cpu_waits_to_be_brought_online(machine: Machine) -> None:
    machine.monitor(
        "device_add", driver="max-x86_64-cpu", id="cpu1", **{"socket-id": 1, "core-id": 0, "thread-id": 0}
    )
    # For a moment a new one has no switch: the agent calls it online then, and cannot use it.
    machine.until(
        lambda: (
            {cpu["logical-id"] for cpu in machine.agent("guest-get-vcpus") if cpu.get("can-offline")} == {1}
        ),
        "second CPU in the guest",
    )
    assert machine.run("/usr/bin/cat", "/sys/devices/system/cpu/online") == "0\n"

    assert machine.agent("guest-set-vcpus", vcpus=[{"logical-id": 1, "online": True}]) == 1

    assert machine.run("/usr/bin/nproc") == "2\n"


def mem_total(machine: Machine) -> int:
    line = machine.run("/usr/bin/grep", "MemTotal", "/proc/meminfo")
    return int(line.split()[1]) * 1024


def test_virtio_mem_grows_and_shrinks_once_the_guest_onlines_it_movable(machine: Machine) -> None:
    before = mem_total(machine)
    assert machine.run("/usr/bin/cat", "/sys/devices/system/memory/auto_online_blocks") == "offline\n"
    machine.write("/sys/devices/system/memory/auto_online_blocks", "online_movable")

    device = {"path": "/machine/peripheral/vmem0"}
    machine.monitor("qom-set", **device, property="requested-size", value=256 * MIB)
    machine.until(lambda: mem_total(machine) == before + 256 * MIB, "memory in the guest")

    machine.monitor("qom-set", **device, property="requested-size", value=0)
    machine.until(lambda: machine.monitor("qom-get", **device, property="size") == 0, "memory given back")
    assert mem_total(machine) == before


def test_the_power_button_stops_the_guest_quickly(machine: Machine) -> None:
    """The last test of this guest."""
    pressed = time.monotonic()
    machine.monitor("system_powerdown")
    machine.wait_for_end()
    took = time.monotonic() - pressed
    assert "hotvirt demo guest: poweroff" in machine.console()
    # A machine on which booting takes long is a slow one; stopping takes a fraction of that.
    assert took < max(QUICK, machine.boot_took)


CLOUD_CONFIG = """#cloud-config
hostname: second
password: secret
bootcmd:
  - echo "bootcmd before $(hostname)"
write_files:
  - path: /etc/demo/plain.txt
    permissions: '0600'
    content: |
      one
        two
  - path: /etc/demo/encoded.txt
    encoding: b64
    content: aGVsbG8K
runcmd:
  - echo "runcmd in $(hostname)"
  - [sh, -c, 'echo "$0 and $1"', "it's", two words]
"""

NETWORK_V1 = """
network:
  version: 1
  config:
    - type: physical
      name: eth0
      mac_address: 52:54:00:aa:bb:cc
      subnets:
        - type: static
          address: 192.168.76.9
          netmask: 255.255.255.0
          gateway: 192.168.76.2
"""


def test_cloud_config_and_reboot(disk: Path, tmp_path: Path) -> None:
    """This time the NoCloud volume is a CD-ROM, made as Hotvirt makes it."""
    files = {"meta-data": "instance-id: i-2\n", "user-data": CLOUD_CONFIG, "network-config": NETWORK_V1}
    seed = tmp_path / "cidata.iso"
    seed.write_bytes(iso_image("cidata", {name: text.encode() for name, text in files.items()}))
    machine = Machine(
        tmp_path / "machine",
        disk,
        *("-drive", f"file={seed},if=none,id=seed,format=raw,readonly=on"),
        *("-device", "virtio-scsi-pci,id=scsi0", "-device", "scsi-cd,drive=seed,bus=scsi0.0"),
        *("-netdev", "user,id=net,net=192.168.76.0/24"),
        *("-device", "virtio-net-pci,netdev=net,mac=52:54:00:aa:bb:cc"),
    )
    try:
        machine.until_console("nocloud: runcmd ended with status 0")
        machine.until_console("second login:")
        console = machine.console()
        assert "bootcmd before hotvirt-demo" in console
        assert "runcmd in second" in console
        assert "it's and two words" in console
        assert "nocloud: this guest ignores: password" in console
        machine.sync_agent()
        assert machine.run("/usr/bin/cat", "/etc/demo/plain.txt") == "one\n  two\n"
        assert machine.run("/usr/bin/stat", "-c", "%a", "/etc/demo/plain.txt") == "600\n"
        assert machine.run("/usr/bin/cat", "/etc/demo/encoded.txt") == "hello\n"
        assert "192.168.76.9/24" in machine.run("/usr/bin/ip", "address", "show", "eth0")
        # Not at once: the agent, which is ended too, has to answer before.
        machine.agent("guest-exec", path="/usr/bin/sh", arg=["-c", "sleep 1; exec /sbin/reboot"])
        machine.wait_for_end()
        assert "hotvirt demo guest: reboot" in machine.console()
    finally:
        machine.kill()
