"""The embedded API: writes, gets, a list of 10,000, fan-out to 100 watches, memory. Run it with `make bench`.

Figures of one machine say little, so each stands beside what the machine can do at best in the same run:
SQLite's own commits, and an aiohttp handler that does nothing. The table goes to the terminal, everything to
`bench/out/api.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from bench.http_load import Connection, Request, hammer

TOKEN = "bench"
VMS = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines"
OUT = Path(__file__).resolve().parent / "out"
BARE = """
import asyncio, sys, uvloop
from aiohttp import web
BODY = open(sys.argv[2], "rb").read()
async def handler(request):
    return web.Response(body=BODY, content_type="application/json")
async def main():
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    await web.UnixSite(runner, sys.argv[1]).start()
    print("ready", flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""


def vm(name: str) -> bytes:
    """A VM as people write them: about 4 KB."""
    devices = {
        "disks": [{"name": f"disk-{n}", "disk": {"bus": "virtio"}} for n in range(4)],
        "interfaces": [{"name": "default", "masquerade": {}, "ports": [{"port": 22}, {"port": 80}]}],
    }
    user_data = "#cloud-config\n" + "\n".join(f"# line {n} of the set-up of this guest" for n in range(50))
    obj = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "name": name,
            "labels": {"app": "bench", "shard": name[-1]},
            "annotations": {"note": "x" * 200},
        },
        "spec": {
            "runStrategy": "Halted",
            "template": {
                "metadata": {"labels": {"kubevirt.io/vm": name}},
                "spec": {
                    "domain": {
                        "cpu": {"sockets": 1, "cores": 2, "maxSockets": 4},
                        "memory": {"guest": "2Gi", "maxGuest": "8Gi"},
                        "devices": devices,
                    },
                    "networks": [{"name": "default", "pod": {}}],
                    "volumes": [
                        *(
                            {"name": f"disk-{n}", "containerDisk": {"image": f"os/disk:{n}"}}
                            for n in range(3)
                        ),
                        {"name": "disk-3", "cloudInitNoCloud": {"userData": user_data}},
                    ],
                },
            },
        },
    }
    return json.dumps(obj, separators=(",", ":")).encode()


def sqlite_commits(folder: Path, size: int, group: int, seconds: float = 1.5) -> float:
    """Rows a second that SQLite itself commits, with the settings of the store."""
    db = sqlite3.connect(folder / f"raw-{group}.db", isolation_level=None)
    for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
        db.execute(f"PRAGMA {pragma}")
    db.execute("CREATE TABLE log (rev INTEGER PRIMARY KEY, key TEXT, data BLOB)")
    rows, data, started = 0, b"x" * size, time.perf_counter()
    while time.perf_counter() - started < seconds:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO log (key, data) VALUES (?, ?)", [("k", data)] * group)
        db.execute("COMMIT")
        rows += group
    taken = time.perf_counter() - started
    db.close()
    return rows / taken


@contextlib.contextmanager
def process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A server that has said its first line."""
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert started.stdout is not None
        if not started.stdout.readline():
            raise RuntimeError(f"{command[:3]} did not start")
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(30)


@contextlib.contextmanager
def api_server(state: Path) -> Iterator[subprocess.Popen[str]]:
    pki = state / "pki"
    if not pki.exists():
        from hotvirt.embedded.state import StateDir

        StateDir(state).prepare()
        pki.mkdir(mode=0o700)
        (pki / "tokens.csv").write_text(f'{TOKEN},bench,1,"system:masters"\n')
    with process([sys.executable, "-m", "hotvirt.embedded.apiserver", "--state-dir", str(state)]) as started:
        yield started


def rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no memory figure for process {pid}")


def cpu_seconds(pid: int) -> float:
    """What a process has used so far; unlike the clock it does not count the others on the machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Work:
    """Requests a second and CPU of the server for each, by name."""

    def __init__(self, socket: Path, token: str, pid: int) -> None:
        self._socket, self._token, self._pid = socket, token, pid
        self.found: dict[str, float] = {}

    async def do(self, name: str, connections: int, total: int, request: Request) -> None:
        before = cpu_seconds(self._pid)
        self.found[name] = await hammer(self._socket, self._token, connections, total, request)
        self.found[f"{name}_cpu_us"] = (cpu_seconds(self._pid) - before) / total * 1e6


@contextlib.contextmanager
def bare_server(folder: Path) -> Iterator[tuple[Path, int]]:
    """An aiohttp server that answers every request with one and the same VM."""
    (folder / "body").write_bytes(vm("bare"))
    socket = folder / "bare.sock"
    with process([sys.executable, "-c", BARE, str(socket), str(folder / "body")]) as server:
        yield socket, server.pid


async def measure_gets(work: Work, bare: Work, total: int, vms: int) -> None:
    """Turn and turn about, so that whatever else the machine does falls on both."""
    rounds = 5
    for name, one, path in (("warm", work, VMS + "/vm-{}"), ("warm", bare, "/{}")):
        await one.do(name, 32, 200, lambda n, path=path: ("GET", path.format(f"{n % vms:06d}"), b""))
    sums: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, one, path in (("gets", work, VMS + "/vm-{}"), ("bare_handler_gets", bare, "/{}")):
            await one.do(
                name, 32, total // rounds, lambda n, path=path: ("GET", path.format(f"{n % vms:06d}"), b"")
            )
            for key in (name, f"{name}_cpu_us"):
                sums.setdefault(key, []).append(one.found[key])
    for one in (work, bare):
        one.found |= {key: sum(values) / len(values) for key, values in sums.items() if key in one.found}


async def measure_fan_out(socket: Path, watchers: int, events: int) -> dict[str, float]:
    """How long until every watch has had every event, the writes included."""
    asker = await Connection.open(socket, TOKEN)
    _, body = await asker.ask("GET", f"{VMS}?limit=1")
    version = json.loads(body)["metadata"]["resourceVersion"]
    watches = [await Connection.open(socket, TOKEN) for _ in range(watchers)]
    for watch in watches:
        await watch.send("GET", f"{VMS}?watch=1&resourceVersion={version}")
    readers = [asyncio.create_task(watch.lines(events)) for watch in watches]
    started = time.perf_counter()
    writes = await hammer(socket, TOKEN, 16, events, lambda n: ("POST", VMS, vm(f"watched-{n:06d}")))
    written = time.perf_counter() - started
    await asyncio.gather(*readers)
    taken = time.perf_counter() - started
    for watch in watches:
        watch.close()
    return {
        "events_per_second": watchers * events / taken,
        "writes_per_second_meanwhile": writes,
        "seconds_behind_the_writes": taken - written,
    }


async def measure_api(state: Path, vms: int, quick: bool) -> dict[str, float]:
    socket, found = state / "api.sock", {}
    with api_server(state) as server:
        found["rss_empty_mib"] = rss_mib(server.pid)
        work = Work(socket, TOKEN, server.pid)
        few = 300 if quick else 1500
        rest = vms - few
        await work.do("writes_single", 1, few, lambda n: ("POST", VMS, vm(f"one-{n:06d}")))
        await work.do("writes_concurrent", 64, rest, lambda n: ("POST", VMS, vm(f"vm-{n:06d}")))
        found["rss_mib"] = rss_mib(server.pid)
        total = 2000 if quick else 10000
        with bare_server(state.parent) as (bare_socket, bare_pid):
            bare = Work(bare_socket, "", bare_pid)
            await measure_gets(work, bare, total, rest)
        found |= work.found | bare.found
        asker = await Connection.open(socket, TOKEN)
        for name, query in (
            ("list", ""),
            ("list_by_label", "?labelSelector=shard%3D7"),
            ("list_page_of_500", "?limit=500"),
        ):
            started = time.perf_counter()
            status, body = await asker.ask("GET", VMS + query)
            found[f"{name}_ms"] = (time.perf_counter() - started) * 1000
            found[f"{name}_mib"] = len(body) / (1 << 20)
            assert status == 200, body[:300]
        asker.close()
        watches, events = 100, 100 if quick else 500
        before = cpu_seconds(server.pid)
        fan = await measure_fan_out(socket, watches, events)
        fan["cpu_us"] = (cpu_seconds(server.pid) - before) / (watches * events) * 1e6
        found |= {f"fan_out_{name}": value for name, value in fan.items()}
    started = time.perf_counter()
    with api_server(state):
        found["reopen_seconds"] = time.perf_counter() - started
    return found


async def measure(vms: int, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(
        prefix="hotvirt-bench-", dir=os.environ.get("HOTVIRT_BENCH_DIR")
    ) as name:
        folder = Path(name)
        size = len(vm("vm-000000"))
        found: dict[str, Any] = {
            "vms": vms,
            "vm_bytes": size,
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "sqlite_commits_single": sqlite_commits(folder, size, 1),
            "sqlite_rows_in_groups_of_50": sqlite_commits(folder, size, 50),
        }
        return found | await measure_api(folder / "state", vms, quick)


def rows(found: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """The figure, the server's CPU for one of them, and how it stands to the best that this machine gives."""
    single, grouped = found["sqlite_commits_single"], found["sqlite_rows_in_groups_of_50"]
    bare, count = found["bare_handler_gets"], found["vms"]

    def each(name: str) -> str:
        return f"{found[f'{name}_cpu_us']:,.0f} us"

    def rate(name: str) -> str:
        return f"{found[name]:,.0f} /s"

    yield "SQLite alone, commits of one row", f"{single:,.0f} /s", "", ""
    yield "SQLite alone, rows in groups of 50", f"{grouped:,.0f} /s", "", ""
    yield "aiohttp alone, GET of a VM", rate("bare_handler_gets"), each("bare_handler_gets"), ""
    for name, what in (
        ("writes_single", "create a VM, one after the other"),
        ("writes_concurrent", "create VMs, 64 at a time"),
    ):
        yield what, rate(name), each(name), f"{found[name] / single:.2f} of SQLite's single commits"
    yield "get a VM, 32 at a time", rate("gets"), each("gets"), f"{found['gets'] / bare:.2f} of aiohttp alone"
    listed = found["list_ms"]
    what = f"list {count:,} VMs ({found['list_mib']:.0f} MiB)"
    yield what, f"{listed:,.0f} ms", "", f"{listed * 1000 / count:.1f} us a VM"
    yield "list a tenth of them by label", f"{found['list_by_label_ms']:,.0f} ms", "", ""
    yield "list a page of 500", f"{found['list_page_of_500_ms']:,.1f} ms", "", ""
    writes = found["fan_out_writes_per_second_meanwhile"]
    fan = rate("fan_out_events_per_second")
    yield "events to 100 watches", fan, each("fan_out"), f"at {writes:,.0f} writes/s"
    empty = f"{found['rss_empty_mib']:,.0f} MiB when empty"
    yield f"memory with {count:,} VMs", f"{found['rss_mib']:,.0f} MiB", "", empty
    yield f"start again with {count:,} VMs", f"{found['reopen_seconds']:.2f} s", "", ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the embedded Kubernetes API.")
    parser.add_argument("--vms", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, to see that it works")
    arguments = parser.parse_args()
    found = uvloop.run(measure(2000 if arguments.quick else arguments.vms, arguments.quick))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "api.json").write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
    print(f"{'':<40} {'':>14} {'server CPU':>12}")
    for what, figure, cpu, ratio in rows(found):
        print(f"{what:<40} {figure:>14} {cpu:>12}   {ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
