"""VMs created at once on a real kube-apiserver: how soon their Pods exist, and what the controllers need.

An etcd and a kube-apiserver of their own, the controllers in one process, no node: the clock runs from the
first VM to the last Pod. CPU and memory are those of the controllers' process; beside them stand the CPU of
the others (they share the machine) and the requests that the API server counted. Run it with `make bench`.
The table goes to the terminal, everything to `bench/out/create.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from tests.targets import real
from tests.targets.target import die_with_parent

from bench.api import cpu_seconds, process, rss_mib
from bench.resize import NAMESPACE, OUT, vm
from hotvirt.api import names
from hotvirt.api.resources import NAMESPACES, PODS, VMS
from hotvirt.controllers.manager import Manager
from hotvirt.kube.client import Client
from hotvirt.kube.config import load_kubeconfig
from hotvirt.kube.errors import AlreadyExists
from hotvirt.kube.events import Recorder
from hotvirt.kube.memory import quiet_the_collector

AT_A_TIME = 64
PATIENCE = 600.0
WARM = 20
"""VMs before the measured ones: code and connections of both sides are warm then."""
REQUEST_TOTAL = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
QUIET_SECONDS = 4
"""For so long the controllers use no CPU that the kernel counts: they are at rest."""
LABEL = re.compile(r'(\w+)="([^"]*)"')


async def controllers(kubeconfig: Path) -> None:
    """The process that is measured."""
    async with Client(load_kubeconfig(kubeconfig)) as client:
        recorder = Recorder(client, "hotvirt-controller")
        manager = Manager(client, recorder)
        work = asyncio.create_task(manager.run())
        await manager.synced()
        quiet_the_collector()
        print("ready", flush=True)
        await work


class Name(msgspec.Struct):
    name: str = ""


class Named(msgspec.Struct):
    """All that the load looks at: it should cost little beside what is measured."""

    metadata: Name


class Pods:
    """Counts the launcher Pods as they come, by one watch."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.seen: set[str] = set()
        self._more = asyncio.Event()

    async def run(self) -> None:
        while True:  # a watch ends after some minutes
            listed = await self._client.list(PODS, NAMESPACE, cls=Named)
            self._see(*listed.items)
            version = listed.resource_version
            async for event in self._client.watch(PODS, NAMESPACE, resource_version=version, cls=Named):
                if event.type == "ADDED":
                    self._see(event.object)

    def _see(self, *pods: Named) -> None:
        self.seen |= {pod.metadata.name for pod in pods}
        self._more.set()

    async def reach(self, count: int) -> None:
        while len(self.seen) < count:
            self._more.clear()
            await self._more.wait()


async def rest(pid: int) -> None:
    """Until a process does nothing any more. That has no event, so it is asked every second."""
    quiet = 0
    while quiet < QUIET_SECONDS:
        before = cpu_seconds(pid)
        await asyncio.sleep(1.0)
        quiet = quiet + 1 if cpu_seconds(pid) == before else 0


class Work:
    """What everybody on the machine did for the VMs: CPU by process, requests by verb and resource."""

    def __init__(self, client: Client, controller: int) -> None:
        self._client = client
        self._processes = {"load": os.getpid(), "controllers": controller, **servers()}

    async def begin(self) -> None:
        self._requests = await self._counted()
        self._cpu = self._used()

    async def each(self, count: int) -> dict[str, dict[str, float]]:
        used, requests = self.cpu(count), await self._counted()
        return {
            "cpu_ms": used,
            "requests": {
                name: number / count for name, number in sorted((requests - self._requests).items())
            },
        }

    def cpu(self, count: int) -> dict[str, float]:
        """Milliseconds for each VM so far, by process."""
        return {name: (used - self._cpu[name]) / count * 1000 for name, used in self._used().items()}

    def _used(self) -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in self._processes.items()}

    async def _counted(self) -> Counter[str]:
        """Of the namespaced kinds: what else the API server does for itself is not about VMs."""
        text = await self._client.request("GET", "/metrics", cls=bytes)
        found: Counter[str] = Counter()
        for labels, number in REQUEST_TOTAL.findall(text.decode()):
            label = dict(LABEL.findall(labels))
            if label["scope"] in ("resource", "namespace") and label["resource"] != "leases":
                what = "/".join(filter(None, (label["resource"], label["subresource"])))
                found[f"{label['verb']} {what} {label['code']}"] += int(float(number))
        return found


def servers() -> dict[str, int]:
    """Name and number of what this process started: etcd and the API server."""
    started = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    names_of = {Path(f"/proc/{pid}/comm").read_text().strip(): int(pid) for pid in started}
    return {name: pid for name, pid in names_of.items() if name in real.PROGRAMS}


async def create_all(client: Client, numbers: range) -> None:
    turns = asyncio.Semaphore(AT_A_TIME)

    async def one(number: int) -> None:
        async with turns:
            await client.create(VMS, vm(f"vm-{number}"), NAMESPACE, cls=bytes)

    await asyncio.gather(*(one(number) for number in numbers))


async def measure(kubeconfig: Path, count: int) -> dict[str, Any]:
    async with Client(load_kubeconfig(kubeconfig)) as client, asyncio.timeout(PATIENCE):
        for namespace in (NAMESPACE, names.NAMESPACE):
            try:
                await client.create(NAMESPACES, {"metadata": {"name": namespace}})
            except AlreadyExists:
                continue
        command = [sys.executable, "-m", "bench.create", "--controllers", str(kubeconfig)]
        with process(command) as controller:
            pods = Pods(client)
            watch = asyncio.create_task(pods.run())
            await create_all(client, range(WARM))
            await pods.reach(WARM)
            await rest(controller.pid)
            work = Work(client, controller.pid)
            await work.begin()
            resident = rss_mib(controller.pid)
            begun = time.perf_counter()
            await asyncio.gather(create_all(client, range(WARM, WARM + count)), pods.reach(WARM + count))
            took = time.perf_counter() - begun
            until_pods = work.cpu(count)
            await rest(controller.pid)  # what is written behind the Pods counts too
            told = time.perf_counter() - begun - QUIET_SECONDS
            each = await work.each(count)
            found = {
                "vms": count,
                "vms_per_second": count / took,
                "cpu_ms_each": each["cpu_ms"]["controllers"],
                "each": each | {"cpu_ms_until_pods": until_pods},
                "seconds_until_all_is_told": told,
                "resident_mb_each": (rss_mib(controller.pid) - resident) * 1.048576 / count,
                "resident_mib": rss_mib(controller.pid),
            }
            watch.cancel()
            await asyncio.wait([watch])
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the creation of many VMs.")
    parser.add_argument("--vms", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="fewer machines, to see that it works")
    parser.add_argument("--controllers", type=Path, metavar="KUBECONFIG", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.controllers:
        die_with_parent()
        uvloop.run(controllers(arguments.controllers))
        return 0
    count = 100 if arguments.quick else arguments.vms
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before it was done"))  # with all it started
    with ExitStack() as started:
        folder = started.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("HOTVIRT_BENCH_DIR")))
        target = real.start(Path(folder))
        started.callback(target.stop)
        found = uvloop.run(measure(target.kubeconfig, count))
    found["machine"] = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "create.json").write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
    print(
        f"{count} VMs at once: {found['vms_per_second']:.0f} VMs/s until their Pods exist   "
        f"CPU {found['cpu_ms_each']:.1f} ms each   memory {found['resident_mb_each']:.3f} MB each"
    )
    for name, used in found["each"]["cpu_ms"].items():
        before = found["each"]["cpu_ms_until_pods"][name]
        print(f"  {name:16} {before:5.1f} ms CPU a VM until the Pods exist, {used:5.1f} ms in all")
    for request, number in found["each"]["requests"].items():
        print(f"  {number:6.3f} {request}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
