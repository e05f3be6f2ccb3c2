"""What this machine has to offer, and how it is described in its Node object."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotvirt import __version__
from hotvirt.api import meta
from hotvirt.api.quantity import Quantity

from .processes import boot_id

KUBELET_VERSION = f"v1.37.1+hotvirt-{__version__}"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# Left to the host: itself, the API server, page cache.
RESERVED_SHARE = 20
RESERVED_LEAST = 256 << 20


def capacity(state_dir: Path, pods: int) -> dict[str, Quantity]:
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    kibibytes = int(fields["MemTotal"].split()[0])
    return {
        "cpu": Quantity(len(os.sched_getaffinity(0))),
        "memory": Quantity(f"{kibibytes}Ki"),
        "ephemeral-storage": Quantity(f"{shutil.disk_usage(state_dir).total // 1024}Ki"),
        "pods": Quantity(pods),
    }


def offered(capacity: Mapping[str, Quantity], wanted: Mapping[str, Quantity]) -> dict[str, Quantity]:
    """What Pods may request in all: the machine less a reserve, or what the user said."""
    reserve = max(capacity["memory"].value // RESERVED_SHARE, RESERVED_LEAST)
    memory = Quantity.bytes(max(capacity["memory"].value - reserve, 0))
    return {**capacity, "memory": memory, **wanted}


def host_address() -> str:
    """The address this machine would use to talk to others; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
        return address


def node_object(name: str) -> dict[str, Any]:
    architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": architecture,
        "kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": architecture,
        "beta.kubernetes.io/os": "linux",
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}}


def node_status(
    name: str, address: str, has: Mapping[str, Quantity], offers: Mapping[str, Quantity], notes: list[str]
) -> dict[str, Any]:
    has = {**has, **{key: max(has.get(key, value), value) for key, value in offers.items()}}
    return {
        "capacity": {key: str(value) for key, value in has.items()},
        "allocatable": {key: str(value) for key, value in offers.items()},
        "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        "conditions": conditions(notes),
        "nodeInfo": {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "bootID": boot_id(),
            "containerRuntimeVersion": f"hotvirt://{__version__}",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": "",
            "kubeletVersion": KUBELET_VERSION,
            "machineID": _machine_id(),
            "operatingSystem": "linux",
            "osImage": _os_name(),
            "systemUUID": _machine_id(),
        },
    }


def conditions(notes: list[str]) -> list[dict[str, Any]]:
    """As the kubelet's, and one that says what this machine does not allow."""
    now = meta.now()
    rows = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ]
    if notes:
        rows.append(("PodIsolation", "False", "NotAllowed", " ".join(notes)))
    rows.append(("Ready", "True", "KubeletReady", "the embedded node is ready"))
    return [
        {
            "type": type,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        for type, status, reason, message in rows
    ]


def _machine_id() -> str:
    try:
        return Path("/etc/machine-id").read_text().strip()
    except OSError:
        return boot_id().replace("-", "")


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"
