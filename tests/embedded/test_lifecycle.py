"""The life of a VM with real guests: what KubeVirt's users know of starting, ending, failing and deleting.

Boots are the costly part under emulation, so the tests on one guest follow each other in one VM.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.follow import plug_pulled_meanwhile, unready_meanwhile
from tests.scenarios.place import demo_vm
from tests.scenarios.shell import boot_id, in_guest, vmi_of, wait_for, wait_for_another, wait_for_status

from .up import Up

pytestmark = pytest.mark.timeout(900)
NAME = "life"
PLACE = "lifecycle"
SOON = 120
GRACE = 180
"""Seconds; more than what is done at once takes, however slow the machine."""
Eventually = Callable[..., Any]


@pytest.fixture(scope="module")
def machine(up: Up, demo_disk: Path) -> Iterator[Up]:
    """A VM that starts when it is told to, in a namespace of its own."""
    up.import_image("hotvirt/demo-guest:latest", demo_disk)
    up.kubectl("create", "namespace", PLACE)
    try:
        apply(up, "Manual")
        yield up
    finally:
        up.kubectl("delete", "namespace", PLACE, "--timeout=240s", timeout=300)


def apply(up: Up, strategy: str) -> None:
    vm = demo_vm(NAME, PLACE)
    vm["spec"]["runStrategy"] = strategy
    vm["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = GRACE
    up.kubectl("apply", "-f", "-", input=json.dumps(vm))


def say(up: Up, *arguments: str) -> None:
    done = up.hotvirt(*arguments, "-n", PLACE, "--kubeconfig", str(up.kubeconfig))
    assert done.returncode == 0, done.stderr


def ask(up: Up, verb: str) -> None:
    """A request that has no command of its own."""
    path = f"/apis/subresources.kubevirt.io/v1/namespaces/{PLACE}/virtualmachineinstances/{NAME}/{verb}"
    up.kubectl("replace", "--raw", path, "-f", "-", input="{}")


def booted(up: Up) -> None:
    wait_for(up, PLACE, f"vmi/{NAME}", "condition=AgentConnected")


def pod(up: Up) -> dict[str, Any]:
    (found,) = up.get("pods", "-l", f"vm.kubevirt.io/name={NAME}", "-n", PLACE)["items"]
    return dict(found)


def test_a_manual_vm_boots_when_told(machine: Up):
    wait_for_status(machine, PLACE, NAME, "Stopped", SOON)
    say(machine, "start", NAME)
    booted(machine)
    wait_for_status(machine, PLACE, NAME, "Running", SOON)
    vmi = vmi_of(machine, PLACE, NAME)
    assert vmi["status"]["nodeName"] == pod(machine)["spec"]["nodeName"]
    assert (
        vmi["status"]["interfaces"][0]["mac"]
        == vmi["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"]
    )


def test_a_soft_reboot_and_a_reset_keep_the_pod(machine: Up, eventually: Eventually):
    uid = pod(machine)["metadata"]["uid"]
    for verb in ("softreboot", "reset"):
        before = boot_id(machine, PLACE, NAME)
        ask(machine, verb)
        eventually(
            lambda before=before: boot_id(machine, PLACE, NAME) != before,
            because=f"the boot after {verb}",
        )
    assert pod(machine)["metadata"]["uid"] == uid


def test_a_guest_that_powers_off_has_succeeded_and_manual_leaves_it_so(machine: Up):
    in_guest(machine, PLACE, NAME, "(sleep 1; poweroff) > /dev/null 2>&1 & true")
    wait_for_status(machine, PLACE, NAME, "Stopped")
    ended = vmi_of(machine, PLACE, NAME)["status"]
    assert ended["phase"] == "Succeeded"
    left = {each["type"] for each in ended["conditions"]}
    assert "Ready" in left
    assert not left & {"AgentConnected", "Paused", "Resizable"}, "they are true of a machine that runs"


def test_always_starts_it_again_and_a_killed_hypervisor_too(machine: Up):
    ended = vmi_of(machine, PLACE, NAME)["metadata"]["uid"]
    apply(machine, "Always")
    wait_for_another(machine, PLACE, NAME, ended)
    booted(machine)
    first = vmi_of(machine, PLACE, NAME)["metadata"]["uid"]
    hypervisor = machine.hypervisor(pod(machine))
    with unready_meanwhile(machine, PLACE, NAME):
        os.kill(hypervisor, signal.SIGKILL)
    wait_for_status(machine, PLACE, NAME, "Running")
    assert vmi_of(machine, PLACE, NAME)["metadata"]["uid"] != first


def test_a_stop_without_grace_is_at_once_also_while_it_boots(machine: Up):
    path = f"/apis/subresources.kubevirt.io/v1/namespaces/{PLACE}/virtualmachines/{NAME}/stop"
    with plug_pulled_meanwhile(machine, pod(machine)):
        machine.kubectl("replace", "--raw", path, "-f", "-", input='{"gracePeriod": 0}')
        wait_for_status(machine, PLACE, NAME, "Stopped", SOON)
        wait_for(machine, PLACE, f"vmi/{NAME}", "delete", SOON)
    assert machine.get("pods", "-n", PLACE)["items"] == []
    assert machine.get("vm", NAME, "-n", PLACE)["spec"]["runStrategy"] == "Halted"


def test_a_missing_image_names_the_command_that_brings_it(machine: Up, demo_disk: Path):
    vm = demo_vm("pulled", PLACE)
    vm["spec"]["template"]["spec"]["volumes"][0]["containerDisk"]["image"] = "my/os:1"
    machine.kubectl("apply", "-f", "-", input=json.dumps(vm))
    wait_for(machine, PLACE, "vm/pulled", "condition=Synchronized=false", SOON)
    vm = machine.get("vm", "pulled", "-n", PLACE)
    (reason,) = [each for each in vm["status"]["conditions"] if each["type"] == "Synchronized"]
    assert vm["status"]["printableStatus"] in ("ErrImagePull", "ImagePullBackOff")
    assert "hotvirt image import my/os:1 FILE" in reason["message"]
    machine.import_image("my/os:1", demo_disk)
    wait_for_status(machine, PLACE, "pulled", "Running")


def test_a_vm_that_fits_nowhere_says_so(machine: Up):
    vm = demo_vm("huge", PLACE, memory={"guest": "900Gi"})
    machine.kubectl("apply", "-f", "-", input=json.dumps(vm))
    wait_for_status(machine, PLACE, "huge", "ErrorUnschedulable", SOON)
    vm = machine.get("vm", "huge", "-n", PLACE)
    (scheduled,) = [each for each in vm["status"]["conditions"] if each["type"] == "PodScheduled"]
    assert "memory" in scheduled["message"]
