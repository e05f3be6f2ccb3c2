"""The files that the launcher prepares: images, claims, the cloud-init volume."""

from __future__ import annotations

import base64
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hotvirt.hypervisor import files
from hotvirt.hypervisor.files import ROOT_VARIABLE, FilesError
from hotvirt.hypervisor.iso import iso_image
from hotvirt.hypervisor.qemu.images import ImageError, create_overlay, image_format
from hotvirt.plan.machine import Cpu, Disk, Firmware, Kernel, Machine, Memory, Source

MIB = 1 << 20


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A container's folders."""
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    run = tmp_path / "var/run"
    for name in ("hotvirt", "hotvirt-scratch", "hotvirt-images", "hotvirt-claims", "hotvirt-secrets"):
        (run / name).mkdir(parents=True)
    return run


def machine(*disks: Disk, **changes: Any) -> Machine:
    settings: dict[str, Any] = {
        "name": "web",
        "namespace": "shop",
        "hostname": "web",
        "uuid": "5d1b2f6e-8c1e-4b62-9a51-1d6d5c0f3a77",
        "cpu": Cpu(),
        "memory": Memory(boot=64 * MIB),
        "disks": disks,
    }
    return Machine(**(settings | changes))


def container_disk(pod: Path, content: bytes = bytes(MIB), name: str = "disk.img") -> Disk:
    folder = pod / "hotvirt-images/os/disk"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(content)
    return Disk(name="os", source=Source(kind="containerDisk", volume="os"))


def qcow2(path: Path, *options: str) -> Path:
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *options, path, "1M"], check=True)
    return path


def test_headers_say_what_an_image_is(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(4096))
    assert image_format(str(raw)) == "raw"
    assert image_format(str(qcow2(tmp_path / "a.qcow2"))) == "qcow2"


def test_an_image_that_reaches_for_other_files_is_refused(tmp_path: Path) -> None:
    base = qcow2(tmp_path / "base.qcow2")
    over = qcow2(tmp_path / "over.qcow2", "-b", str(base), "-F", "qcow2")
    with pytest.raises(ImageError, match=r"backing file.*qemu-img convert"):
        image_format(str(over))
    data = qcow2(tmp_path / "data.qcow2", "-o", f"data_file={tmp_path}/elsewhere")
    with pytest.raises(ImageError, match="another file"):
        image_format(str(data))


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (b"KDMV" + bytes(200), "vmdk"),
        (b"vhdxfile" + bytes(200), "vhdx"),
        (b"QFI\xfb", "ends within its header"),
        (b"QFI\xfb" + struct.pack(">I", 9) + bytes(100), "version 9"),
    ],
)
def test_foreign_and_broken_images_are_refused(tmp_path: Path, header: bytes, sentence: str) -> None:
    image = tmp_path / "image"
    image.write_bytes(header)
    with pytest.raises(ImageError, match=sentence):
        image_format(str(image))


def test_an_overlay_keeps_its_content_when_it_is_asked_for_again(tmp_path: Path) -> None:
    base, over = tmp_path / "base", tmp_path / "over.qcow2"
    base.write_bytes(bytes(MIB))
    create_overlay(str(over), str(base), "raw")
    with over.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"a guest wrote this")
    create_overlay(str(over), str(base), "raw")
    assert over.read_bytes().endswith(b"a guest wrote this")


def test_a_container_disk_is_copied_on_write(pod: Path) -> None:
    found = files.prepare(machine(container_disk(pod))).disks["os"]
    assert found.path == f"{pod}/hotvirt-scratch/disk-os.qcow2"
    assert (found.format, found.backing_format, found.readonly) == ("qcow2", "raw", False)
    assert found.backing == os.path.realpath(pod / "hotvirt-images/os/disk/disk.img")
    assert found.backing_direct is files._can_be_direct(found.backing)


def test_a_container_disk_has_one_file(pod: Path) -> None:
    disk = container_disk(pod)
    (pod / "hotvirt-images/os/disk/second.img").write_bytes(b"")
    with pytest.raises(FilesError, match="it has 2"):
        files.prepare(machine(disk))
    named = Disk(name="os", source=Source(kind="containerDisk", volume="os", path="/disk/disk.img"))
    assert files.prepare(machine(named)).disks["os"].backing.endswith("disk.img")


@pytest.mark.parametrize("path", ["../../../../etc/passwd", "/disk/../../claims", "/disk/link"])
def test_a_path_that_leads_out_of_its_image_is_refused(pod: Path, path: str) -> None:
    container_disk(pod)
    (pod / "hotvirt-images/os/disk/link").symlink_to("/etc/passwd")
    disk = Disk(name="os", source=Source(kind="containerDisk", volume="os", path=path))
    with pytest.raises(FilesError, match=r"leads out of its image|is not there"):
        files.prepare(machine(disk))


def test_a_claim_is_raw_whatever_its_header_says(pod: Path) -> None:
    folder = pod / "hotvirt-claims/data"
    folder.mkdir()
    qcow2(folder / "disk.img")
    disk = Disk(name="data", source=Source(kind="claim", volume="data"))
    assert files.prepare(machine(disk)).disks["data"].format == "raw"
    (folder / "disk.img").unlink()
    (folder / "disk.img").symlink_to("/etc/passwd")
    with pytest.raises(FilesError, match="not a regular file"):
        files.prepare(machine(disk))
    (folder / "disk.img").unlink()
    with pytest.raises(FilesError, match=r"no disk\.img"):
        files.prepare(machine(disk))


def test_cache_none_falls_back_where_the_file_system_cannot_and_says_so() -> None:
    disk = Disk(name="a", source=Source(kind="emptyDisk", volume="a", capacity=MIB))
    scratch = Path("/dev/shm") / f"hotvirt-test-{os.getpid()}"
    (scratch / "var/run/hotvirt-scratch").mkdir(parents=True)
    os.environ[ROOT_VARIABLE] = str(scratch)
    try:
        found = files.prepare(machine(disk))
        direct = files._can_be_direct(found.disks["a"].path)
        assert found.disks["a"].direct is direct
        assert bool(found.notes) is not direct
    finally:
        del os.environ[ROOT_VARIABLE]
        subprocess.run(["rm", "-r", scratch], check=True)


def test_no_efi_firmware_is_a_sentence(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_EFI_FIRMWARE", ())
    with pytest.raises(FilesError, match="install the package ovmf"):
        files.prepare(machine(firmware=Firmware(kind="efi")))


def test_the_variables_of_efi_are_the_machines_own(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, variables = pod / "code.fd", pod / "vars.fd"
    code.write_bytes(b"code")
    variables.write_bytes(b"vars")
    monkeypatch.setattr(files, "_EFI_FIRMWARE", ((str(code), str(variables)),))
    found = files.prepare(machine(firmware=Firmware(kind="efi")))
    assert found.efi_code == str(code) and Path(found.efi_vars).read_bytes() == b"vars"
    Path(found.efi_vars).write_bytes(b"changed by the guest")
    files.prepare(machine(firmware=Firmware(kind="efi")))
    assert Path(found.efi_vars).read_bytes() == b"changed by the guest"


def test_kernel_boot_finds_its_files(pod: Path) -> None:
    folder = pod / "hotvirt-images/kernel/boot"
    folder.mkdir(parents=True)
    for name in ("vmlinuz", "initrd"):
        (folder / name).write_bytes(b"x")
    kernel = Kernel(kernel_path="/boot/vmlinuz", initrd_path="boot/initrd")
    found = files.prepare(machine(kernel=kernel))
    assert found.kernel.endswith("boot/vmlinuz") and found.initrd.endswith("boot/initrd")
    with pytest.raises(FilesError, match="kernel of kernelBoot is not there"):
        files.prepare(machine(kernel=Kernel(kernel_path="/other")))


def content(image: bytes, folder: Path, name: str) -> bytes:
    """Read a file of an image with a tool that is not ours."""
    path, out = folder / "image.iso", folder / "out"
    path.write_bytes(image)
    out.unlink(missing_ok=True)
    subprocess.run(
        ["xorriso", "-osirrox", "on", "-indev", path, "-extract", f"/{name}", out],
        check=True,
        capture_output=True,
    )
    return out.read_bytes()


def test_the_iso_is_read_by_others(tmp_path: Path) -> None:
    long = b"0123456789" * 1000
    image = iso_image("cidata", {"user-data": b"#!/bin/sh\n", "meta-data": long, "network-config": b""})
    assert content(image, tmp_path, "user-data") == b"#!/bin/sh\n"
    assert content(image, tmp_path, "meta-data") == long
    assert image[0x8028:0x802E] == b"cidata"
    probed = subprocess.run(
        ["blkid", "-o", "value", "-s", "LABEL", tmp_path / "image.iso"], capture_output=True, text=True
    )
    assert probed.stdout.strip() == "cidata"


def test_cloud_init_from_text_base64_and_secrets(pod: Path, tmp_path: Path) -> None:
    plain = files.cloud_init_image(
        Source(kind="cloudInit", volume="a", user_data="#!/bin/sh", network_data="version: 2"), machine()
    )
    assert content(plain, tmp_path, "user-data") == b"#!/bin/sh"
    assert content(plain, tmp_path, "network-config") == b"version: 2"
    assert b"local-hostname: web\n" in content(plain, tmp_path, "meta-data")
    packed = base64.b64encode(b"\x1f\x8b\x08binary").decode()
    binary = files.cloud_init_image(Source(kind="cloudInit", volume="a", user_data_base64=packed), machine())
    assert content(binary, tmp_path, "user-data") == b"\x1f\x8b\x08binary"
    secret = Source(kind="cloudInit", volume="a", user_data_secret=True)
    with pytest.raises(FilesError, match="userdata or userData"):
        files.cloud_init_image(secret, machine())
    (pod / "hotvirt-secrets/a/userdata").mkdir(parents=True)
    (pod / "hotvirt-secrets/a/userdata/userData").write_bytes(b"secret script")
    assert content(files.cloud_init_image(secret, machine()), tmp_path, "user-data") == b"secret script"
