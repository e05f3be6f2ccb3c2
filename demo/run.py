"""`make demo`: boot a real guest on this machine and give it a second vCPU while it runs.

Everything happens in a throw-away state folder, and nothing is left running afterwards, whatever happens.
The figures in the closing table come from a web server inside the guest, not from Hotvirt. Exit status 0
means that the guest itself saw the second vCPU, in the same boot.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from rich.console import Console
from rich.table import Table

from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.api.resources import EVENTS, PODS, VMIS, VMS
from hotvirt.kube.client import Client
from hotvirt.kube.config import load_kubeconfig
from hotvirt.kube.errors import ApiError
from hotvirt.kube.informer import Informer

REPOSITORY = Path(__file__).resolve().parents[1]
HOTVIRT = Path(sys.executable).with_name("hotvirt")
MANIFEST = REPOSITORY / "examples/01-first-vm.yaml"
IMAGE = "hotvirt/demo-guest:latest"
NAMESPACE = "default"
GUEST_PORT = 8080  # not 80: without root, low ports of the guest are not reachable
BOOT_LIMIT = 300.0
RESIZE_LIMIT = 120.0
STARTED = time.monotonic()


class DemoFailed(Exception):
    """What did not happen, as a sentence."""


class Facts(msgspec.Struct):
    """What the guest says of itself."""

    boot_id: str
    uptime: float
    hostname: str
    cpus_online: int
    cpus_present: int
    mem_total_kb: int


def say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


def hotvirt(*arguments: str, state: Path) -> None:
    """Run the CLI as a user would. A session of its own keeps a Ctrl-C here from tearing it down half-way."""
    environment = os.environ | {"HOTVIRT_STATE_DIR": str(state)}
    done = subprocess.run(
        [HOTVIRT, *arguments], env=environment, capture_output=True, text=True, start_new_session=True
    )
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise DemoFailed(f"`hotvirt {' '.join(arguments)}` failed: {said}")


@contextlib.contextmanager
def one_machine() -> Iterator[Path]:
    """`hotvirt up` in a throw-away folder; on the way out everything is stopped and removed."""
    with tempfile.TemporaryDirectory(prefix="hotvirt-demo-") as folder:
        state = Path(folder)
        try:
            hotvirt("up", "--detach", "--port", "0", state=state)
            yield state
        except Exception:
            show_log(state)
            raise
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            say("stopping the guest and Hotvirt")
            stop(state)


def stop(state: Path) -> None:
    """Stop everything. What counts is that nothing runs any more, also where `up` came only half-way."""
    trouble = ""
    try:
        hotvirt("down", "--stop-vms", state=state)
    except DemoFailed as error:
        trouble = f" ({error})"
    if left := processes_of(state):
        raise DemoFailed(f"still running after `hotvirt down --stop-vms`: {', '.join(left)}{trouble}")


def show_log(state: Path) -> None:
    log = state / "hotvirt.log"
    if log.exists():
        end = log.read_text().splitlines()[-20:]
        print("--- the end of hotvirt.log ---", *end, sep="\n", file=sys.stderr)


def processes_of(state: Path) -> list[str]:
    """Every process that has the state folder in its command line or environment, except this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended while we looked, or another user's
            command = (process / "cmdline").read_bytes()
            text = command + (process / "environ").read_bytes()
            if str(state).encode() in text and int(process.name) != os.getpid():
                found.append(f"{process.name} ({command.replace(bytes(1), b' ').decode()[:60].strip()})")
    return found


class Watcher:
    """The demo's VMI as it changes; tells of each new phase."""

    def __init__(self, client: Client, name: str) -> None:
        self._name = name
        self._changed = asyncio.Event()
        self._phase = ""
        self.informer = Informer(client, VMIS, VirtualMachineInstance, namespace=NAMESPACE)
        self.informer.add_handler(self._on_change)

    def _on_change(self, _: VirtualMachineInstance | None, vmi: VirtualMachineInstance | None) -> None:
        self._changed.set()
        if vmi and vmi.status.phase != self._phase:
            self._phase = vmi.status.phase
            say(f"VMI {self._name}: {self._phase or 'made'}")

    async def until(
        self, true: Callable[[VirtualMachineInstance], object], what: str, seconds: float
    ) -> VirtualMachineInstance:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self._changed.clear()
                    vmi = self.informer.get(NAMESPACE, self._name)
                    if vmi and true(vmi):
                        return vmi
                    if vmi and vmi.status.phase == "Failed":
                        raise DemoFailed(
                            f"the machine failed: {vmi.status.reason or 'what it said stands below'}"
                        )
                    await self._changed.wait()
        except TimeoutError:
            raise DemoFailed(f"{what} did not come within {seconds:.0f} s") from None


async def ask_guest(address: str) -> Facts:
    """What the web server in the guest reports. It tells nobody when it is up, so ask until it answers."""
    deadline = time.monotonic() + BOOT_LIMIT
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        while True:
            try:
                async with session.get(f"http://{address}:{GUEST_PORT}/cgi-bin/facts") as answer:
                    answer.raise_for_status()
                    return msgspec.json.decode(await answer.read(), type=Facts)
            except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
                if time.monotonic() > deadline:
                    raise DemoFailed(
                        f"the guest's web server at {address} does not answer: {error}"
                    ) from None
                await asyncio.sleep(0.2)


def guest_sees(vmi: VirtualMachineInstance) -> int:
    return vmi.status.hotvirt.vcpus.online if vmi.status.hotvirt.vcpus else 0


def address_of(vmi: VirtualMachineInstance) -> str:
    return next((each.ip_address for each in vmi.status.interfaces if each.ip_address), "")


def is_up(vmi: VirtualMachineInstance) -> bool:
    return guest_sees(vmi) > 0 and address_of(vmi) != ""


async def grow(state: Path) -> tuple[Facts, Facts, str, float]:
    """Boot the first example, patch it to two sockets, and ask the guest before and after."""
    manifest: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    name = manifest["metadata"]["name"]
    async with Client(load_kubeconfig(state / "kubeconfig")) as client:
        client.on_warning = lambda text: say(f"API server: {text}")
        watcher = Watcher(client, name)
        informer = asyncio.create_task(watcher.informer.run())
        try:
            await client.create(VMS, manifest, NAMESPACE)
            say(f"applied {MANIFEST.relative_to(REPOSITORY)}")
            vmi = await watcher.until(
                lambda vmi: guest_sees(vmi) and address_of(vmi), "the guest", BOOT_LIMIT
            )
            before = await ask_guest(address_of(vmi))
            say(f"the guest is up (since {before.uptime:.1f} s) and sees {before.cpus_online} vCPU")

            asked = time.monotonic()
            sockets = {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": 2}}}}}}
            await client.patch(VMS, name, sockets, NAMESPACE)
            say("patched the VM: sockets 1 → 2")
            vmi = await watcher.until(lambda vmi: guest_sees(vmi) == 2, "the second vCPU", RESIZE_LIMIT)
            took = time.monotonic() - asked
            after = await ask_guest(address_of(vmi))
            say(f"the guest sees {after.cpus_online} vCPUs, {took:.1f} s after the patch")
            return before, after, vmi.status.hotvirt.accelerator, took
        except DemoFailed:
            with contextlib.suppress(ApiError):  # it is the demo's failure that counts
                await show_trouble(client)
            raise
        finally:
            informer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await informer


async def show_trouble(client: Client) -> None:
    """What the parts have complained about, and what the hypervisor said."""
    for event in (await client.list(EVENTS, NAMESPACE, field_selector="type=Warning")).items:
        print(f"event: {event.get('reason')}: {event.get('message')}", file=sys.stderr)
    for pod in (await client.list(PODS, NAMESPACE)).items:
        name = pod["metadata"]["name"]
        log = client.lines("GET", PODS.path(NAMESPACE, name, "log"), params={"container": "compute"})
        async for line in log:
            print(f"{name}: {line.decode(errors='replace')}", file=sys.stderr)


def show(before: Facts, after: Facts, accelerator: str, took: float) -> None:
    table = Table(title=f"What the guest saw (accelerator {accelerator or 'unknown'})", title_justify="left")
    for column in ("", "before", "after"):
        table.add_column(column)
    table.add_row("vCPUs online", str(before.cpus_online), str(after.cpus_online))
    table.add_row("vCPUs present", str(before.cpus_present), str(after.cpus_present))
    table.add_row("boot id", before.boot_id[:13] + "…", after.boot_id[:13] + "…")
    table.add_row("uptime", f"{before.uptime:.1f} s", f"{after.uptime:.1f} s")
    table.add_row("memory", f"{before.mem_total_kb // 1024} MiB", f"{after.mem_total_kb // 1024} MiB")
    Console().print(table)
    print(f"One edit of the VM, {took:.1f} s later the guest had it: no restart, no migration.")


def verdict(before: Facts, after: Facts) -> None:
    if before.cpus_online != 1 or after.cpus_online != 2:
        raise DemoFailed(
            f"the guest saw {before.cpus_online} and then {after.cpus_online} vCPUs, not 1 and 2"
        )
    if before.boot_id != after.boot_id or after.uptime < before.uptime:
        raise DemoFailed("the guest was restarted on the way")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    try:
        built = subprocess.run(
            [REPOSITORY / "demo/guest/build"], stdout=subprocess.PIPE, text=True, check=True
        )
        disk = built.stdout.splitlines()[-1]
        with one_machine() as state:
            say(f"`hotvirt up` answers; state in {state}")
            hotvirt("image", "import", IMAGE, disk, state=state)
            say(f"imported the demo guest as {IMAGE}")
            result = asyncio.run(grow(state))
        show(*result)
        verdict(*result[:2])
    except (DemoFailed, ApiError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError:
        return 1  # the guest's builder has said why
    except KeyboardInterrupt:
        print("demo: interrupted; everything is stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
