"""From the patch to the guest, beside a bare script that does the same to the same guest (`make bench`).

One real guest. In turns: Hotvirt gets an edit of the VM, and the clock stops when the VMI's status has what
the guest itself reports; then Hotvirt is stopped (the guest goes on), and a bare script does the same batch
over one connection to QEMU's monitor and one to the guest's agent. Both rest for a second before each change,
because a processor that has rested may be slower for a while, and the first change in a round is not counted
on either side. Two cases, because without KVM they differ much: vCPUs that the guest never had, and those
that it had before and that were parked. The table goes to the terminal, everything to `bench/out/live.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from bench.resize import HOTVIRT, NAMESPACE, OUT, end_with_all_it_started, percentile, vm
from hotvirt.api.quantity import Quantity
from hotvirt.api.resources import PODS, VMIS, VMS
from hotvirt.hypervisor.driver import RunningMachine
from hotvirt.hypervisor.qemu.driver import QemuDriver
from hotvirt.kube.client import Client
from hotvirt.kube.config import load_kubeconfig
from hotvirt.node.folders import run_folder

NAME = "live"
GIB = 1 << 30
PATIENCE = 120.0
SILENCE = 1.0
"""Seconds without a word about the VMI after which all has been told, the VM's status and events too."""
GUEST_BUILD = Path(__file__).resolve().parents[1] / "demo" / "guest" / "build"
# vCPUs and GiB of memory, each from (1, 1) and back again.
CHANGES = {"+1 vCPU, parked": (2, 1), "+7 vCPUs, parked": (8, 1), "+1 GiB": (1, 2)}
# Never plugged before: so many vCPUs at a time, so often for each side in one boot.
NEW = {"+1 vCPU, new": (1, 7), "+7 vCPUs, new": (7, 3)}
SLOTS = 43
Times = dict[str, list[float]]
Object = dict[str, Any]


def manifest() -> Object:
    found = vm(NAME)
    spec = found["spec"]["template"]["spec"]
    spec["domain"]["cpu"] = {"sockets": 1, "maxSockets": SLOTS}
    spec["domain"]["memory"] = {"guest": "1Gi", "maxGuest": "2Gi"}
    spec["domain"]["devices"]["disks"] = [{"name": "system", "disk": {"bus": "virtio"}}]
    spec["volumes"] = [{"name": "system", "containerDisk": {"image": "hotvirt/demo-guest:latest"}}]
    return found


class Hotvirt:
    """`hotvirt up` on one state folder."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def run(self, *arguments: str) -> None:
        environment = os.environ | {"HOTVIRT_STATE_DIR": str(self.state)}
        subprocess.run([str(HOTVIRT), *arguments], check=True, env=environment, stdout=subprocess.DEVNULL)

    def up(self) -> None:
        self.run("up", "--detach", "--port", "0", "--allocatable", "cpu=64,memory=64Gi")

    def down(self) -> None:
        self.run("down")


class Owner:
    """Who edits the VM, and watches its VMI all the time."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._vmi: Object | None = None
        self._news = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def of(cls, hotvirt: Hotvirt) -> AsyncIterator[Owner]:
        async with Client(load_kubeconfig(hotvirt.state / "kubeconfig")) as client:
            owner = cls(client)
            watch = asyncio.create_task(owner._watch())
            try:
                yield owner
            finally:
                watch.cancel()
                await asyncio.wait([watch])

    async def _watch(self) -> None:
        while True:  # a watch ends after some minutes
            listed = await self.client.list(VMIS, NAMESPACE)
            self._see(listed.items[0] if listed.items else None)
            since = listed.resource_version
            async for event in self.client.watch(VMIS, NAMESPACE, resource_version=since):
                if event.type != "BOOKMARK":
                    self._see(None if event.type == "DELETED" else event.object)

    def _see(self, found: Object | None) -> None:
        self._vmi = found
        self._news.set()

    async def until(self, holds: Callable[[Object], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while self._vmi is None or not holds(self._vmi):
                self._news.clear()
                await self._news.wait()

    async def edit(self, vcpus: int, gib: int = 1) -> None:
        domain = {"cpu": {"sockets": vcpus}, "memory": {"guest": f"{gib}Gi"}}
        await self.client.patch(VMS, NAME, {"spec": {"template": {"spec": {"domain": domain}}}}, NAMESPACE)

    async def change(self, vcpus: int, gib: int = 1) -> None:
        """Until the guest has it."""
        await self.edit(vcpus, gib)
        await self.until(has(vcpus, gib))

    async def bring_to(self, vcpus: int, gib: int = 1) -> None:
        """Until nobody has anything left to do for it, and nothing left to tell."""
        await self.edit(vcpus, gib)
        await self.until(rests(vcpus, gib))
        await self.silence()

    async def silence(self) -> None:
        """What comes behind a change (events, the VM's status) is not to be in the way of the next one."""
        while True:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), SILENCE)
            except TimeoutError:
                return


def has(vcpus: int, gib: int) -> Callable[[Object], bool]:
    def holds(vmi: Object) -> bool:
        status = vmi.get("status", {})
        memory = status.get("memory", {}).get("guestCurrent")
        return (
            status.get("currentCPUTopology", {}).get("sockets") == vcpus
            and memory is not None
            and Quantity(memory).value == gib * GIB
        )

    return holds


def rests(vcpus: int, gib: int) -> Callable[[Object], bool]:
    def holds(vmi: Object) -> bool:
        status = vmi.get("status", {})
        changes = any(each["type"].startswith("Hot") for each in status.get("conditions", ()))
        hotvirt = status.get("hotvirt", {})
        settled = hotvirt.get("settledGeneration") == vmi["metadata"]["generation"]
        return has(vcpus, gib)(vmi) and settled and not changes and bool(hotvirt.get("bootId"))

    return holds


async def timed(change: Awaitable[Any]) -> float:
    begun = time.perf_counter()
    async with asyncio.timeout(PATIENCE):
        await change
    return time.perf_counter() - begun


@asynccontextmanager
async def by_hand(folder: Path) -> AsyncIterator[RunningMachine]:
    """The machine, over one connection to QEMU and one to the guest's agent that stay open."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    machine = await QemuDriver().connect(file)
    try:
        await machine.observe()
        yield machine
    finally:
        machine.close()
        os.close(file)


async def more_vcpus(machine: RunningMachine, count: int) -> None:
    await machine.plug_vcpus(count)
    assert await machine.use_vcpus(count, PATIENCE) == count


async def boot(hotvirt: Hotvirt) -> Path:
    """A guest that never had more than one vCPU, at rest; its run folder."""
    async with Owner.of(hotvirt) as owner:
        await owner.client.create(VMS, manifest(), NAMESPACE)
        await owner.until(rests(1, 1))
        (pod,) = (await owner.client.list(PODS, NAMESPACE)).items
    return run_folder(hotvirt.state, pod["metadata"]["uid"])


async def end(hotvirt: Hotvirt) -> None:
    async with Owner.of(hotvirt) as owner:
        since = (await owner.client.list(VMS, NAMESPACE)).resource_version
        await owner.client.delete(VMS, NAME, NAMESPACE)
        async with asyncio.timeout(PATIENCE):
            async for event in owner.client.watch(VMS, NAMESPACE, resource_version=since):
                if event.type == "DELETED":
                    return


class Bench:
    """What each side took, by what was done."""

    def __init__(self, hotvirt: Hotvirt) -> None:
        self._hotvirt = hotvirt
        self.ours: Times = {}
        self.bare: Times = {}

    def parked(self, rounds: int, turns: int) -> None:
        """The same guest throughout, with all vCPUs that it gets plugged once."""
        folder = uvloop.run(boot(self._hotvirt))
        uvloop.run(self._plug_and_park())
        for number in range(rounds):
            print(f"parked vCPUs and memory, round {number + 1} of {rounds}", file=sys.stderr)
            uvloop.run(self._ours_parked(turns))
            self._hotvirt.down()
            uvloop.run(self._bare_parked(folder, turns))
            self._hotvirt.up()
        uvloop.run(end(self._hotvirt))

    async def _plug_and_park(self) -> None:
        async with Owner.of(self._hotvirt) as owner:
            await owner.bring_to(8)
            await owner.bring_to(1)

    async def _ours_parked(self, turns: int) -> None:
        async with Owner.of(self._hotvirt) as owner:
            await owner.until(rests(1, 1))
            # Hotvirt was started for this round: its first change is the first in that process.
            await owner.bring_to(2)
            await owner.bring_to(1)
            for what, (vcpus, gib) in CHANGES.items():
                for _ in range(turns):
                    self._add(self.ours, what, await timed(owner.change(vcpus, gib)))
                    await owner.bring_to(1)

    async def _bare_parked(self, folder: Path, turns: int) -> None:
        async with by_hand(folder) as machine:
            await more_vcpus(machine, 2)
            await machine.use_vcpus(1, PATIENCE)
            for what, (vcpus, gib) in CHANGES.items():
                for _ in range(turns):
                    await asyncio.sleep(SILENCE)
                    change = (
                        machine.set_memory((gib - 1) * GIB, PATIENCE)
                        if gib > 1
                        else more_vcpus(machine, vcpus)
                    )
                    self._add(self.bare, what, await timed(change))
                    await machine.use_vcpus(1, PATIENCE)
                    await machine.set_memory(0, PATIENCE)

    def new(self, what: str, at_least: int) -> None:
        """Boot after boot; in turns Hotvirt and the script are the first."""
        step, times = NEW[what]
        boots = -(-at_least // times)
        for number in range(boots):
            print(f"{what}, boot {number + 1} of {boots}", file=sys.stderr)
            folder = uvloop.run(boot(self._hotvirt))
            middle = 1 + times * step
            first, second = range(1, middle, step), range(middle, middle + times * step, step)
            if number % 2 == 0:
                uvloop.run(self._ours_new(what, first, step))
                self._hotvirt.down()
                uvloop.run(self._bare_new(folder, what, second, step))
                self._hotvirt.up()
            else:
                self._hotvirt.down()
                uvloop.run(self._bare_new(folder, what, first, step))
                self._hotvirt.up()
                uvloop.run(self._ours_new(what, second, step))
            uvloop.run(end(self._hotvirt))

    async def _ours_new(self, what: str, sizes: range, step: int) -> None:
        async with Owner.of(self._hotvirt) as owner:
            await owner.bring_to(sizes[0])
            for size in sizes:
                self._add(self.ours, what, await timed(owner.change(size + step)))
                await owner.until(rests(size + step, 1))
                await owner.silence()

    async def _bare_new(self, folder: Path, what: str, sizes: range, step: int) -> None:
        async with by_hand(folder) as machine:
            for size in sizes:
                await asyncio.sleep(SILENCE)
                self._add(self.bare, what, await timed(more_vcpus(machine, size + step)))

    @staticmethod
    def _add(times: Times, what: str, seconds: float) -> None:
        times.setdefault(what, []).append(seconds)

    def found(self) -> dict[str, dict[str, float]]:
        return {
            what: {
                "n": min(len(self.ours[what]), len(self.bare[what])),
                "p50_seconds": percentile(self.ours[what], 0.5),
                "p95_seconds": percentile(self.ours[what], 0.95),
                "bare_p50_seconds": percentile(self.bare[what], 0.5),
                "bare_p95_seconds": percentile(self.bare[what], 0.95),
                "ratio_p50": percentile(self.ours[what], 0.5) / percentile(self.bare[what], 0.5),
            }
            for what in self.ours
        }


def measure(state: Path, rounds: int, turns: int, new: tuple[int, int]) -> dict[str, Any]:
    disk = subprocess.run([sys.executable, str(GUEST_BUILD)], stdout=subprocess.PIPE, text=True, check=True)
    hotvirt = Hotvirt(state)
    bench = Bench(hotvirt)
    try:
        hotvirt.up()
        hotvirt.run("image", "import", "hotvirt/demo-guest:latest", disk.stdout.splitlines()[-1])
        if rounds:
            bench.parked(rounds, turns)
        for what, count in zip(NEW, new, strict=True):
            if count:
                bench.new(what, count)
    finally:
        hotvirt.run("down", "--stop-vms")
    return bench.found()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="a few of each, to see that it works")
    options.add_argument(
        "--rounds", type=int, default=3, help="of ten turns each, with parked vCPUs and memory"
    )
    options.add_argument(
        "--new", type=int, default=30, help="at least so many of one vCPU never plugged before"
    )
    options.add_argument("--new-batches", type=int, default=30, help="the same for seven at a time")
    given = options.parse_args()
    rounds, turns, new = (given.rounds, 10, (given.new, given.new_batches))
    if given.quick:
        rounds, turns, new = (1, 2, (1, 1))
    end_with_all_it_started()
    where = os.environ.get("HOTVIRT_BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="hotvirt-bench-", dir=where) as folder:
        found = measure(Path(folder) / "state", rounds, turns, new)
    OUT.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    (OUT / "live.json").write_text(json.dumps({"machine": machine, "live": found}, indent=2) + "\n")
    print(f"{'':18} {'n':>4} {'p50':>10} {'p95':>10} {'bare p50':>10} {'bare p95':>10} {'ratio':>6}")
    for what, row in found.items():
        figures = ("p50_seconds", "p95_seconds", "bare_p50_seconds", "bare_p95_seconds")
        print(
            f"{what:18} {row['n']:4.0f} "
            + " ".join(f"{row[name] * 1000:7.0f} ms" for name in figures)
            + f" {row['ratio_p50']:6.2f}"
        )


if __name__ == "__main__":
    main()
