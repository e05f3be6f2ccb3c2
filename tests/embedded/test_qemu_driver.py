"""The QEMU driver and the launcher with a real QEMU and a real guest, without Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotvirt.hypervisor.driver import Change, DriverError, MachineGone, RunningMachine, Status
from hotvirt.hypervisor.qemu import accel
from hotvirt.hypervisor.qemu import driver as qemu
from hotvirt.hypervisor.qemu.command import STOP_SOCKET
from hotvirt.hypervisor.qemu.driver import QemuDriver
from hotvirt.hypervisor.qemu.qmp import open_qmp
from hotvirt.hypervisor.sockets import connect
from hotvirt.plan.machine import Cpu, Disk, Interface, Machine, Memory, Port, Source

from .launched import PATIENCE, Launched, demo_disk, until

pytestmark = pytest.mark.timeout(900)
MIB = 1 << 20
USER_DATA = "#!/bin/sh\necho cloud-init ran on $(hostname) with $$ > /dev/console\n"
ADDRESS = f"127.40.{os.getpid() >> 8 & 255}.{1 + os.getpid() % 253}"
"""Of this process alone: a port of a guest is bound there."""


def machine(**changes: object) -> Machine:
    settings: dict[str, object] = {
        "name": "driver",
        "namespace": "tests",
        "hostname": "driver-guest",
        "uuid": "5d1b2f6e-8c1e-4b62-9a51-1d6d5c0f3a77",
        "cpu": Cpu(sockets=2, max_sockets=4),
        "memory": Memory(boot=256 * MIB, region=512 * MIB),
    }
    return Machine(**(settings | changes))  # type: ignore[arg-type]  # the fields' own types are checked there


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    described = machine(
        disks=(
            Disk(name="system", source=Source(kind="containerDisk", volume="system"), serial="system-disk"),
            Disk(name="seed", source=Source(kind="cloudInit", volume="seed", user_data=USER_DATA)),
            Disk(
                name="space", bus="scsi", source=Source(kind="emptyDisk", volume="space", capacity=64 * MIB)
            ),
            Disk(name="drive", kind="cdrom", bus="sata"),
        ),
        interfaces=(Interface(name="default", mac="02:00:00:00:77:01", ports=(Port(port=80),)),),
    )
    launched = Launched(tmp_path_factory.mktemp("driver"), described, {"system": demo_disk()})
    try:
        launched.hand_over({"kind": "user", "address": ADDRESS})
        yield launched
    finally:
        launched.kill()


@contextlib.asynccontextmanager
async def connected(launched: Launched) -> AsyncIterator[RunningMachine]:
    folder = os.open(launched.run, os.O_RDONLY | os.O_DIRECTORY)
    try:
        running = await first_connection(folder)
    finally:
        os.close(folder)
    try:
        yield running
    finally:
        running.close()


async def first_connection(folder: int) -> RunningMachine:
    """Polled, as by the node agent: that QEMU listens on the socket it has made is announced by no event."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(MachineGone):
                return await QemuDriver().connect(folder)
            await asyncio.sleep(0.05)


async def with_agent(running: RunningMachine) -> None:
    """Wait for the guest agent by the machine's own events."""
    changed = asyncio.Event()
    stop = running.add_listener(lambda _: changed.set())
    async with asyncio.timeout(PATIENCE):
        while not (seen := await running.observe()).agent_connected:
            if not seen.agent_expected:
                await changed.wait()
            changed.clear()
    stop()


async def test_three_figures_of_a_booted_guest(guest: Launched) -> None:
    async with connected(guest) as running:
        await with_agent(running)
        seen = await running.observe()
    assert seen.status is Status.RUNNING
    assert (seen.plugged, len(seen.vcpus)) == (2, 4)
    assert seen.guest is not None and seen.guest.online == 2
    assert len(seen.guest.boot_id) == 36
    assert 128 * MIB < seen.guest.memory_total < 256 * MIB
    assert (seen.memory.boot, seen.memory.plugged, seen.memory.region) == (256 * MIB, 0, 512 * MIB)
    assert seen.guest.os["kernel-release"]
    assert running.version.startswith("QEMU ") and running.pid == guest.compute.pid


def test_the_console_is_logged_and_the_user_data_ran(guest: Launched) -> None:
    guest.until_console_says("cloud-init ran on driver-guest with")
    assert "Linux version" in guest.console_text(), "the log has the boot from its beginning"


def test_consoles_read_and_write(guest: Launched) -> None:
    guest.until_console_says("login:")
    with socket.socket(socket.AF_UNIX) as slow, socket.socket(socket.AF_UNIX) as console:
        slow.connect(str(guest.run / "console.sock"))  # never reads: must not hold up the other
        console.connect(str(guest.run / "console.sock"))
        console.settimeout(PATIENCE)
        heard = b""
        for send, wanted in ((b"root\n", b"assword"), (b"hotvirt\n", b"#"), (b"echo $((6*7))\n", b"42")):
            console.sendall(send)
            while wanted not in heard:
                said = console.recv(4096)
                assert said, f"the console ended before {wanted!r}: {heard!r}"
                heard += said
            heard = b""


def test_the_disks_are_there(guest: Launched) -> None:
    guest.until_console_says("login:")
    assert (guest.scratch / "disk-system.qcow2").exists()
    assert "Attached SCSI" in guest.console_text() or (guest.scratch / "empty-space.qcow2").exists()


async def test_a_port_of_the_guest_answers_at_the_given_address(guest: Launched) -> None:
    guest.until_console_says("login:")

    async def page() -> bytes:
        reader, writer = await asyncio.open_connection(ADDRESS, 80)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(10):
            text = await reader.read()
        writer.close()
        return text

    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(OSError, TimeoutError):
                if b"Hotvirt demo guest" in await page():
                    return
            await asyncio.sleep(0.1)  # the guest's DHCP has no event for us


async def test_two_more_vcpus_reach_the_guest(guest: Launched) -> None:
    async with connected(guest) as running:
        await with_agent(running)
        before = await running.observe()
        await running.plug_vcpus(4)
        assert await running.use_vcpus(4, PATIENCE) == 4
        after = await running.observe()
        with pytest.raises(DriverError, match="4 slots"):
            await running.plug_vcpus(5)
    assert before.guest is not None and after.guest is not None
    assert (after.plugged, after.guest.online) == (4, 4)
    assert after.guest.boot_id == before.guest.boot_id
    assert [slot.removable for slot in after.vcpus] == [False, True, True, True]


async def test_pause_and_resume_are_told(guest: Launched) -> None:
    async with connected(guest) as running:
        changes: list[Change] = []
        running.add_listener(changes.append)
        await running.pause()
        assert (await running.observe()).status is Status.PAUSED
        await running.resume()
        assert (await running.observe()).status is Status.RUNNING
    told = [each for each in changes if each in (Change.PAUSED, Change.RESUMED)]
    assert told == [Change.PAUSED, Change.RESUMED]


@pytest.mark.parametrize("way", ["reset", "soft_reboot"])
async def test_a_reboot_boots_anew_with_all_vcpus(guest: Launched, way: str) -> None:
    async with connected(guest) as running:
        await with_agent(running)
        before = await running.observe()
        changes: asyncio.Queue[Change] = asyncio.Queue()
        running.add_listener(changes.put_nowait)
        await getattr(running, way)()
        async with asyncio.timeout(PATIENCE):
            while await changes.get() is not Change.RESET:
                pass
        while True:
            await with_agent(running)
            after = await running.observe()
            if (
                after.guest is not None
                and before.guest is not None
                and after.guest.boot_id != before.guest.boot_id
            ):
                break
    assert after.plugged == after.guest.online == before.plugged


def test_stop_presses_the_power_button_and_everything_ends(guest: Launched) -> None:
    guest.until_console_says("login:")
    assert guest.stop() == 0
    assert guest.logger.wait(timeout=PATIENCE) == 0
    assert "Power down" in guest.console_text()


async def test_a_guest_without_an_agent_ends_in_a_true_status(tmp_path: Path) -> None:
    empty = Disk(name="empty", source=Source(kind="emptyDisk", volume="empty", capacity=MIB))
    launched = Launched(
        tmp_path, machine(cpu=Cpu(max_sockets=2), disks=(empty,), memory=Memory(boot=64 * MIB))
    )
    try:
        launched.hand_over()
        async with connected(launched) as running:
            await running.plug_vcpus(2)
            assert await running.use_vcpus(2, 0.1) is None
            seen = await running.observe()
            assert (seen.plugged, seen.guest, seen.agent_connected) == (2, None, False)
            launched.compute.kill()
            async with asyncio.timeout(PATIENCE):
                await running.closed.wait()
            with pytest.raises(MachineGone):
                await running.observe()
        assert await asyncio.to_thread(launched.logger.wait, PATIENCE) == 0
    finally:
        launched.kill()


async def by_the_second_monitor(launched: Launched, command: str) -> None:
    folder = os.open(launched.run, os.O_RDONLY | os.O_DIRECTORY)
    try:
        other = await open_qmp(await connect(folder, STOP_SOCKET))
    finally:
        os.close(folder)
    await other.execute(command)
    other.close()


async def test_qemu_is_asked_again_only_when_something_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qemu, "RECENT", 3600.0)
    launched = Launched(tmp_path, machine(paused=True))
    try:
        launched.hand_over()
        async with connected(launched) as running:
            asked: list[str] = []
            assert isinstance(running, qemu.QemuMachine)
            execute = running._monitor.execute

            async def noted(name: str, *arguments: Any) -> Any:
                asked.append(name)
                return await execute(name, *arguments)

            monkeypatch.setattr(running._monitor, "execute", noted)
            seen = await running.observe()
            assert (seen.status, seen.plugged) == (Status.PAUSED, 2) and asked
            asked.clear()
            assert await running.observe() == seen and not asked
            await running.plug_vcpus(3)
            assert (await running.observe()).plugged == 3
            told = asyncio.Event()
            running.add_listener(lambda change: told.set() if change is Change.RESUMED else None)
            await by_the_second_monitor(launched, "cont")
            async with asyncio.timeout(PATIENCE):
                await told.wait()
            assert (await running.observe()).status is Status.RUNNING
            await running.set_memory(0, 0.1)
            asked.clear()
            assert (await running.observe()).memory.requested == 0 and asked
    finally:
        launched.kill()


async def test_every_kind_of_device_is_one_that_qemu_knows(tmp_path: Path) -> None:
    def disk(name: str, **changes: Any) -> Disk:
        return Disk(name=name, source=Source(kind="emptyDisk", volume=name, capacity=MIB), **changes)

    disks = [disk(f"virtio{number}") for number in range(12)]
    disks += [
        disk("scsi", bus="scsi", serial="a serial, with a comma"),
        disk("sata", bus="sata", shareable=True),
    ]
    disks += [disk("cd", kind="cdrom", bus="scsi"), disk("sata-cd", kind="cdrom", bus="sata")]
    disks += [disk("read-only", bus="scsi", readonly=True)]
    disks += [Disk(name="empty", kind="cdrom", bus="sata"), disk("through", cache="writethrough")]
    described = machine(
        cpu=Cpu(sockets=2, cores=2, threads=2, max_sockets=3, model="Haswell"),
        memory=Memory(boot=128 * MIB, region=256 * MIB, plugged=128 * MIB),
        disks=tuple(disks),
        interfaces=(Interface(name="default", mac="02:00:00:00:77:02", model="e1000"),),
        paused=True,
    )
    launched = Launched(tmp_path, described)
    try:
        launched.hand_over({"kind": "user", "address": ADDRESS})
        async with connected(launched) as running:
            seen = await running.observe()
        assert (seen.status, seen.detail) == (Status.PAUSED, "prelaunch")
        assert (seen.plugged, len(seen.vcpus)) == (8, 12)
        assert seen.memory.requested == 128 * MIB
    finally:
        launched.kill()


def test_a_machine_that_cannot_start_says_why_in_both_logs(tmp_path: Path) -> None:
    missing = Disk(name="system", source=Source(kind="containerDisk", volume="system"))
    launched = Launched(tmp_path, machine(disks=(missing,)))
    try:
        assert launched.compute.wait(timeout=PATIENCE) == 1
        assert "exactly one file in disk/" in launched.launcher_log.read_text()
        assert launched.logger.wait(timeout=PATIENCE) == 0
        until(
            lambda: "exactly one file in disk/" in launched.console_text(),
            "the reason in the console log",
            PATIENCE,
        )
    finally:
        launched.kill()


async def test_the_probe_comes_through_where_a_guest_runs() -> None:
    assert await accel.works(accel.TCG, PATIENCE)


async def test_the_accelerator_is_found_quickly() -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    found = await accel.accelerator()
    assert loop.time() - began < accel.DEADLINE + 30  # of which most is the start of a process
    assert found in (accel.KVM, accel.TCG)
    assert (await accel.works(accel.KVM, 10)) is (found == accel.KVM)
