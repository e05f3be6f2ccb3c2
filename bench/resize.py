"""Resizes of many machines on the driver that answers at once. Run it with `make bench`.

A `hotvirt up` of its own gets 1,000 VMs, then every one of them an edit of its vCPUs, so many at a time. For
each edit: the time from the patch to the status that says all of it is done. CPU and memory are those of the
one process that has everything: API, scheduler, node, node agent and controllers. The table goes to the
terminal, everything to `bench/out/resize.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from hotvirt.api.resources import VMIS, VMS
from hotvirt.embedded.state import StateDir
from hotvirt.kube.client import Client
from hotvirt.kube.config import load_kubeconfig

OUT = Path(__file__).resolve().parent / "out"
HOTVIRT = Path(sys.executable).parent / "hotvirt"
NAMESPACE = "default"
AT_A_TIME = 64
PATIENCE = 1800.0
T = TypeVar("T")


def vm(name: str) -> dict[str, Any]:
    domain = {
        "cpu": {"sockets": 1, "maxSockets": 4},
        "memory": {"guest": "1Gi"},
        "devices": {"interfaces": [{"name": "default", "masquerade": {}}]},
    }
    spec = {
        "domain": domain,
        "networks": [{"name": "default", "pod": {}}],
        "terminationGracePeriodSeconds": 0,
    }
    return {
        "apiVersion": VMS.api_version,
        "kind": VMS.kind,
        "metadata": {"name": name},
        "spec": {"runStrategy": "Always", "template": {"spec": spec}},
    }


class Watched:
    """Tells when a VMI is at rest with so many sockets, by one watch of all of them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waits: dict[tuple[str, int], asyncio.Future[float]] = {}

    def reaches(self, name: str, sockets: int) -> asyncio.Future[float]:
        """The clock when it was so."""
        return self._waits.setdefault((name, sockets), asyncio.get_running_loop().create_future())

    async def run(self) -> None:
        while True:  # a watch ends after some minutes
            listed = await self._client.list(VMIS, NAMESPACE)
            for vmi in listed.items:
                self._look(vmi)
            async for event in self._client.watch(VMIS, NAMESPACE, resource_version=listed.resource_version):
                if event.type == "MODIFIED":
                    self._look(event.object)

    def _look(self, vmi: dict[str, Any]) -> None:
        status = vmi.get("status", {})
        sockets = status.get("currentCPUTopology", {}).get("sockets")
        changes = any(each["type"].startswith("Hot") for each in status.get("conditions", ()))
        settled = status.get("hotvirt", {}).get("settledGeneration") == vmi["metadata"]["generation"]
        wait = self._waits.get((vmi["metadata"]["name"], sockets))
        if wait is not None and not wait.done() and settled and not changes:
            wait.set_result(time.perf_counter())


async def for_each(what: str, names: list[str], one: Callable[[str], Awaitable[T]]) -> list[T]:
    """So many at a time, and how far it is now and then."""
    turns = asyncio.Semaphore(AT_A_TIME)

    async def in_turn(name: str) -> T:
        async with turns:
            return await one(name)

    works = [asyncio.create_task(in_turn(name)) for name in names]
    left: set[asyncio.Task[T]] = set(works)
    while left:
        _, left = await asyncio.wait(left, timeout=10.0)
        print(f"{what}: {len(works) - len(left)} of {len(works)}", file=sys.stderr)
    return [work.result() for work in works]


async def resize_all(client: Client, watched: Watched, names: list[str], sockets: int) -> list[float]:
    """Every machine once; the seconds that each took."""
    change = {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": sockets}}}}}}

    async def one(name: str) -> float:
        done = watched.reaches(name, sockets)
        begun = time.perf_counter()
        await client.patch(VMS, name, change, NAMESPACE)
        return await done - begun

    return await for_each(f"{sockets} sockets", names, one)


async def boot_all(client: Client, watched: Watched, names: list[str]) -> None:
    async def one(name: str) -> None:
        done = watched.reaches(name, 1)
        await client.create(VMS, vm(name), NAMESPACE)
        await done

    await for_each("boots", names, one)


def end_with_all_it_started() -> None:
    """A bench that is told to end (`timeout` does it) leaves nothing running."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before it was done"))


def used(pid: int) -> tuple[float, int]:
    """Seconds of CPU so far, and bytes of resident memory now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def measure(state: Path, count: int) -> dict[str, Any]:
    running = StateDir(state).running()
    assert running is not None
    names = [f"vm-{number}" for number in range(count)]
    async with Client(load_kubeconfig(state / "kubeconfig")) as client, asyncio.timeout(PATIENCE):
        watched = Watched(client)
        watch = asyncio.create_task(watched.run())
        begun = time.perf_counter()
        await boot_all(client, watched, names)
        booted = time.perf_counter() - begun
        found: dict[str, Any] = {"vms": count, "at_a_time": AT_A_TIME, "boots_per_second": count / booted}
        for what, sockets in (("grow", 4), ("shrink", 2)):
            cpu, _ = used(running.pid)
            begun = time.perf_counter()
            times = await resize_all(client, watched, names, sockets)
            took = time.perf_counter() - begun
            after, resident = used(running.pid)
            found[what] = {
                "resizes_per_second": count / took,
                "p50_seconds": percentile(times, 0.5),
                "p99_seconds": percentile(times, 0.99),
                "cpu_ms_each": (after - cpu) / count * 1000,
                "resident_bytes": resident,
            }
        watch.cancel()
        await asyncio.wait([watch])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure resizes of many machines.")
    parser.add_argument("--vms", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="fewer machines, to see that it works")
    arguments = parser.parse_args()
    count = 50 if arguments.quick else arguments.vms
    end_with_all_it_started()
    with tempfile.TemporaryDirectory(dir=os.environ.get("HOTVIRT_BENCH_DIR")) as folder:
        state = Path(folder) / "state"
        hotvirt = [str(HOTVIRT)]
        environment = os.environ | {"HOTVIRT_STATE_DIR": str(state)}
        start = ["up", "--detach", "--port", "0", "--hypervisor", "instant"]
        subprocess.run(
            [*hotvirt, *start, "--allocatable", "cpu=100000,memory=100000Gi"],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        try:
            found = uvloop.run(measure(state, count))
        finally:
            subprocess.run(
                [*hotvirt, "down", "--stop-vms"], env=environment, check=True, stdout=subprocess.DEVNULL
            )
    found["machine"] = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "resize.json").write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
    print(f"{count} VMs, {AT_A_TIME} edits at a time; {found['boots_per_second']:.0f} boots/s")
    for what in ("grow", "shrink"):
        row = found[what]
        print(
            f"{what:<8} {row['resizes_per_second']:6.1f} /s   p50 {row['p50_seconds'] * 1000:6.0f} ms   "
            f"p99 {row['p99_seconds'] * 1000:6.0f} ms   CPU {row['cpu_ms_each']:5.1f} ms each   "
            f"memory {row['resident_bytes'] >> 20} MiB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
