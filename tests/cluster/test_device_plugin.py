"""The device plug-in with the real kubelet, on a device node that stands for /dev/kvm."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import threading
from collections.abc import Iterator

import pytest

from hotvirt.cluster.device_plugin import DevicePlugin, open_to_launchers
from tests.targets.target import wait_until

from .bed import Bed
from .bed_layout import IMAGE, NODE
from .test_bed import kubectl

RESOURCE = "test.hotvirt.io/device"
NAME = "test-device"
DEVICE = f"/var/lib/kubelet/{NAME}"
"""As the node sees it: another /dev/null, which at first nobody but root may use."""


def offered(bed: Bed) -> str:
    node = json.loads(kubectl(bed, "get", "node", NODE, "-o", "json"))
    return str(node["status"]["allocatable"].get(RESOURCE, "0"))


@pytest.fixture(scope="module")
def device(bed: Bed) -> Iterator[None]:
    node = bed.layout.kubelet_root / NAME
    os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    open_to_launchers(node)
    yield
    node.unlink()


@pytest.fixture(scope="module")
def plugin(bed: Bed, device: None) -> Iterator[None]:
    """As the node agent serves it, until the end of these tests."""
    folder = bed.layout.kubelet_root / "device-plugins"
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        serving = asyncio.create_task(DevicePlugin(RESOURCE, DEVICE, folder=folder, count=5).run())
        await done.wait()
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving

    def body() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
    wait_until(lambda: offered(bed) == "0", "the kubelet to take back what its plug-in no longer offers")


@pytest.fixture(scope="module")
def namespace(bed: Bed) -> Iterator[str]:
    name = "test-devices"
    kubectl(bed, "create", "namespace", name)
    kubectl(bed, "label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    kubectl(bed, "wait", "-n", name, "serviceaccount/default", "--for=create", "--timeout=60s")
    yield name
    kubectl(bed, "delete", "namespace", name)


def test_a_pod_without_privileges_gets_the_device(bed: Bed, plugin: None, namespace: str) -> None:
    wait_until(lambda: offered(bed) == "5", "the node to offer the device")
    container = {
        "name": "user",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", f"id -u; test -c {DEVICE} && echo hello > {DEVICE} && echo usable"],
        "resources": {"limits": {RESOURCE: "1"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "user", "namespace": namespace},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 107,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }
    kubectl(bed, "apply", "-f", "-", document=pod)
    ended = ("Succeeded", "Failed")
    phase = ("get", "-n", namespace, "pod/user", "-o", "jsonpath={.status.phase}")
    wait_until(lambda: kubectl(bed, *phase) in ended, "the Pod to end")
    assert kubectl(bed, "logs", "-n", namespace, "user").split() == ["107", "usable"]
