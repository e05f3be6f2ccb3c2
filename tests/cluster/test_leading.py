"""Replicas of the controller before a real API server: who leads, and where none of them works at all."""

from __future__ import annotations

import json
import signal
from typing import Any

from tests.kubectl.kubectl import Kubectl
from tests.targets.target import wait_until

from .control_plane import ControlPlane, Process

LEASE = ("lease", "hotvirt-controller", "-n", "kubevirt")


def lead(kubectl: Kubectl) -> dict[str, Any]:
    """What the Lease says; empty while there is none."""
    text = kubectl("get", *LEASE, "--ignore-not-found", "-o", "json")
    spec: dict[str, Any] = json.loads(text)["spec"] if text else {}
    return spec


def wait_for_leader(kubectl: Kubectl, name: str, within: float) -> None:
    wait_until(lambda: lead(kubectl).get("holderIdentity") == name, f"{name} to lead", within)


def works(controller: Process) -> bool:
    """Whether it runs the controllers, by its own metrics."""
    return 'leader_election_master_status{name="hotvirt-controller"} 1.0' in controller.get("/metrics")[1]


def test_the_lead_is_given_back_by_a_replica_that_is_asked_to_end(plane: ControlPlane) -> None:
    kubectl = plane.kubectl
    with plane.controller("first") as first:
        wait_for_leader(kubectl, "first", within=120)
        with plane.controller("second") as second:
            second.wait_until_ready()
            wait_until(lambda: works(first), "the first to work")
            assert not works(second)
            first.process.send_signal(signal.SIGTERM)
            assert first.process.wait(60) == 0
            assert lead(kubectl)["holderIdentity"] != "first", "nobody waits for the Lease to run out"
            wait_for_leader(kubectl, "second", within=60)
            wait_until(lambda: works(second), "the second to work")


def test_a_leader_that_cannot_renew_its_lease_stops_its_work(plane: ControlPlane) -> None:
    """Somebody else holds the Lease all of a sudden, as after a long silence of the network."""
    kubectl = plane.kubectl
    with plane.controller("third") as third:
        wait_for_leader(kubectl, "third", within=60)
        wait_until(lambda: works(third), "the third to work")
        # Long enough for who looks from time to time to see that it does not work.
        stolen = {"spec": {"holderIdentity": "somebody-else", "leaseDurationSeconds": 20}}
        kubectl("patch", *LEASE, "--type=merge", "-p", json.dumps(stolen))
        wait_until(lambda: not works(third), "the third to stop its work", within=60)
        wait_for_leader(kubectl, "third", within=120)  # somebody else never came back
        wait_until(lambda: works(third), "the third to work again")


def test_a_leader_that_is_killed_is_followed_when_its_lease_ends(plane: ControlPlane) -> None:
    kubectl = plane.kubectl
    with plane.controller("fourth") as fourth:
        wait_for_leader(kubectl, "fourth", within=120)
        with plane.controller("fifth") as fifth:
            fifth.wait_until_ready()
            before = lead(kubectl)["leaseTransitions"]
            fourth.process.kill()
            fourth.process.wait()
            wait_for_leader(kubectl, "fifth", within=90)
            assert lead(kubectl)["leaseTransitions"] == before + 1


def test_beside_a_kubevirt_it_says_so_and_touches_nothing(plane: ControlPlane) -> None:
    kubectl = plane.kubectl
    before = lead(kubectl)
    pods = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    operator = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "virt-operator", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": pods},
    }
    kubectl("create", "-f", "-", stdin=operator)
    try:
        with plane.controller("sixth", plane.port) as refusing:
            wait_until(lambda: "KubeVirt is installed here" in refusing.readiness(), "it to refuse")
            assert refusing.get("/readyz")[0] == 503
            assert refusing.get("/healthz") == (200, "ok\n")
            refusing.process.send_signal(signal.SIGTERM)
            assert refusing.process.wait(60) == 0
        assert lead(kubectl) == before
    finally:
        kubectl("delete", "deployment", "virt-operator")


def test_crds_of_somebody_else_are_left_alone(plane: ControlPlane) -> None:
    kubectl = plane.kubectl
    crd = ("crd", "virtualmachines.kubevirt.io")
    kubectl("label", *crd, "app.kubernetes.io/part-of-")
    try:
        with plane.controller("seventh", plane.port) as refusing:
            refusal = "The CRD virtualmachines.kubevirt.io is not Hotvirt's"
            wait_until(lambda: refusal in refusing.readiness(), "it to refuse")
    finally:
        kubectl("label", *crd, "app.kubernetes.io/part-of=hotvirt")
