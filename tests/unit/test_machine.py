"""From a VMI to the description of its machine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotvirt.api import codec
from hotvirt.api.kubevirt import VirtualMachineInstance
from hotvirt.plan.machine import Disk, Machine, MachineError, from_json, machine_for, to_json
from hotvirt.plan.memory import MEMORY_BLOCK

MIB = 1 << 20


def vmi(spec: dict[str, Any] | None = None, **metadata: Any) -> VirtualMachineInstance:
    body = {"domain": {"cpu": {"sockets": 1}, "memory": {"guest": "1Gi"}, "devices": {}}} | (spec or {})
    meta = {"name": "web", "namespace": "shop", "uid": "4d4f", **metadata}
    return codec.convert({"metadata": meta, "spec": body}, VirtualMachineInstance)


def domain(**fields: Any) -> dict[str, Any]:
    return {"domain": {"memory": {"guest": "1Gi"}, "devices": {}, **fields}}


def with_disks(disks: list[dict[str, Any]], volumes: list[dict[str, Any]]) -> dict[str, Any]:
    return domain(devices={"disks": disks}) | {"volumes": volumes}


@pytest.mark.parametrize(("architecture", "starts"), [("", True), ("amd64", True), ("arm64", False)])
def test_no_machine_of_another_architecture_is_started_instead(architecture: str, starts: bool) -> None:
    asked = vmi(domain() | {"architecture": architecture})
    if starts:
        assert machine_for(asked).name == "web"
    else:
        with pytest.raises(MachineError, match="starts amd64 machines only, not arm64"):
            machine_for(asked)


def test_the_sizes() -> None:
    cpu = {"sockets": 2, "cores": 3, "threads": 2, "maxSockets": 8, "model": "Haswell"}
    made = machine_for(vmi(domain(cpu=cpu, memory={"guest": "1Gi", "maxGuest": "4Gi"})))
    assert (made.cpu.sockets, made.cpu.cores, made.cpu.threads, made.cpu.max_sockets) == (2, 3, 2, 8)
    assert made.cpu.model == "Haswell"
    assert (made.memory.boot, made.memory.region, made.memory.plugged) == (1024 * MIB, 3072 * MIB, 0)


def test_without_a_maximum_there_is_no_region_and_no_spare_socket() -> None:
    made = machine_for(vmi())
    assert made.memory.region == 0
    assert made.cpu.max_sockets == 1


def test_a_smallest_size_is_the_boot_memory_and_the_rest_is_plugged_at_start() -> None:
    made = machine_for(
        vmi(domain(memory={"guest": "2Gi", "maxGuest": "4Gi"}), annotations={"hotvirt.io/min-guest": "512Mi"})
    )
    assert (made.memory.boot, made.memory.plugged) == (512 * MIB, 1536 * MIB)
    assert made.memory.region == 3584 * MIB


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 20))
def test_the_region_always_reaches_the_maximum_in_whole_blocks(guest: int, more: int) -> None:
    sizes = {"guest": f"{guest}Mi", "maxGuest": f"{guest + more}Mi"}
    memory = machine_for(vmi(domain(memory=sizes))).memory
    assert memory.region % MEMORY_BLOCK == 0
    assert more * MIB <= memory.region < more * MIB + MEMORY_BLOCK


def test_every_kind_of_disk() -> None:
    made = machine_for(
        vmi(
            with_disks(
                [
                    {"name": "system", "disk": {"bus": "virtio"}, "bootOrder": 1, "serial": "S1"},
                    {"name": "data", "disk": {"bus": "scsi"}, "cache": "writethrough", "shareable": True},
                    {"name": "media", "cdrom": {}},
                    {"name": "raw", "lun": {}},
                    {"name": "seed", "disk": {"bus": "virtio", "readonly": True}},
                ],
                [
                    {"name": "system", "containerDisk": {"image": "my/os:1"}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
                    {"name": "raw", "dataVolume": {"name": "raw"}},
                    {"name": "seed", "cloudInitNoCloud": {"userData": "#!/bin/sh\necho $HOME $$"}},
                    {"name": "extra", "emptyDisk": {"capacity": "1Gi"}},
                ],
            )
        )
    )
    disks = {disk.name: disk for disk in made.disks}
    assert list(disks) == ["system", "data", "media", "raw", "seed", "extra"]
    assert (disks["system"].boot_order, disks["system"].serial) == (1, "S1")
    assert (disks["data"].bus, disks["data"].cache, disks["data"].shareable) == ("scsi", "writethrough", True)
    assert disks["data"].source is not None and disks["data"].source.readonly
    assert (disks["media"].kind, disks["media"].bus, disks["media"].source) == ("cdrom", "sata", None)
    assert (disks["raw"].kind, disks["raw"].bus) == ("lun", "scsi")
    assert disks["seed"].readonly
    assert disks["extra"].source is not None and disks["extra"].source.capacity == 1024 * MIB
    kinds = [disk.source.kind for disk in made.disks if disk.source]
    assert kinds == ["containerDisk", "claim", "claim", "cloudInit", "emptyDisk"]


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (with_disks([{"name": "a", "disk": {}}], []), "a has no volume"),
        (with_disks([{"name": "a", "disk": {"bus": "ide"}}], []), "'ide' is not known"),
        (with_disks([{"name": "a", "cdrom": {"bus": "virtio"}}], []), "cannot be on the bus virtio"),
        (with_disks([], [{"name": "a", "sysprep": {}}]), "volume a: Hotvirt has"),
        (
            with_disks([], [{"name": "a", "cloudInitNoCloud": {"userDataBase64": "!"}}]),
            "userDataBase64 is not base64",
        ),
        (domain(firmware={"uuid": "me"}), "'me' is not a UUID"),
        (domain(firmware={"kernelBoot": {"container": {"image": "k"}}}), "kernelPath"),
        (domain(devices={"interfaces": [{"name": "a"}, {"name": "b"}]}), "one interface"),
    ],
)
def test_what_cannot_be_built_is_refused_with_a_sentence(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MachineError, match=sentence):
        machine_for(vmi(spec))


def test_the_network_card() -> None:
    card = {"name": "default", "masquerade": {}, "ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}]}
    made = machine_for(vmi(domain(devices={"interfaces": [card | {"macAddress": "02-AA-00-00-00-01"}]})))
    assert made.interfaces[0].mac == "02:aa:00:00:00:01"
    assert [(port.port, port.protocol) for port in made.interfaces[0].ports] == [(80, "TCP"), (53, "UDP")]


def test_a_card_comes_by_itself_with_a_lasting_address_unless_it_is_not_wanted() -> None:
    first, again = machine_for(vmi()), machine_for(vmi())
    assert first.interfaces == again.interfaces
    assert first.interfaces[0].mac.startswith("02:")
    assert machine_for(vmi(uid="other")).interfaces[0].mac != first.interfaces[0].mac
    assert machine_for(vmi(domain(devices={"autoattachPodInterface": False}))).interfaces == ()


def test_the_uuid_is_the_users_or_lasts_as_long_as_the_name() -> None:
    given_uuid = "5D1B2F6E-8C1E-4B62-9A51-1D6D5C0F3A77"
    assert machine_for(vmi(domain(firmware={"uuid": given_uuid}))).uuid == given_uuid.lower()
    assert machine_for(vmi(uid="a")).uuid == machine_for(vmi(uid="b")).uuid
    assert machine_for(vmi(name="other")).uuid != machine_for(vmi()).uuid


def test_firmware_and_kernel() -> None:
    efi = machine_for(vmi(domain(firmware={"bootloader": {"efi": {"secureBoot": False}}, "serial": "S"})))
    assert (efi.firmware.kind, efi.firmware.secure_boot, efi.firmware.serial) == ("efi", False, "S")
    assert machine_for(vmi(domain(firmware={"bootloader": {"efi": {}}}))).firmware.secure_boot
    boot = {
        "container": {"image": "k", "kernelPath": "/vmlinuz", "initrdPath": "/initrd"},
        "kernelArgs": "a=b",
    }
    kernel = machine_for(vmi(domain(firmware={"kernelBoot": boot}))).kernel
    assert kernel is not None and (kernel.kernel_path, kernel.initrd_path, kernel.args) == (
        "/vmlinuz",
        "/initrd",
        "a=b",
    )


def test_the_json_survives_a_pods_environment_and_names_every_field() -> None:
    seed = {"name": "seed", "cloudInitNoCloud": {"userData": "echo $(HOSTNAME) $$ ${HOME}"}}
    made = machine_for(vmi(with_disks([], [seed])))
    text = to_json(made)
    assert "$" not in text, "Kubernetes would expand it"
    assert from_json(text) == made
    plain = json.loads(text)
    assert set(plain) == set(Machine.__struct_fields__)
    assert set(plain["disks"][0]) == set(Disk.__struct_fields__)


def test_names_that_are_long_or_dotted_make_a_host_name() -> None:
    assert machine_for(vmi(name="a" * 80)).hostname == "a" * 63
    assert machine_for(vmi({**domain(), "hostname": "given"})).hostname == "given"
    assert machine_for(vmi(name="web.example.com")).hostname == "web"
