"""The local image store: names, what is a disk, what is refused, and that an import appears in one step."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from hotvirt.embedded.images import ImageError, ImageStore, normalize

MIB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def raw_disk(path: Path, size: int = 4 * MIB) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(510)
        file.write(b"\x55\xaa")
    return path


def qcow2(path: Path, *options: str) -> Path:
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *options, str(path), "8M"], check=True)
    return path


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("my/os:1", "my/os:1"),
        ("my/os", "my/os:latest"),
        ("os", "os:latest"),
        (
            "registry:5000/kubevirt/alpine-container-disk-demo:devel",
            "registry:5000/kubevirt/alpine-container-disk-demo:devel",
        ),
        ("quay.io/containerdisks/fedora", "quay.io/containerdisks/fedora:latest"),
        ("a@sha256:" + "0" * 64, "a@sha256:" + "0" * 64),
    ],
)
def test_names_get_the_default_tag(name: str, full: str) -> None:
    assert normalize(name) == full


@pytest.mark.parametrize("name", ["", "My/OS", "a b", "../etc/passwd", "a/", "/a", "a:", "a" * 300, "a\n"])
def test_what_is_no_name_is_refused(store: ImageStore, name: str) -> None:
    with pytest.raises(ImageError, match="not an image name"):
        normalize(name)
    assert store.resolve(name) is None


def test_a_raw_disk_is_imported_sparse_and_read_only(store: ImageStore, tmp_path: Path) -> None:
    image = store.import_image("my/os:1", raw_disk(tmp_path / "disk.img", 64 * MIB))
    rootfs = store.resolve("my/os:1")
    assert rootfs is not None
    (disk,) = (rootfs / "disk").iterdir()
    assert disk.name == "disk.img"
    assert disk.stat().st_size == 64 * MIB == image.virtual_size
    assert disk.stat().st_blocks * 512 < MIB
    assert disk.stat().st_mode & 0o222 == 0
    assert disk.read_bytes() == (tmp_path / "disk.img").read_bytes()
    assert image.format == "raw"
    assert [found.name for found in store.list()] == ["my/os:1"]


def test_a_disk_comes_from_another_file_system(store: ImageStore) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        disk = raw_disk(Path(elsewhere) / "disk.img")
        assert disk.stat().st_dev != store.folder.parent.stat().st_dev
        store.import_image("my/os:1", disk)
        rootfs = store.resolve("my/os:1")
        assert rootfs is not None
        assert (rootfs / "disk" / "disk.img").read_bytes() == disk.read_bytes()


def test_a_qcow2_disk_keeps_its_format(store: ImageStore, tmp_path: Path) -> None:
    image = store.import_image("my/os", qcow2(tmp_path / "disk"))
    rootfs = store.resolve("my/os:latest")
    assert rootfs is not None
    assert (rootfs / "disk" / "disk.qcow2").exists()
    assert (image.format, image.virtual_size, image.kind) == ("qcow2", 8 * MIB, "disk")


def test_the_same_content_has_the_same_digest(store: ImageStore, tmp_path: Path) -> None:
    first = store.import_image("a", raw_disk(tmp_path / "1.img"))
    second = store.import_image("b", raw_disk(tmp_path / "2.img"))
    other = store.import_image("c", raw_disk(tmp_path / "3.img", 8 * MIB))
    assert first.digest == second.digest != other.digest


def test_a_second_import_replaces_the_first_and_pods_keep_theirs(store: ImageStore, tmp_path: Path) -> None:
    store.import_image("a", raw_disk(tmp_path / "1.img"))
    old = store.resolve("a")
    assert old is not None
    kept = tmp_path / "pod.img"
    os.link(old / "disk" / "disk.img", kept)
    store.import_image("a", raw_disk(tmp_path / "2.img", 8 * MIB))
    new = store.resolve("a")
    assert new is not None and new != old and not old.exists()
    assert (new / "disk" / "disk.img").stat().st_size == 8 * MIB
    assert kept.stat().st_size == 4 * MIB
    assert len(store.list()) == 1


def test_remove(store: ImageStore, tmp_path: Path) -> None:
    store.import_image("a", raw_disk(tmp_path / "1.img"))
    assert store.remove("a") is True
    assert store.remove("a") is False
    assert store.resolve("a") is None and store.list() == []


def test_a_backing_file_is_refused(store: ImageStore, tmp_path: Path) -> None:
    base = raw_disk(tmp_path / "base.img")
    with pytest.raises(ImageError, match="backing file"):
        store.import_image("a", qcow2(tmp_path / "top", "-b", str(base), "-F", "raw"))
    assert store.list() == []
    assert [entry.name for entry in store.folder.iterdir()] == []


def test_an_external_data_file_is_refused(store: ImageStore, tmp_path: Path) -> None:
    image = qcow2(tmp_path / "top", "-o", f"data_file={tmp_path / 'data'}")
    with pytest.raises(ImageError, match="in another file"):
        store.import_image("a", image)


def test_a_damaged_qcow2_is_refused(store: ImageStore, tmp_path: Path) -> None:
    image = qcow2(tmp_path / "disk")
    data = bytearray(image.read_bytes())
    data[20:24] = b"\xff\xff\xff\xff"  # absurd cluster size
    image.write_bytes(data)
    with pytest.raises(ImageError, match="damaged"):
        store.import_image("a", image)
    image.write_bytes(data[:50])
    with pytest.raises(ImageError, match="cut off"):
        store.import_image("a", image)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"#!/bin/sh\necho hello\n", "is not a disk image"),
        (b"plain words. " * 4096, "is not a disk image"),
        (b"KDMV" + bytes(508), "is a VMDK image: convert it first"),
        (bytes(0x40) + b"\x7f\x10\xda\xbe" + bytes(1000), "is a VDI image"),
        (b"\xfd7zXZ\0" + bytes(506), "is compressed"),
        (b"PK\x03\x04" + bytes(508), "is compressed"),
    ],
)
def test_what_is_no_disk_is_refused_with_a_sentence(
    store: ImageStore, tmp_path: Path, content: bytes, says: str
) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ImageError, match=says):
        store.import_image("a", tmp_path / "file")


def test_what_is_not_there_is_refused(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="cannot be read: No such file"):
        store.import_image("a", tmp_path / "nothing")
    with pytest.raises(ImageError, match="neither a file nor a folder"):
        store.import_image("a", Path("/dev/null"))


def test_a_folder_of_files_for_kernel_boot(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot" / "vmlinuz").write_bytes(b"kernel")
    image = store.import_image("my/kernel", tmp_path / "boot")
    rootfs = store.resolve("my/kernel")
    assert rootfs is not None and (rootfs / "vmlinuz").read_bytes() == b"kernel"
    assert image.kind == "files"


def test_a_link_that_leads_out_of_the_folder_is_refused(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot" / "vmlinuz").symlink_to("/etc/shadow")
    with pytest.raises(ImageError, match="leads out of it: vmlinuz"):
        store.import_image("a", tmp_path / "boot")


def tar_of(path: Path, name: str, content: bytes) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return path


def test_a_tar_of_files(store: ImageStore, tmp_path: Path) -> None:
    store.import_image("a", tar_of(tmp_path / "boot.tar.gz", "boot/vmlinuz", b"kernel"))
    rootfs = store.resolve("a")
    assert rootfs is not None and (rootfs / "boot" / "vmlinuz").read_bytes() == b"kernel"


def test_a_tar_that_writes_elsewhere_is_refused(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="cannot be unpacked"):
        store.import_image("a", tar_of(tmp_path / "evil.tar.gz", "../../evil", b"x"))
    assert not (tmp_path / "evil").exists() and store.list() == []


def test_the_disk_in_a_tar_is_checked_too(store: ImageStore, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"disk/disk.img is not a disk image"):
        store.import_image("a", tar_of(tmp_path / "d.tar.gz", "disk/disk.img", b"words"))


def test_what_a_killed_import_left_is_cleared(store: ImageStore, tmp_path: Path) -> None:
    left = store.folder / ".importing-4194305-dead"  # above the largest pid
    left.mkdir(parents=True)
    store.import_image("a", raw_disk(tmp_path / "1.img"))
    assert not left.exists()
