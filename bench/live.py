"""From the patch to the guest, beside a bare script that does the same to the same guest (`make bench`).

One real guest. In turns: Hotvirt gets an edit of the VM, and the clock stops when the VMI's status has what
the guest itself reports; then Hotvirt is stopped (the guest goes on), and a bare script does the same batch
over one connection to QEMU's monitor and one to the guest's agent. Both find vCPUs that were plugged once and
parked, as every change but the first does without KVM. The table goes to the terminal, everything to
`bench/out/live.json`.
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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.resize import HOTVIRT, NAMESPACE, OUT, percentile, vm
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
GUEST_BUILD = Path(__file__).resolve().parents[1] / "demo" / "guest" / "build"
# What is measured: vCPUs and GiB of memory, each from (1, 1) and back again.
CHANGES = {"+1 vCPU": (2, 1), "+7 vCPUs": (8, 1), "+1 GiB": (1, 2)}
Times = dict[str, list[float]]


def manifest() -> dict[str, Any]:
    found = vm(NAME)
    spec = found["spec"]["template"]["spec"]
    spec["domain"]["cpu"] = {"sockets": 1, "maxSockets": 8}
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
        self.run("up", "--detach", "--port", "0", "--allocatable", "cpu=32,memory=64Gi")


async def until(client: Client, holds: Callable[[dict[str, Any]], Any]) -> None:
    listed = await client.list(VMIS, NAMESPACE)
    if any(holds(item) for item in listed.items):
        return
    async for event in client.watch(VMIS, NAMESPACE, resource_version=listed.resource_version):
        if holds(event.object):
            return


def has(vcpus: int, gib: int) -> Callable[[dict[str, Any]], bool]:
    def holds(vmi: dict[str, Any]) -> bool:
        status = vmi.get("status", {})
        memory = status.get("memory", {}).get("guestCurrent")
        return (
            status.get("currentCPUTopology", {}).get("sockets") == vcpus
            and memory is not None
            and Quantity(memory).value == gib * GIB
        )

    return holds


def rests(vmi: dict[str, Any]) -> bool:
    status = vmi.get("status", {})
    changes = any(each["type"].startswith("Hot") for each in status.get("conditions", ()))
    return has(1, 1)(vmi) and not changes and bool(status.get("hotvirt", {}).get("bootId"))


async def edit(client: Client, vcpus: int, gib: int) -> None:
    domain = {"cpu": {"sockets": vcpus}, "memory": {"guest": f"{gib}Gi"}}
    await client.patch(VMS, NAME, {"spec": {"template": {"spec": {"domain": domain}}}}, NAMESPACE)


async def timed(change: Callable[[], Awaitable[Any]]) -> float:
    begun = time.perf_counter()
    async with asyncio.timeout(PATIENCE):
        await change()
    return time.perf_counter() - begun


async def by_hotvirt(hotvirt: Hotvirt, times: Times, turns: int) -> None:
    async with Client(load_kubeconfig(hotvirt.state / "kubeconfig")) as client:

        async def there(vcpus: int, gib: int) -> None:
            seen = asyncio.create_task(until(client, has(vcpus, gib)))
            await edit(client, vcpus, gib)
            await seen

        for what, (vcpus, gib) in CHANGES.items():
            for _ in range(turns):
                async with asyncio.timeout(PATIENCE):
                    await until(client, rests)
                times[what].append(await timed(lambda vcpus=vcpus, gib=gib: there(vcpus, gib)))
                await edit(client, 1, 1)
        async with asyncio.timeout(PATIENCE):
            await until(client, rests)


async def by_hand(folder: Path, times: Times, turns: int) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    machine: RunningMachine = await QemuDriver().connect(file)
    try:

        async def there(vcpus: int, gib: int) -> None:
            if gib > 1:
                await machine.set_memory((gib - 1) * GIB, PATIENCE)
            else:
                await machine.plug_vcpus(vcpus)
                assert await machine.use_vcpus(vcpus, PATIENCE) == vcpus

        for what, (vcpus, gib) in CHANGES.items():
            for _ in range(turns):
                times[what].append(await timed(lambda vcpus=vcpus, gib=gib: there(vcpus, gib)))
                await machine.use_vcpus(1, PATIENCE)
                await machine.set_memory(0, PATIENCE)
    finally:
        machine.close()
        os.close(file)


async def boot(hotvirt: Hotvirt) -> Path:
    """The guest, at rest, with all its vCPUs plugged once; its run folder."""
    async with Client(load_kubeconfig(hotvirt.state / "kubeconfig")) as client, asyncio.timeout(2 * PATIENCE):
        await client.create(VMS, manifest(), NAMESPACE)
        await until(client, rests)
        await edit(client, 8, 1)
        await until(client, has(8, 1))
        await edit(client, 1, 1)
        await until(client, rests)
        (pod,) = (await client.list(PODS, NAMESPACE)).items
    return run_folder(hotvirt.state, pod["metadata"]["uid"])


def measure(state: Path, rounds: int, turns: int) -> dict[str, Any]:
    disk = subprocess.run([sys.executable, str(GUEST_BUILD)], stdout=subprocess.PIPE, text=True, check=True)
    hotvirt, ours, bare = Hotvirt(state), {name: [] for name in CHANGES}, {name: [] for name in CHANGES}
    hotvirt.up()
    try:
        hotvirt.run("image", "import", "hotvirt/demo-guest:latest", disk.stdout.splitlines()[-1])
        folder = asyncio.run(boot(hotvirt))
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            asyncio.run(by_hotvirt(hotvirt, ours, turns))
            hotvirt.run("down")
            asyncio.run(by_hand(folder, bare, turns))
            hotvirt.up()
    finally:
        hotvirt.run("down", "--stop-vms")
    return {
        what: {
            "n": len(ours[what]),
            "p50_seconds": percentile(ours[what], 0.5),
            "p95_seconds": percentile(ours[what], 0.95),
            "bare_p50_seconds": percentile(bare[what], 0.5),
            "bare_p95_seconds": percentile(bare[what], 0.95),
            "ratio_p50": percentile(ours[what], 0.5) / percentile(bare[what], 0.5),
        }
        for what in CHANGES
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="two rounds of two, to see that it works")
    options.add_argument("--rounds", type=int, default=6)
    given = options.parse_args()
    rounds, turns = (2, 2) if given.quick else (given.rounds, 5)
    with tempfile.TemporaryDirectory(prefix="hotvirt-bench-") as folder:
        found = measure(Path(folder) / "state", rounds, turns)
    OUT.mkdir(exist_ok=True)
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    (OUT / "live.json").write_text(json.dumps({"machine": machine, "live": found}, indent=2) + "\n")
    print(f"{'':10} {'n':>4} {'p50':>9} {'p95':>9} {'bare p50':>9} {'bare p95':>9} {'ratio':>6}")
    for what, row in found.items():
        print(
            f"{what:10} {row['n']:4} {row['p50_seconds']:7.2f} s {row['p95_seconds']:7.2f} s "
            f"{row['bare_p50_seconds']:7.2f} s {row['bare_p95_seconds']:7.2f} s {row['ratio_p50']:6.2f}"
        )


if __name__ == "__main__":
    main()
