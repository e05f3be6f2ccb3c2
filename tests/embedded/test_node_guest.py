"""A real guest of the node agent: its network, its adoption after a crash, its vCPUs."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import socket
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.scenarios.place import demo_vm
from tests.scenarios.shell import wait_for

from .up import Up

pytestmark = pytest.mark.timeout(900)
BOOT = 240.0
NO_PAGE = (OSError, ValueError, http.client.HTTPException)
"""What comes of a server that is not there yet, or that ends in the middle of its answer."""
ODD_PORT = 40404
SCRIPT = f"""#!/bin/sh
nc -ll -p {ODD_PORT} -e /bin/date &
"""
Eventually = Callable[..., Any]
MACHINE = demo_vm("node", user_data=SCRIPT)


def vmi(up: Up) -> dict[str, Any]:
    return up.get("vmi", "node")


def address(up: Up) -> str:
    return str(vmi(up)["status"]["interfaces"][0]["ipAddress"])


def facts(up: Up) -> dict[str, Any]:
    """What the guest's own web server says; empty while it does not answer."""
    url = f"http://{address(up)}/cgi-bin/facts"
    with contextlib.suppress(*NO_PAGE), urllib.request.urlopen(url, timeout=10) as page:
        found: dict[str, Any] = json.load(page)
        return found
    return {}


def test_a_port_that_nobody_declared_answers_at_the_pods_address(guest: Up, eventually: Eventually) -> None:
    def said() -> bytes:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((address(guest), ODD_PORT), 10) as connection,
        ):
            return connection.recv(100)
        return b""

    eventually(said, BOOT, "an answer on the odd port")


def test_the_guest_reaches_out(guest: Up, eventually: Eventually) -> None:
    """From inside the guest, through the Pod's address: the page of a server on this machine."""
    asked: list[str] = []

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.client_address[0])
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    eventually(lambda: facts(guest), BOOT, "the guest's web server")
    server = http.server.HTTPServer(("0.0.0.0", 0), Page)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        gateway = address(guest).rsplit(".", 1)[0] + ".1"
        pod = guest.get("pods", "-l", "vm.kubevirt.io/name=node")["items"][0]
        run = guest.state / "pods" / pod["metadata"]["uid"] / "volumes/kubernetes.io~empty-dir/run"
        with socket.socket(socket.AF_UNIX) as console:
            here = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
            console.connect(f"/proc/self/fd/{here}/console.sock")
            os.close(here)
            console.settimeout(BOOT)
            fetch = f"wget -q -O /dev/null http://{gateway}:{server.server_port}/"
            for line, prompt in (("", "login:"), ("root", "assword:"), ("hotvirt", "# "), (fetch, "# ")):
                console.sendall(line.encode() + b"\n")
                heard = ""
                while prompt not in heard:
                    said = console.recv(4096)
                    assert said, f"the console ended before {prompt!r}: {heard!r}"
                    heard += said.decode(errors="replace")
            eventually(lambda: asked, BOOT, "the guest's request")
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    assert asked[0] == address(guest), "it comes from the Pod's address"


def test_three_more_vcpus_in_the_same_boot(guest: Up, eventually: Eventually) -> None:
    before = eventually(lambda: facts(guest), BOOT, "the guest's web server")
    assert before["cpus_online"] == 1
    patch = {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": 4}}}}}}
    guest.kubectl("patch", "vm", "node", "--type=merge", "-p", json.dumps(patch))
    wait_for(guest, "default", "vmi/node", "jsonpath={.status.currentCPUTopology.sockets}=4")
    after = eventually(lambda: facts(guest), BOOT, "the guest's web server")
    assert (after["cpus_online"], after["boot_id"]) == (4, before["boot_id"])
    assert vmi(guest)["status"]["hotvirt"]["vcpus"] == {"plugged": 4, "online": 4}


def test_a_killed_hotvirt_adopts_the_guest_and_serves_its_dhcp(guest: Up, eventually: Eventually) -> None:
    before = eventually(lambda: facts(guest), BOOT, "the guest's web server")
    guest.kill()
    guest.start()
    same = eventually(lambda: facts(guest), BOOT, "the guest's web server")
    assert same["boot_id"] == before["boot_id"] and same["uptime"] > before["uptime"]
    # A guest that boots again asks for its address again: the adopted machine's DHCP must answer.
    guest.kubectl(
        "replace",
        "--raw",
        "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachineinstances/node/softreboot",
        "-f",
        "-",
        input="{}",
    )
    again = eventually(
        lambda: (found := facts(guest)) and found["boot_id"] != before["boot_id"] and found,
        BOOT,
        "another boot",
    )
    assert again["cpus_online"] == same["cpus_online"], "vCPUs that were plugged stay through a reboot"
    eventually(
        lambda: vmi(guest)["status"]["hotvirt"].get("bootId") == again["boot_id"],
        BOOT,
        "the new boot in the status",
    )
