"""A disk that Hotvirt has never seen: imported under a name, booted with BIOS, its serial port logged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.scenarios.shell import wait_for

from .tiny_os import SAYS, make_disk
from .up import Up


def test_it_boots_and_its_serial_output_is_in_the_log(
    up: Up, namespace: str, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    disk = tmp_path / "disk.img"
    raw = make_disk(tmp_path / "raw.img")
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, disk], check=True)
    up.import_image("my/os:1", disk)
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
    wait_for(up, namespace, "vmi/unseen", "jsonpath={.status.phase}=Running")
    pod = up.get("pods", "-n", namespace)["items"][0]["metadata"]["name"]
    log = ("logs", "-n", namespace, pod, "-c", "guest-console-log")
    eventually(lambda: SAYS.decode().strip() in up.kubectl(*log), because="the text in the console's log")
