"""`hotvirt up` killed in the middle of writes, and upgraded: nothing acknowledged is lost, guests go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hotvirt
from hotvirt.api.resources import CONFIGMAPS
from hotvirt.kube.client import Client
from hotvirt.kube.config import load_kubeconfig
from hotvirt.kube.errors import AlreadyExists, ApiError, Unreachable
from tests.scenarios.place import demo_vm
from tests.scenarios.shell import wait_for

from .up import Up

TIMES = int(os.environ.get("HOTVIRT_SOAK", "10"))
WRITERS = 8
ANSWERS_WITHIN = 60.0
Eventually = Callable[..., Any]
MACHINE = demo_vm("survivor")


def facts(address: str) -> dict[str, Any]:
    """What the guest's own web server says; empty while it does not answer."""
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"http://{address}/cgi-bin/facts", timeout=10) as page,
    ):
        found: dict[str, Any] = json.load(page)
        return found
    return {}


def address(up: Up) -> str:
    return str(up.get("vmi", "survivor")["status"]["interfaces"][0]["ipAddress"])


async def write_until_gone(
    client: Client, round_: int, writer: int, known: dict[str, str], begun: asyncio.Event
) -> None:
    """Make objects one after the other; what was answered is known, under the uid it was given."""
    for number in range(100_000):
        name = f"kept-{round_}-{writer}-{number}"
        try:
            made = await client.create(CONFIGMAPS, {"metadata": {"name": name}}, "default")
        except AlreadyExists:
            continue  # a try that came through although its answer did not
        except (ApiError, Unreachable, OSError):
            return
        known[name] = made["metadata"]["uid"]
        begun.set()


async def killed_among_writes(up: Up, round_: int, known: dict[str, str], after: float) -> None:
    begun = asyncio.Event()
    async with Client(load_kubeconfig(up.kubeconfig)) as client:
        writers = [
            asyncio.create_task(write_until_gone(client, round_, n, known, begun)) for n in range(WRITERS)
        ]
        async with asyncio.timeout(ANSWERS_WITHIN):
            await begun.wait()
        # From here on the moment of the kill has to be arbitrary: nothing is waited for.
        await asyncio.sleep(after)
        up.kill()
        for task in writers:
            task.cancel()
        await asyncio.gather(*writers, return_exceptions=True)


@pytest.mark.timeout(120 + 60 * TIMES)
def test_kill_9_among_writes_loses_nothing_and_touches_no_guest(guest: Up, eventually: Eventually) -> None:
    where = address(guest)
    before = eventually(lambda: facts(where), because="the guest's web server")
    known: dict[str, str] = {}
    moments = random.Random(9)
    for round_ in range(TIMES):
        asyncio.run(killed_among_writes(guest, round_, known, moments.uniform(0.05, 0.5)))
        guest.start("--allocatable", "cpu=32,memory=64Gi")
        listed = guest.get("configmaps", "-n", "default")["items"]
        found = {item["metadata"]["name"]: item["metadata"]["uid"] for item in listed}
        assert len(found) == len(listed)
        lost = {name for name, uid in known.items() if found.get(name) != uid}
        assert not lost, f"round {round_}: acknowledged and lost or made anew: {sorted(lost)[:5]}"
        after = eventually(lambda: facts(where), because="the guest's web server")
        assert after["boot_id"] == before["boot_id"]
        assert after["uptime"] >= before["uptime"]
        before = after
    assert len(known) >= TIMES
    assert guest.get("vmi", "survivor")["status"]["phase"] == "Running"


def test_an_upgrade_leaves_the_guest_alone(guest: Up, tmp_path: Path, eventually: Eventually) -> None:
    where = address(guest)
    before = eventually(lambda: facts(where), because="the guest's web server")
    pod = guest.get("pods", "-l", "kubevirt.io=virt-launcher")["items"][0]
    shutil.copytree(
        Path(hotvirt.__file__).parent, tmp_path / "hotvirt", ignore=shutil.ignore_patterns("__pycache__")
    )
    package = tmp_path / "hotvirt" / "__init__.py"
    package.write_text(package.read_text().replace(hotvirt.__version__, "99.0.0"))

    guest.stop()
    command = [sys.executable, "-m", "hotvirt.cli", "up", "--detach", "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "HOTVIRT_STATE_DIR": str(guest.state)}
    newer = subprocess.run(
        [*command, "--allocatable", "cpu=32,memory=64Gi"], env=environment, capture_output=True, text=True
    )
    assert newer.returncode == 0, newer.stderr
    node = guest.get("nodes")["items"][0]
    assert "99.0.0" in json.dumps(node["status"]["nodeInfo"])
    patch = {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": 2}}}}}}
    guest.kubectl("patch", "vm", "survivor", "--type=merge", "-p", json.dumps(patch))
    wait_for(guest, "default", "vmi/survivor", "jsonpath={.status.currentCPUTopology.sockets}=2")

    after = eventually(lambda: facts(where), because="the guest's web server")
    assert (after["boot_id"], after["cpus_online"]) == (before["boot_id"], 2)
    assert after["uptime"] > before["uptime"]
    same = guest.get("pods", "-l", "kubevirt.io=virt-launcher")["items"][0]
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
