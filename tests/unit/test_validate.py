"""What admission refuses: every cause by its field path, and nothing of a good manifest."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from hotvirt.api.quantity import Quantity
from hotvirt.plan.config import ClusterConfig
from hotvirt.plan.defaults import vmi_defaults
from hotvirt.plan.validate import validate_edit, validate_vm, validate_vmi
from hotvirt.plan.validate_cluster import validate_kubevirt
from hotvirt.plan.validate_storage import validate_data_volume

CONFIG = ClusterConfig()
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
T = "spec.template.spec"
D = f"{T}.domain"


def good_vm() -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": "a"},
        "spec": {
            "runStrategy": "Always",
            "template": {
                "metadata": {"annotations": {}},
                "spec": {
                    "domain": {
                        "cpu": {"sockets": 1, "maxSockets": 4},
                        "memory": {"guest": "1Gi", "maxGuest": "4Gi"},
                        "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
                        "firmware": {},
                        "devices": {
                            "disks": [{"name": "root", "disk": {"bus": "virtio"}, "bootOrder": 1}],
                            "interfaces": [{"name": "default", "masquerade": {}, "ports": [{"port": 80}]}],
                        },
                    },
                    "networks": [{"name": "default", "pod": {}}],
                    "volumes": [
                        {"name": "root", "containerDisk": {"image": "a/b:1"}},
                        {"name": "seed", "cloudInitNoCloud": {"userData": "#!/bin/sh"}},
                    ],
                },
            },
            "dataVolumeTemplates": [],
        },
    }


def put(obj: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one field set; `a.b[0].c` walks lists; `[+]` appends."""
    changed = copy.deepcopy(obj)
    target: Any = changed
    steps = path.replace("[", ".[").split(".")
    for step in steps[:-1]:
        target = target[int(step[1:-1])] if step.startswith("[") else target[step]
    last = steps[-1]
    if last == "[+]":
        target.append(value)
    elif last.startswith("["):
        target[int(last[1:-1])] = value
    else:
        target[last] = value
    return changed


def fields(causes: list[Any]) -> list[str]:
    return [cause.field for cause in causes]


def test_a_good_manifest_is_accepted() -> None:
    assert validate_vm(good_vm(), CONFIG) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_accepted(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] == "VirtualMachine":
            assert validate_vm(document, CONFIG) == []
        if document["kind"] == "DataVolume":
            assert validate_data_volume(document) == []


REFUSED: list[tuple[str, Any, str, str]] = [
    # (where, what is written there, the field of the cause, a part of its message)
    ("spec.runStrategy", None, "spec.runStrategy", "set one of Always"),
    ("spec.running", True, "spec.running", "exclude each other"),
    ("spec.runStrategy", "Sometimes", "spec.runStrategy", "'Sometimes' is not known: use Always"),
    ("spec.runStrategy", "WaitAsReceiver", "spec.runStrategy", "other clusters"),
    ("spec.template", None, "spec.template", "needs a template"),
    ("spec.instancetype", {}, "spec.instancetype.name", "name the instancetype"),
    (f"{D}.cpu.sockets", 0, f"{D}.cpu.sockets", "at least 1"),
    (f"{D}.cpu.sockets", -1, f"{D}.cpu.sockets", "-1 is too few"),
    (f"{D}.cpu.cores", 0, f"{D}.cpu.cores", "at least 1"),
    (f"{D}.cpu.cores", 100000, f"{D}.cpu", "100000 vCPUs; 255 are possible"),
    (f"{D}.cpu.sockets", 5, f"{D}.cpu.sockets", "5 sockets are more than maxSockets (4)"),
    (f"{D}.cpu.maxSockets", 256, f"{D}.cpu.maxSockets", "256 vCPUs; 255 are possible"),
    (f"{D}.cpu.features", [{"policy": "x"}], f"{D}.cpu.features[0].name", "needs a name"),
    (f"{D}.memory", {}, f"{D}.resources.requests.memory", "more than its limit (512Mi)"),
    (f"{D}.memory.guest", "0", f"{D}.memory.guest", "too little"),
    (f"{D}.memory.guest", "-1Gi", f"{D}.memory.guest", "too little"),
    (f"{D}.cpu.threads", 0, f"{D}.cpu.threads", "at least 1"),
    (f"{D}.cpu.maxSockets", -2, f"{D}.cpu.maxSockets", "-2 is too few"),
    (f"{D}.memory.guest", "15Mi", f"{D}.memory.guest", "15Mi is too little"),
    (f"{D}.memory.guest", "17Ti", f"{D}.memory.guest", "17Ti is too much"),
    (f"{D}.memory.guest", "100Pi", f"{D}.memory.guest", "too much"),
    (f"{D}.memory.guest", "lots", f"{D}.memory.guest", "not a quantity"),
    (f"{D}.memory.guest", "5Gi", f"{D}.memory.guest", "more than maxGuest (4Gi)"),
    (f"{D}.memory.guest", "1025Mi", f"{D}.memory.guest", "not a multiple of 2Mi: use 1Gi or 1026Mi"),
    (f"{D}.memory.guest", "1G", f"{D}.memory.guest", "use 952Mi or 954Mi"),
    (f"{D}.memory.maxGuest", "0", f"{D}.memory.maxGuest", "not between"),
    (f"{D}.memory.maxGuest", "512Mi", f"{D}.memory.guest", "more than maxGuest (512Mi)"),
    (f"{D}.memory.maxGuest", "4097Mi", f"{D}.memory.maxGuest", "use 4Gi or 4098Mi"),
    (f"{D}.memory.hugepages", {"pageSize": "3Mi"}, f"{D}.memory.hugepages.pageSize", "use 2Mi or 1Gi"),
    (f"{D}.resources.requests.memory", "3Gi", f"{D}.resources.requests.memory", "more than its limit (2Gi)"),
    (f"{D}.resources.requests.memory", "-1", f"{D}.resources.requests.memory", "negative"),
    (f"{D}.resources.limits.memory", "-1", f"{D}.resources.limits.memory", "negative"),
    (f"{D}.firmware", {"uuid": "x"}, f"{D}.firmware.uuid", "not a UUID"),
    (f"{D}.firmware", {"bootloader": {"bios": {}, "efi": {}}}, f"{D}.firmware.bootloader", "not both"),
    (
        f"{D}.firmware",
        {"kernelBoot": {"kernelArgs": "x"}},
        f"{D}.firmware.kernelBoot.container",
        "needs the image",
    ),
    (
        f"{D}.firmware",
        {"kernelBoot": {"container": {"image": "a"}}},
        f"{D}.firmware.kernelBoot.container.kernelPath",
        "name the kernel's path",
    ),
    (f"{D}.machine", {"type": "pc"}, f"{D}.machine.type", "use q35"),
    (f"{D}.devices.disks[0].name", "Root", f"{D}.devices.disks[0].name", "lower-case"),
    (f"{D}.devices.disks[0].name", "x" * 64, f"{D}.devices.disks[0].name", "64 characters; 63 are allowed"),
    (f"{D}.devices.disks[0].name", "other", f"{D}.devices.disks[0].name", "no volume 'other'"),
    (f"{D}.devices.disks[+]", {"name": "root"}, f"{D}.devices.disks[1].name", "another disk"),
    (f"{D}.devices.disks[0].disk.bus", "usb", f"{D}.devices.disks[0].disk.bus", "use virtio or scsi or sata"),
    (f"{D}.devices.disks[0].cdrom", {}, f"{D}.devices.disks[0]", "set one of disk, cdrom"),
    (
        f"{D}.devices.disks[+]",
        {"name": "seed", "cdrom": {"bus": "virtio"}},
        f"{D}.devices.disks[1].cdrom.bus",
        "use sata or scsi",
    ),
    (f"{D}.devices.disks[+]", {"name": "seed", "lun": {}}, f"{D}.devices.disks[1].lun", "volumeMode Block"),
    (f"{D}.devices.disks[0].serial", "a b", f"{D}.devices.disks[0].serial", "letters, digits"),
    (f"{D}.devices.disks[0].cache", "maybe", f"{D}.devices.disks[0].cache", "use none"),
    (f"{D}.devices.disks[0].bootOrder", 0, f"{D}.devices.disks[0].bootOrder", "first to boot has 1"),
    (f"{D}.devices.interfaces[0].bootOrder", 1, f"{D}.devices.interfaces[0].bootOrder", "disks[0] has"),
    (
        f"{D}.devices.interfaces[0].macAddress",
        "02:00",
        f"{D}.devices.interfaces[0].macAddress",
        "not an address",
    ),
    (
        f"{D}.devices.interfaces[0].macAddress",
        "01:00:00:00:00:01",
        f"{D}.devices.interfaces[0].macAddress",
        "multicast",
    ),
    (f"{D}.devices.interfaces[0].bridge", {}, f"{D}.devices.interfaces[0].bridge", "use masquerade: {}"),
    (
        f"{D}.devices.interfaces[0].binding",
        {"name": "p"},
        f"{D}.devices.interfaces[0].binding",
        "use masquerade",
    ),
    (f"{D}.devices.interfaces[0].model", "ne2k", f"{D}.devices.interfaces[0].model", "use virtio"),
    (
        f"{D}.devices.interfaces[0].ports",
        [{"port": 70000}],
        f"{D}.devices.interfaces[0].ports[0].port",
        "between 1 and 65535",
    ),
    (f"{D}.devices.interfaces", [], f"{T}.networks[0].name", "no interface uses"),
    (f"{T}.networks", [], f"{D}.devices.interfaces[0].name", "no network 'default'"),
    (f"{T}.networks[0].pod", None, f"{T}.networks[0].pod", "set pod: {}"),
    (
        f"{T}.networks[0]",
        {"name": "default", "multus": {"networkName": "x"}},
        f"{T}.networks[0].multus",
        "use pod",
    ),
    (
        f"{T}.volumes[+]",
        {"name": "root", "emptyDisk": {"capacity": "1Gi"}},
        f"{T}.volumes[2].name",
        "another volume",
    ),
    (f"{T}.volumes[+]", {"name": "b"}, f"{T}.volumes[2]", "no source"),
    (f"{T}.volumes[0].emptyDisk", {"capacity": "1Gi"}, f"{T}.volumes[0]", "2 sources"),
    (
        f"{T}.volumes[+]",
        {"name": "b", "hostDisk": {"path": "/x"}},
        f"{T}.volumes[2].hostDisk",
        "no hostDisk volumes",
    ),
    (f"{T}.volumes[+]", {"name": "b", "emptyDisk": {}}, f"{T}.volumes[2].emptyDisk.capacity", "needs a size"),
    (
        f"{T}.volumes[+]",
        {"name": "b", "containerDisk": {}},
        f"{T}.volumes[2].containerDisk.image",
        "name the image",
    ),
    (f"{T}.volumes[0].containerDisk.path", "../x", f"{T}.volumes[0].containerDisk.path", "without '..'"),
    (f"{T}.volumes[1].cloudInitNoCloud", {}, f"{T}.volumes[1].cloudInitNoCloud", "there is no data"),
    (
        f"{T}.volumes[1].cloudInitNoCloud.userDataBase64",
        "YQ==",
        f"{T}.volumes[1].cloudInitNoCloud",
        "set one of userData, userDataBase64",
    ),
    (
        f"{T}.volumes[1].cloudInitNoCloud",
        {"userDataBase64": "?"},
        f"{T}.volumes[1].cloudInitNoCloud.userDataBase64",
        "not base64",
    ),
    (
        f"{T}.volumes[1].cloudInitNoCloud.userData",
        "x" * 70000,
        f"{T}.volumes[1].cloudInitNoCloud",
        "put it in a secret",
    ),
    (f"{T}.hostname", "a.b", f"{T}.hostname", "lower-case"),
    (f"{T}.terminationGracePeriodSeconds", -1, f"{T}.terminationGracePeriodSeconds", "negative"),
    (f"{T}.startStrategy", "Fast", f"{T}.startStrategy", "use Paused"),
    (f"{T}.architecture", "mips", f"{T}.architecture", "use amd64"),
    (
        "spec.template.metadata.annotations",
        {"hotvirt.io/min-guest": "2Gi"},
        "spec.template.metadata.annotations[hotvirt.io/min-guest]",
        "more than the guest's memory",
    ),
    (
        "spec.template.metadata.annotations",
        {"hotvirt.io/min-guest": "some"},
        "spec.template.metadata.annotations[hotvirt.io/min-guest]",
        "not a quantity",
    ),
    (
        "spec.template.metadata.annotations",
        {"hotvirt.io/min-guest": "0"},
        "spec.template.metadata.annotations[hotvirt.io/min-guest]",
        "too little",
    ),
    (
        "spec.template.metadata.annotations",
        {"hotvirt.io/min-guest": "513Mi"},
        "spec.template.metadata.annotations[hotvirt.io/min-guest]",
        "use 512Mi or 514Mi",
    ),
    (
        "spec.dataVolumeTemplates",
        [{"metadata": {"name": "d"}, "spec": {"source": {"blank": {}}}}],
        "spec.dataVolumeTemplates[0].metadata.name",
        "no volume uses 'd'",
    ),
    (f"{D}.cpu.sockets", "two", f"{D}.cpu.sockets", "expected int"),
]


@pytest.mark.parametrize(("where", "value", "field", "message"), REFUSED)
def test_refused(where: str, value: Any, field: str, message: str) -> None:
    vm = put(good_vm(), where, value)
    if where == f"{D}.memory":
        vm = put(vm, f"{D}.resources.limits.memory", "512Mi")
    causes = validate_vm(vm, CONFIG)
    assert field in fields(causes)
    assert any(message in cause.message for cause in causes if cause.field == field)


def test_a_guest_may_not_have_too_much_beyond_min_guest() -> None:
    vm = put(good_vm(), "spec.template.metadata.annotations", {"hotvirt.io/min-guest": "256Mi"})
    assert validate_vm(put(vm, f"{D}.memory.guest", "2Gi"), CONFIG) == []
    (cause,) = validate_vm(put(vm, f"{D}.memory.guest", "3Gi"), CONFIG)
    assert "256Mi is too little for a guest of 3Gi" in cause.message
    assert cause.message.endswith("it needs at least 384Mi")


def test_an_edit_to_a_size_that_no_running_machine_can_have_is_refused_unless_it_has_it() -> None:
    odd, plain = (put(good_vm(), f"{D}.memory", {"guest": guest}) for guest in ("1G", "1Gi"))
    started_odd, started_plain = ({"spec": each["spec"]["template"]["spec"]} for each in (odd, plain))
    assert validate_edit(odd, started_odd) == []
    assert validate_edit(plain, started_odd) == []
    assert validate_edit(odd, started_plain | {"status": {"phase": "Succeeded"}}) == []
    (cause,) = validate_edit(odd, started_plain)
    assert (cause.field, cause.message) == (
        f"{D}.memory.guest",
        "1G is not a multiple of 2Mi: use 952Mi or 954Mi",
    )


@pytest.mark.parametrize("guest", ["1G", "2G", "1025Mi", "1234567890"])
def test_a_machine_may_start_with_any_size_and_then_has_no_headroom(guest: str) -> None:
    odd = put(good_vm(), f"{D}.memory", {"guest": guest})
    assert validate_vm(odd, CONFIG) == []
    spec = vmi_defaults(odd["spec"]["template"]["spec"], CONFIG)
    assert "maxGuest" not in spec["domain"]["memory"]
    assert validate_vmi({"metadata": {"name": "a"}, "spec": spec}, CONFIG) == []
    marked = put(odd, "spec.template.metadata.annotations", {"hotvirt.io/min-guest": "512Mi"})
    assert fields(validate_vm(marked, CONFIG)) == [f"{D}.memory.guest"]


@given(
    st.integers(8, 8 << 20),
    st.integers(1, 300),
    st.integers(1, 10**6),
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(1, 1 << 40),
)
def test_a_vm_that_is_accepted_starts_whatever_the_clusters_maxima_are(
    blocks: int, sockets: int, ratio: int, most_sockets: int | None, most_mib: int | None
) -> None:
    most = None if most_mib is None else Quantity(f"{most_mib}Mi")
    config = ClusterConfig(max_hotplug_ratio=ratio, max_sockets=most_sockets, max_guest=most)
    vm = put(put(good_vm(), f"{D}.memory", {"guest": f"{blocks * 2}Mi"}), f"{D}.cpu", {"sockets": sockets})
    vm = put(vm, f"{D}.resources", {})
    assume(not validate_vm(vm, config))
    spec = vmi_defaults(vm["spec"]["template"]["spec"], config)
    assert validate_vmi({"metadata": {"name": "a"}, "spec": spec}, config) == []


@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_the_machine_type_that_is_filled_in_is_one_of_its_architecture(architecture: str) -> None:
    vm = put(good_vm(), f"{T}.architecture", architecture)
    assert validate_vm(vm, CONFIG) == []
    spec = vmi_defaults(vm["spec"]["template"]["spec"], CONFIG)
    assert validate_vmi({"metadata": {"name": "a"}, "spec": spec}, CONFIG) == []


def test_every_cause_is_named_at_once() -> None:
    vm = good_vm()
    for where, value, _, _ in (REFUSED[2], REFUSED[6], REFUSED[14], REFUSED[-8]):
        vm = put(vm, where, value)
    assert len(validate_vm(vm, CONFIG)) >= 4


def test_no_memory_at_all_tells_what_to_do() -> None:
    vm = put(put(good_vm(), f"{D}.memory", None), f"{D}.resources", {})
    assert [(cause.field, cause.type) for cause in validate_vm(vm, CONFIG)] == [
        (f"{D}.memory.guest", "FieldValueRequired")
    ]
    named = validate_vm(put(vm, "spec.instancetype", {"name": "u1.nano"}), CONFIG)
    assert "does not read the instance type 'u1.nano' yet" in named[0].message


def test_an_empty_cdrom_drive_is_fine() -> None:
    assert validate_vm(put(good_vm(), f"{D}.devices.disks[+]", {"name": "cd", "cdrom": {}}), CONFIG) == []


def test_the_same_claim_twice_is_refused() -> None:
    vm = put(good_vm(), f"{T}.volumes[+]", {"name": "b", "persistentVolumeClaim": {"claimName": "c"}})
    vm = put(vm, f"{T}.volumes[+]", {"name": "d", "dataVolume": {"name": "c"}})
    assert fields(validate_vm(vm, CONFIG)) == [f"{T}.volumes[3]"]


def test_a_vmi_is_checked_under_its_own_paths() -> None:
    vmi = {"metadata": {"name": "a"}, "spec": copy.deepcopy(good_vm()["spec"]["template"]["spec"])}
    assert validate_vmi(vmi, CONFIG) == []
    vmi["spec"]["domain"]["cpu"]["sockets"] = 9
    assert fields(validate_vmi(vmi, CONFIG)) == ["spec.domain.cpu.sockets"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3)
    ),
    max_leaves=6,
)
PLACES = sorted({where for where, *_ in REFUSED if not where.endswith("[+]")})


@given(st.sampled_from(PLACES), json_values)
def test_no_value_anywhere_breaks_the_checks(where: str, value: Any) -> None:
    for cause in validate_vm(put(good_vm(), where, value), CONFIG):
        assert cause.field and cause.message


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({}, "spec.source", "blank: {}"),
        ({"source": {"http": {"url": "x"}}}, "spec.source.http", "does not import"),
        ({"source": {"pvc": {"name": "x"}}}, "spec.source.pvc", "does not clone"),
        ({"source": {"upload": {}}}, "spec.source.upload", "does not take uploads"),
        ({"sourceRef": {"name": "x"}}, "spec.sourceRef", "does not clone"),
        ({"source": {"blank": {}}}, "spec.storage", "how large"),
        ({"source": {"blank": {}}, "storage": {}}, "spec.storage.resources.requests.storage", "how large"),
        ({"source": {"blank": {}}, "pvc": {}, "storage": {}}, "spec", "exclude each other"),
        (
            {"source": {"blank": {}}, "pvc": {"resources": {"requests": {"storage": "0"}}}},
            "spec.pvc.resources.requests.storage",
            "not a size",
        ),
        (
            {"source": {"blank": {}}, "storage": {"volumeMode": "Tape"}},
            "spec.storage.volumeMode",
            "use Filesystem",
        ),
    ],
)
def test_data_volumes(spec: dict[str, Any], field: str, message: str) -> None:
    causes = validate_data_volume({"metadata": {"name": "d"}, "spec": spec})
    assert any(cause.field == field and message in cause.message for cause in causes)


def test_a_blank_data_volume_is_accepted() -> None:
    spec = {"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "1Gi"}}}}
    assert validate_data_volume({"spec": spec}) == []


@pytest.mark.parametrize(
    ("configuration", "field"),
    [
        ({"vmRolloutStrategy": "Later"}, "vmRolloutStrategy"),
        ({"liveUpdateConfiguration": {"maxCpuSockets": 0}}, "liveUpdateConfiguration.maxCpuSockets"),
        ({"liveUpdateConfiguration": {"maxHotplugRatio": -1}}, "liveUpdateConfiguration.maxHotplugRatio"),
        ({"liveUpdateConfiguration": {"maxGuest": "-1Gi"}}, "liveUpdateConfiguration.maxGuest"),
        ({"developerConfiguration": {"memoryOvercommit": 5}}, "developerConfiguration.memoryOvercommit"),
        ({"developerConfiguration": {"cpuAllocationRatio": -1}}, "developerConfiguration.cpuAllocationRatio"),
        (
            {"developerConfiguration": {"featureGates": ["A"], "disabledFeatureGates": ["A"]}},
            "developerConfiguration.disabledFeatureGates",
        ),
        ({"additionalGuestMemoryOverheadRatio": "0.5"}, "additionalGuestMemoryOverheadRatio"),
        ({"cpuRequest": "-1"}, "cpuRequest"),
    ],
)
def test_cluster_settings(configuration: dict[str, Any], field: str) -> None:
    assert fields(validate_kubevirt({"spec": {"configuration": configuration}})) == [
        f"spec.configuration.{field}"
    ]
    assert validate_kubevirt({"spec": {"configuration": {"vmRolloutStrategy": None}}}) == []
