"""A VM's Pod on a real kubelet: without privileges, under a quota on limits, its files from an image that has
nothing else in it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotvirt.api.names import KVM_RESOURCE
from hotvirt.api.quantity import Quantity
from tests.scenarios.place import Object, demo_vm
from tests.scenarios.shell import console_log, in_guest, wait_for, wait_for_status
from tests.targets.target import CHECKOUT, wait_until

from .bed import Bed
from .bed_image import add
from .on_cluster import OnCluster

# The first of them also waits for cluster, images, chart and guest.
pytestmark = pytest.mark.timeout(900)
NAMESPACE = "test-vm-pods"
VM = "bare"
IMAGE = "localhost/test-files:1"
MARK = "a disk by its path"
DISK_SIZE = 200 << 20
CLAIM = "test-claim"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@pytest.fixture(scope="module")
def place(hotvirt_on_cluster: Bed) -> OnCluster:
    return OnCluster(hotvirt_on_cluster)


@pytest.fixture(scope="module")
def files_image(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An image with a kernel (by a link), an initrd and a disk, and no program at all."""
    built = subprocess.run(
        [CHECKOUT / "demo/guest/build"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    guest = Path(built).parent
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as layer:
        link = tarfile.TarInfo("boot/vmlinuz")
        link.type, link.linkname = tarfile.SYMTYPE, "vmlinuz-of-this-release"
        layer.addfile(link)
        add(layer, "boot/vmlinuz-of-this-release", (guest / "vmlinuz").read_bytes(), 0o444)
        add(layer, "boot/initrd", (guest / "initrd").read_bytes(), 0o440 | 0o004)
        add(layer, "images/data.img", MARK.encode().ljust(DISK_SIZE, b"\0"))
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    file = tmp_path_factory.mktemp("image") / "files.tar"
    with tarfile.open(file, "w") as archive:
        add(archive, "config.json", json.dumps(config).encode())
        add(archive, "layer.tar", packed.getvalue())
        add(archive, "manifest.json", json.dumps(manifest).encode())
    bed.import_images(file)


@pytest.fixture(scope="module")
def claim(place: OnCluster) -> Iterator[Path]:
    """A claim bound to a folder of the node with a disk that is root's alone; the disk."""
    folder = place.bed.layout.kubelet_root / CLAIM
    folder.mkdir(mode=0o700)
    disk = folder / "disk.img"
    disk.touch(0o600)
    os.truncate(disk, 1 << 20)
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [place.node]}
    place.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": CLAIM},
            "spec": {
                "capacity": {"storage": "1Mi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": f"/var/lib/kubelet/{CLAIM}"},
                "claimRef": {"namespace": NAMESPACE, "name": CLAIM},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            },
        }
    )
    yield disk
    place.kubectl("delete", "pv", CLAIM)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def pod(place: OnCluster, files_image: None, claim: Path) -> Iterator[Object]:
    """The Pod of a VM that runs, in a namespace of the strictest level with a quota on limits."""
    quota = {"limits.cpu": "4", "limits.memory": "4Gi", "requests.memory": "2Gi"}
    place.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": RESTRICTED}}
    )
    try:
        place.apply(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "limits", "namespace": NAMESPACE},
                "spec": {"hard": quota},
            }
        )
        place.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": CLAIM, "namespace": NAMESPACE},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "",
                    "volumeName": CLAIM,
                    "resources": {"requests": {"storage": "1Mi"}},
                },
            }
        )
        place.apply(bare_vm())
        wait_for_status(place, NAMESPACE, VM, "Running")
        wait_for(place, NAMESPACE, f"vmi/{VM}", "condition=AgentConnected")
        (found,) = place.get("pods", "-n", NAMESPACE)["items"]
        yield found
    finally:
        place.kubectl("delete", "namespace", NAMESPACE)


def sized(memory: str) -> Object:
    """Guaranteed: the Pod has limits, and the kubelet looks at what it uses before it lowers them."""
    return {which: {"cpu": "1", "memory": memory} for which in ("requests", "limits")}


def bare_vm() -> Object:
    files = {"image": IMAGE, "imagePullPolicy": "Never"}
    kernel = files | {"kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd"}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": VM, "namespace": NAMESPACE},
        "spec": {
            "runStrategy": "Always",
            "template": {
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "domain": {
                        "cpu": {"sockets": 1},
                        "memory": {"guest": "256Mi", "maxGuest": "1Gi"},
                        "resources": sized("256Mi"),
                        "firmware": {
                            "kernelBoot": {"container": kernel, "kernelArgs": "console=ttyS0,115200 quiet"}
                        },
                        "devices": {
                            "disks": [
                                {"name": "data", "disk": {"bus": "virtio"}},
                                {"name": "claim", "disk": {"bus": "virtio"}},
                            ],
                            "interfaces": [{"name": "default", "masquerade": {}}],
                        },
                    },
                    "networks": [{"name": "default", "pod": {}}],
                    "volumes": [
                        {"name": "data", "containerDisk": files | {"path": "/images/data.img"}},
                        {"name": "claim", "persistentVolumeClaim": {"claimName": CLAIM}},
                    ],
                }
            },
        },
    }


def test_a_kernel_and_a_disk_come_from_an_image_without_a_shell(place: OnCluster, pod: Object) -> None:
    steps = {each["name"]: each["state"] for each in pod["status"]["initContainerStatuses"]}
    assert list(steps) == ["tools", "kernel", "disk-data"]
    assert all(state["terminated"]["exitCode"] == 0 for state in steps.values())
    assert MARK in in_guest(place, NAMESPACE, VM, f"head -c {len(MARK)} /dev/vda; echo")
    # The guest's agent is there before the guest is ready, and what it prints is on its way for a moment.
    said = "hotvirt demo guest ready"
    wait_until(lambda: said in console_log(place, NAMESPACE, VM), f"the log to say {said!r}")


def test_a_claim_is_made_writable_for_the_machine(place: OnCluster, pod: Object, claim: Path) -> None:
    in_guest(place, NAMESPACE, VM, f"echo '{MARK}' | dd of=/dev/vdb conv=fsync; sync; echo")
    assert claim.read_bytes().startswith(MARK.encode())


def test_the_hypervisor_has_no_rights_at_all(place: OnCluster, pod: Object) -> None:
    process = place.hypervisor(pod)
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{process}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert status["Uid"].split() == status["Gid"].split() == ["107"] * 4
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    root = Path(f"/proc/{process}/root")
    assert not (root / "var/run/secrets").exists(), "no token of a service account"
    asked = KVM_RESOURCE in pod["spec"]["containers"][0]["resources"]["limits"]
    assert (root / "dev/kvm").exists() == asked, "no device that the Pod did not ask for"
    mounts = Path(f"/proc/{process}/mountinfo").read_text().splitlines()
    (own_root,) = [line.split() for line in mounts if line.split()[4] == "/"]
    assert "ro" in own_root[5].split(","), "its root file system cannot be written"


def test_the_quota_counts_the_pod_with_limits_of_all_its_containers(place: OnCluster, pod: Object) -> None:
    for container in pod["spec"]["initContainers"] + pod["spec"]["containers"]:
        assert set(container["resources"]["limits"]) - {KVM_RESOURCE} == {"cpu", "memory"}
    used = place.get("resourcequota", "limits", "-n", NAMESPACE)["status"]["used"]
    assert used["limits.cpu"] == "1100m", "compute and the console log; the init step is smaller"


def test_a_machine_without_limits_gets_those_that_the_quota_demands(place: OnCluster, pod: Object) -> None:
    """Else the API server would not let its Pod in. It fits no node: nothing has to run."""
    vm = demo_vm("unlimited", NAMESPACE, memory={"guest": "64Mi"})
    vm["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "nowhere"}
    place.apply(vm)
    selector = ("-n", NAMESPACE, "-l", "vm.kubevirt.io/name=unlimited")
    try:
        wait_until(lambda: place.get("pods", *selector)["items"], "the Pod to be made")
        (made,) = place.get("pods", *selector)["items"]
        compute = made["spec"]["containers"][0]["resources"]
        assert set(compute["limits"]) - {KVM_RESOURCE} == {"cpu", "memory"}
        assert compute["limits"]["cpu"] == "1", "all of its vCPU"
        assert Quantity(compute["limits"]["memory"]) == Quantity(compute["requests"]["memory"]) * 2
    finally:
        place.kubectl("delete", "vm", "unlimited", "-n", NAMESPACE)


def test_the_guest_has_the_pods_network(place: OnCluster, pod: Object) -> None:
    """The size of its packets, and the way out through the Pod's address."""
    process = place.hypervisor(pod)
    inside = ["nsenter", "--net", "--target", str(process)]
    link = json.loads(subprocess.check_output([*inside, "ip", "--json", "link", "show", "eth0"]))[0]
    said = in_guest(place, NAMESPACE, VM, "cat /sys/class/net/eth0/mtu; ip -4 addr show eth0; ip route")
    assert str(link["mtu"]) in said.split()
    assert "10.0.2.2/24" in said and "default via 10.0.2.1" in said
    server = place.bed.layout.node_address
    reached = in_guest(place, NAMESPACE, VM, f"nc -w 30 {server} 10250 </dev/null && echo reached")
    assert "reached" in reached


def test_a_guest_that_has_read_its_disk_gives_memory_back(place: OnCluster, pod: Object) -> None:
    """No copy of the disk stays in the page cache of the Pod, which the kubelet would count as used."""
    for memory in ("640Mi", "256Mi"):
        change = {"memory": {"guest": memory}, "resources": sized(memory)}
        patch = json.dumps({"spec": {"template": {"spec": {"domain": change}}}})
        place.kubectl("patch", "vm", VM, "-n", NAMESPACE, "--type=merge", "-p", patch)
        wait_for(place, NAMESPACE, f"vmi/{VM}", f"jsonpath={{.status.memory.guestCurrent}}={memory}")
        settled = f"jsonpath={{.status.hotvirt.settledGeneration}}={generation(place)}"
        wait_for(place, NAMESPACE, f"vmi/{VM}", settled)
        if memory == "640Mi":
            in_guest(place, NAMESPACE, VM, "cat /dev/vda > /dev/null; echo")
    limits = place.limits(pod)
    assert limits is not None and limits.memory is not None
    assert limits.memory < 512 << 20


def generation(place: OnCluster) -> int:
    return int(place.get("vmi", VM, "-n", NAMESPACE)["metadata"]["generation"])


def test_the_end_without_grace_is_at_once(place: OnCluster, pod: Object) -> None:
    """Last: a VM without any grace is gone in the time that the kubelet takes.

    Zero would take it from the API before the kubelet has ended it.
    """
    assert pod["spec"]["terminationGracePeriodSeconds"] == 1
    place.kubectl(
        "patch", "vm", VM, "-n", NAMESPACE, "--type=merge", "-p", '{"spec":{"runStrategy":"Halted"}}'
    )
    wait_until(lambda: not place.get("pods", "-n", NAMESPACE)["items"], "the Pod to go")
