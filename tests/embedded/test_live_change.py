"""vCPUs given to a real guest while it runs, with kubectl: in place, and seen by the guest itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.place import demo_vm
from tests.scenarios.shell import boot_id, in_guest, vmi_of, wait_for

from .up import Up

NAME = "grow"
PLACE = "live-change"
SOON = 60


@pytest.fixture(scope="module")
def guest(up: Up, demo_disk: Path) -> Iterator[Up]:
    """One guest for all tests here, in a namespace of its own; each test leaves it running."""
    up.import_image("hotvirt/demo-guest:latest", demo_disk)
    up.kubectl("create", "namespace", PLACE)
    try:
        up.kubectl("apply", "-f", "-", input=json.dumps(demo_vm(NAME, PLACE)))
        wait_for(up, PLACE, f"vmi/{NAME}", "condition=AgentConnected")
        yield up
    finally:
        up.kubectl("delete", "namespace", PLACE, "--timeout=120s")


def patch(up: Up, template: dict) -> subprocess.CompletedProcess[str]:
    """kubectl's answer, with the warnings that it shows."""
    body = json.dumps({"spec": {"template": {"spec": template}}})
    command = [up.kubectl_program, "--kubeconfig", str(up.kubeconfig), "patch", "vm", NAME, "-n", PLACE]
    return subprocess.run(
        [*command, "--type", "merge", "-p", body], capture_output=True, text=True, timeout=60
    )


def sockets(number: int) -> dict:
    return {"domain": {"cpu": {"sockets": number}}}


def cpu_request(up: Up) -> str:
    (pod,) = up.get("pods", "-l", f"vm.kubevirt.io/name={NAME}", "-n", PLACE)["items"]
    compute = next(each for each in pod["status"]["containerStatuses"] if each["name"] == "compute")
    return str(compute["resources"]["requests"]["cpu"])


def condition(obj: dict, type: str) -> dict | None:
    return next((each for each in obj["status"]["conditions"] if each["type"] == type), None)


def test_sockets_reach_the_guest_in_place(guest: Up):
    before = boot_id(guest, PLACE, NAME)
    assert in_guest(guest, PLACE, NAME, "nproc") == "1"
    assert cpu_request(guest) == "100m"
    watch = subprocess.Popen(
        [
            *[guest.kubectl_program, "--kubeconfig", str(guest.kubeconfig), "get", "vmi", NAME, "-n", PLACE],
            *["--watch", "--output-watch-events", "-o", "json"],
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert watch.stdout is not None
        watch.stdout.readline()  # it watches
        done = patch(guest, sockets(2))
        assert done.returncode == 0, done.stderr
        assert "live" in done.stderr
        wait_for(guest, PLACE, f"vmi/{NAME}", "jsonpath={.status.currentCPUTopology.sockets}=2", SOON)
        wait_for(guest, PLACE, f"vm/{NAME}", "jsonpath={.status.observedGeneration}=2", SOON)
    finally:
        watch.terminate()
        seen = watch.stdout.read() if watch.stdout else ""
        watch.wait()
    assert '"HotVCPUChange"' in seen
    assert in_guest(guest, PLACE, NAME, "nproc") == "2"
    assert cpu_request(guest) == "200m"
    vmi = vmi_of(guest, PLACE, NAME)
    assert condition(vmi, "HotVCPUChange") is None
    assert vmi["status"]["hotvirt"]["vcpus"] == {"plugged": 2, "online": 2}
    assert boot_id(guest, PLACE, NAME) == before
    vm = guest.get("vm", NAME, "-n", PLACE)
    assert condition(vm, "RestartRequired") is None
    events = guest.get("events", "-n", PLACE)["items"]
    told = {each["reason"]: each["message"] for each in events if each["involvedObject"]["name"] == NAME}
    assert told["ResizeStarted"].startswith("sockets 1 → 2")
    assert told["ResizeCompleted"].startswith("sockets 1 → 2")
    assert told["ResizeCompleted"].endswith(" ms")
    assert guest.get("vmim", "-n", PLACE)["items"] == []


def test_the_live_part_is_done_and_the_rest_waits_with_every_cause(guest: Up):
    before = boot_id(guest, PLACE, NAME)
    done = patch(
        guest, {"hostname": "other", "domain": {"cpu": {"sockets": 3}, "memory": {"guest": "512Mi"}}}
    )
    assert done.returncode == 0, done.stderr
    wait_for(guest, PLACE, f"vm/{NAME}", "condition=RestartRequired", SOON)
    wait_for(guest, PLACE, f"vmi/{NAME}", "jsonpath={.status.currentCPUTopology.sockets}=3", SOON)
    message = (condition(guest.get("vm", NAME, "-n", PLACE), "RestartRequired") or {})["message"]
    assert "hostname" in message
    assert "domain.memory.guest" in message
    assert "sockets" not in message
    assert in_guest(guest, PLACE, NAME, "nproc") == "3"
    done = patch(guest, {"hostname": None, "domain": {"memory": {"guest": "256Mi"}}})
    assert done.returncode == 0, done.stderr
    wait_for(guest, PLACE, f"vm/{NAME}", "jsonpath={.status.observedGeneration}=4", SOON)
    assert condition(guest.get("vm", NAME, "-n", PLACE), "RestartRequired") is None
    assert boot_id(guest, PLACE, NAME) == before


def test_more_than_the_maximum_is_refused_and_nothing_moves(guest: Up):
    done = patch(guest, sockets(5))
    assert done.returncode == 1
    assert "spec.template.spec.domain.cpu.sockets" in done.stderr
    assert vmi_of(guest, PLACE, NAME)["spec"]["domain"]["cpu"]["sockets"] == 3


def test_what_waits_is_there_after_a_restart(guest: Up):
    done = patch(guest, {"domain": {"cpu": {"sockets": 1, "cores": 2}}})
    assert done.returncode == 0, done.stderr
    wait_for(guest, PLACE, f"vm/{NAME}", "condition=RestartRequired", SOON)
    before = boot_id(guest, PLACE, NAME)
    restarted = guest.hotvirt("restart", NAME, "-n", PLACE, "--kubeconfig", str(guest.kubeconfig))
    assert restarted.returncode == 0, restarted.stderr
    wait_for(guest, PLACE, f"vm/{NAME}", "condition=Ready=false", SOON)
    wait_for(guest, PLACE, f"vmi/{NAME}", "condition=AgentConnected")
    assert in_guest(guest, PLACE, NAME, "nproc") == "2"
    assert boot_id(guest, PLACE, NAME) != before
    assert vmi_of(guest, PLACE, NAME)["status"]["currentCPUTopology"] == {
        "sockets": 1,
        "cores": 2,
        "threads": 1,
    }
    assert condition(guest.get("vm", NAME, "-n", PLACE), "RestartRequired") is None


def test_a_dry_run_says_what_would_happen(guest: Up):
    generation = guest.get("vm", NAME, "-n", PLACE)["metadata"]["generation"]
    body = json.dumps({"spec": {"template": {"spec": sockets(4)}}})
    command = [guest.kubectl_program, "--kubeconfig", str(guest.kubeconfig), "patch", "vm", NAME, "-n", PLACE]
    done = subprocess.run(
        [*command, "--type", "merge", "--dry-run=server", "-p", body],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "live" in done.stderr
    assert guest.get("vm", NAME, "-n", PLACE)["metadata"]["generation"] == generation
