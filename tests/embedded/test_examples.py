"""Every manifest in examples/, applied with kubectl as its header says, with a real guest."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.follow import unready_meanwhile
from tests.scenarios.shell import (
    boot_id,
    console_log,
    in_guest,
    vmi_of,
    wait_for,
    wait_for_another,
    wait_for_status,
)
from tests.scenarios.sizes import watched_beside
from tests.targets.target import CHECKOUT

from .up import Up

pytestmark = pytest.mark.timeout(900)
EXAMPLES = CHECKOUT / "examples"
Eventually = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def images(up: Up, demo_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    kernel = tmp_path_factory.mktemp("kernel")
    for name in ("vmlinuz", "initrd"):
        shutil.copy(demo_disk.with_name(name), kernel)
    for name, path in (("hotvirt/demo-guest:latest", demo_disk), ("hotvirt/demo-kernel:latest", kernel)):
        done = up.hotvirt("image", "import", name, str(path))
        assert done.returncode == 0, done.stderr


def apply(up: Up, namespace: str, number: str) -> None:
    (manifest,) = EXAMPLES.glob(f"{number}-*.yaml")
    up.kubectl("apply", "-n", namespace, "-f", str(manifest))


def say(up: Up, namespace: str, *arguments: str) -> None:
    done = up.hotvirt(*arguments, "-n", namespace, "--kubeconfig", str(up.kubeconfig))
    assert done.returncode == 0, done.stderr


def restart(up: Up, namespace: str, name: str) -> None:
    """Returns when there is a new VMI."""
    old = vmi_of(up, namespace, name)["metadata"]["uid"]
    with unready_meanwhile(up, namespace, name):
        say(up, namespace, "restart", name)
    wait_for_another(up, namespace, name, old)


def test_every_example_has_a_number_and_tells_what_to_type():
    manifests = sorted(EXAMPLES.glob("*.yaml"))
    assert [path.name[:2] for path in manifests] == [
        f"{number:02}" for number in range(1, len(manifests) + 1)
    ]
    for path in manifests:
        header = path.read_text().partition("apiVersion:")[0]
        assert f"kubectl apply -f examples/{path.name}" in header


def test_01_first_vm_boots_and_gets_a_second_vcpu(up: Up, namespace: str, eventually: Eventually):
    apply(up, namespace, "01")
    wait_for(up, namespace, "vm/first", "condition=Ready")
    # The guest's agent answers some time before its user data is run: it has one vCPU until then.
    eventually(lambda: "hello from cloud-init: 1 vCPU" in console_log(up, namespace, "first"))
    wait_for(up, namespace, "vmi/first", "condition=AgentConnected")
    before = boot_id(up, namespace, "first")
    patch = {"spec": {"template": {"spec": {"domain": {"cpu": {"sockets": 2}}}}}}
    with watched_beside(up, namespace):
        up.kubectl("patch", "vm", "first", "-n", namespace, "--type", "merge", "-p", json.dumps(patch))
        wait_for(up, namespace, "vmi/first", "jsonpath={.status.currentCPUTopology.sockets}=2")
    assert in_guest(up, namespace, "first", "nproc") == "2"
    assert boot_id(up, namespace, "first") == before


def test_02_starts_and_stops_when_told(up: Up, namespace: str):
    apply(up, namespace, "02")
    wait_for_status(up, namespace, "on-demand", "Stopped")
    say(up, namespace, "start", "on-demand")
    wait_for(up, namespace, "vmi/on-demand", "condition=AgentConnected")
    before = boot_id(up, namespace, "on-demand")
    say(up, namespace, "pause", "on-demand")
    wait_for_status(up, namespace, "on-demand", "Paused")
    say(up, namespace, "unpause", "on-demand")
    wait_for_status(up, namespace, "on-demand", "Running")
    assert boot_id(up, namespace, "on-demand") == before
    restart(up, namespace, "on-demand")
    wait_for(up, namespace, "vm/on-demand", "condition=Ready")
    say(up, namespace, "stop", "on-demand")
    wait_for_status(up, namespace, "on-demand", "Stopped")
    wait_for(up, namespace, "vmi/on-demand", "delete")


def test_03_user_data_comes_from_a_secret(up: Up, namespace: str, eventually: Eventually):
    apply(up, namespace, "03")
    wait_for(up, namespace, "vm/secretive", "condition=Ready")
    eventually(lambda: "the secret says: good morning" in console_log(up, namespace, "secretive"))
    spec = up.get("vm", "secretive", "-n", namespace)["spec"]
    assert "good morning" not in json.dumps(spec)


def test_04_data_disks_have_their_sizes_and_keep_what_is_written(
    up: Up, namespace: str, eventually: Eventually
):
    apply(up, namespace, "04")
    wait_for(up, namespace, "vm/storage", "condition=Ready")
    assert up.get("pvc", "storage-claim", "-n", namespace)["status"]["phase"] == "Bound"
    assert up.get("dv", "storage-volume", "-n", namespace)["status"]["phase"] == "Succeeded"
    line = eventually(lambda: re.search(r"disks: (.*)\n", console_log(up, namespace, "storage")))
    sectors = {int(word) for word in line[1].split()}
    assert {32 << 11, 64 << 11, 96 << 11} <= sectors
    by_size = "grep -l -x {} /sys/block/*/size | cut -d/ -f4"
    claim = in_guest(up, namespace, "storage", by_size.format(64 << 11))
    in_guest(up, namespace, "storage", f"echo remember-me > /dev/{claim}; sync")
    restart(up, namespace, "storage")
    wait_for(up, namespace, "vmi/storage", "condition=AgentConnected")
    claim = in_guest(up, namespace, "storage", by_size.format(64 << 11))
    assert in_guest(up, namespace, "storage", f"head -c 11 /dev/{claim}") == "remember-me"


def test_05_boots_a_kernel_without_a_disk(up: Up, namespace: str):
    apply(up, namespace, "05")
    wait_for(up, namespace, "vmi/kernel", "condition=AgentConnected")
    assert in_guest(up, namespace, "kernel", "ls /sys/block | grep -c '^[sv]d'") == "0"


def test_06_a_web_server_answers_at_the_pods_address(up: Up, namespace: str, eventually: Eventually):
    apply(up, namespace, "06")
    wait_for(up, namespace, "vm/web", "condition=Ready")
    (pod,) = up.get("pods", "-l", "vm.kubevirt.io/name=web", "-n", namespace)["items"]
    url = f"http://{pod['status']['podIP']}:8081/"
    assert pod["metadata"]["labels"]["app"] == "web"

    def answer() -> str:
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return str(reply.read().decode())
        except OSError:
            return ""

    assert eventually(answer) == "hello from inside the guest\n"


def test_07_the_walk_of_the_user_guide(up: Up, namespace: str):
    apply(up, namespace, "07")
    wait_for(up, namespace, "vm/vm-cirros", "condition=Ready")
    wait_for(up, namespace, "vmi/vm-cirros", "condition=AgentConnected")
    topology = vmi_of(up, namespace, "vm-cirros")["status"]["currentCPUTopology"]
    assert topology == {"cores": 1, "sockets": 4, "threads": 1}
    patch = '[{"op": "replace", "path": "/spec/template/spec/domain/cpu/sockets", "value": 5}]'
    with watched_beside(up, namespace):
        up.kubectl("patch", "vm", "vm-cirros", "-n", namespace, "--type=json", f"-p={patch}")
        wait_for(up, namespace, "vmi/vm-cirros", "jsonpath={.status.currentCPUTopology.sockets}=5")
    assert in_guest(up, namespace, "vm-cirros", "nproc") == "5"
    assert up.get("vmim", "-n", namespace)["items"] == []


def test_08_a_kubevirt_manifest_as_it_is(up: Up, namespace: str, eventually: Eventually):
    (manifest,) = EXAMPLES.glob("08-*.yaml")
    command = [
        up.kubectl_program,
        "--kubeconfig",
        str(up.kubeconfig),
        "apply",
        "-n",
        namespace,
        "-f",
        str(manifest),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (warning,) = [line for line in done.stderr.splitlines() if "does not act on" in line]
    for field in ("domain.clock", "domain.features", "evictionStrategy"):
        assert field in warning
    wait_for(up, namespace, "vm/alpine", "condition=Ready")
    eventually(lambda: "printed from cloud-init userdata" in console_log(up, namespace, "alpine"))
    spec = up.get("vm", "alpine", "-n", namespace)["spec"]
    assert spec["running"] is True
    assert spec["template"]["spec"]["domain"]["clock"]["timer"]["pit"] == {"tickPolicy": "delay"}
