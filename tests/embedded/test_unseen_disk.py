"""A disk that Hotvirt has never seen: imported under a name, booted with BIOS, its serial port logged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .up import Up

SAYS = b"an operating system of 512 bytes\r\n"
# Real mode: writes the text to the first serial port, byte by byte, and halts.
#   mov si, text; next: lodsb; test al, al; jz end; mov dx, 0x3f8; out dx, al; jmp next; end: hlt; jmp end
CODE = bytes.fromhex("be 14 7c fc ac 84 c0 74 06 ba f8 03 ee eb f5 f4 eb fd 90 90")


def boot_sector() -> bytes:
    return (CODE + SAYS + b"\0").ljust(510, b"\0") + b"\x55\xaa"


def test_it_boots_and_its_serial_output_is_in_the_log(
    up: Up, namespace: str, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    raw, disk = tmp_path / "raw.img", tmp_path / "disk.img"
    raw.write_bytes(boot_sector().ljust(1 << 20, b"\0"))
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, disk], check=True)
    imported = up.hotvirt("image", "import", "my/os:1", str(disk))
    assert imported.returncode == 0, imported.stderr
    template = {
        "domain": {
            "memory": {"guest": "64Mi"},
            "devices": {"disks": [{"name": "system", "disk": {"bus": "virtio"}}]},
        },
        "volumes": [{"name": "system", "containerDisk": {"image": "my/os:1"}}],
        "terminationGracePeriodSeconds": 1,
    }
    vm = {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "unseen", "namespace": namespace},
        "spec": {"runStrategy": "Always", "template": {"spec": template}},
    }
    up.kubectl("apply", "-f", "-", input=json.dumps(vm))
    up.kubectl(
        "wait", "-n", namespace, "vmi/unseen", "--for=jsonpath={.status.phase}=Running", "--timeout=60s"
    )
    pod = up.get("pods", "-n", namespace)["items"][0]["metadata"]["name"]
    log = ("logs", "-n", namespace, pod, "-c", "guest-console-log")
    eventually(lambda: SAYS.decode().strip() in up.kubectl(*log), 60, "the text in the console's log")
