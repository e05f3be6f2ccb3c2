"""What a file really is, before it becomes a guest's disk.

A disk image can name other files of the host (a backing file, an external data file), and QEMU would open
them. So the header is read here, with our own eyes and within bounds, and then by qemu-img with the format
given, never probed.
"""

from __future__ import annotations

import json
import resource
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

SECTOR = 512
QEMU_IMG_SECONDS = 30
QEMU_IMG_MEMORY = 1 << 30
QCOW2_EXTERNAL_DATA = 1 << 2
MAX_VIRTUAL_SIZE = 1 << 50

OTHER_FORMATS: tuple[tuple[bytes, str], ...] = (
    (b"KDMV", "VMDK"),
    (b"COWD", "VMDK"),
    (b"# Disk DescriptorFile", "VMDK"),
    (b"vhdxfile", "VHDX"),
    (b"conectix", "VHD"),
    (b"QED\0", "QED"),
    (b"WithoutFreeSpace", "Parallels"),
    (b"WithouFreSpacExt", "Parallels"),
)
COMPRESSED: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"PK\x03\x04", "zip", "unzip"),
)
# (offset, magic): a partition table, a boot sector, a CD or a file system on the whole disk.
RAW_SIGNS: tuple[tuple[int, bytes], ...] = (
    (510, b"\x55\xaa"),
    (512, b"EFI PART"),
    (4096, b"EFI PART"),
    (0x8001, b"CD001"),
    (0x438, b"\x53\xef"),
    (0, b"XFSB"),
    (0, b"hsqs"),
    (0, b"LUKS\xba\xbe"),
    (0x10040, b"_BHRfS_M"),
    (0x218, b"LVM2 001"),
)
HEAD = 0x10048


class ImageError(ValueError):
    """The file cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Disk:
    format: str
    virtual_size: int


def probe_disk(path: Path, shown: str) -> Disk:
    """What kind of disk lies at `path` (called `shown` in messages); raises ImageError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(HEAD)
        file.seek(max(0, size - SECTOR))
        tail = file.read(SECTOR)
    if not size:
        raise ImageError(f"{shown} is empty.")
    if head.startswith(b"QFI\xfb"):
        return _probe_qcow2(path, head, shown)
    for magic, name in OTHER_FORMATS:
        if head.startswith(magic) or (name == "VHD" and tail.startswith(magic)):
            raise ImageError(_convert(shown, name))
    if head[0x40:0x44] == b"\x7f\x10\xda\xbe":
        raise ImageError(_convert(shown, "VDI"))
    for magic, name, command in COMPRESSED:
        if head.startswith(magic):
            raise ImageError(
                f"{shown} is compressed ({name}): run `{command}` on it first, then import the result."
            )
    if size % SECTOR or not _looks_like_a_disk(head):
        raise ImageError(
            f"{shown} is not a disk image: it is neither qcow2 nor a raw disk with a partition table, "
            "boot sector or file system."
        )
    return Disk("raw", size)


def _convert(shown: str, name: str) -> str:
    return f"{shown} is a {name} image: convert it first with `qemu-img convert -O qcow2 {shown} disk.qcow2`."


def _looks_like_a_disk(head: bytes) -> bool:
    blank = not head.strip(b"\0")  # an empty data disk
    return blank or any(head[offset : offset + len(magic)] == magic for offset, magic in RAW_SIGNS)


def _probe_qcow2(path: Path, head: bytes, shown: str) -> Disk:
    if len(head) < 104:
        raise ImageError(f"{shown} is cut off: its qcow2 header is not complete.")
    version, backing_offset = struct.unpack_from(">IQ", head, 4)
    virtual_size, encryption = struct.unpack_from(">QI", head, 24)
    if version not in (2, 3):
        raise ImageError(f"{shown} is qcow version {version}: " + _convert(shown, "qcow").partition(": ")[2])
    if backing_offset:
        raise ImageError(
            f"{shown} has a backing file, which would make a guest read another file of this machine. "
            f"Make it whole first: `qemu-img convert -O qcow2 {shown} whole.qcow2`."
        )
    if encryption:
        raise ImageError(f"{shown} is encrypted, which is not supported: import a decrypted copy.")
    if version == 3 and struct.unpack_from(">Q", head, 72)[0] & QCOW2_EXTERNAL_DATA:
        raise ImageError(
            f"{shown} keeps its data in another file, which a guest would then read from this machine. "
            f"Make it whole first: `qemu-img convert -O qcow2 {shown} whole.qcow2`."
        )
    if not 0 < virtual_size <= MAX_VIRTUAL_SIZE:
        raise ImageError(f"{shown} claims to be a disk of {virtual_size} bytes, which cannot be right.")
    _ask_qemu_img(path, shown)
    return Disk("qcow2", virtual_size)


def _ask_qemu_img(path: Path, shown: str) -> None:
    """A second opinion on the header, by the program that knows the format best, kept on a short leash."""
    qemu_img = shutil.which("qemu-img")
    if qemu_img is None:
        raise ImageError(
            "A qcow2 image is checked with qemu-img, which is missing: `apt install qemu-utils`."
        )

    def leash() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (QEMU_IMG_MEMORY, QEMU_IMG_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (QEMU_IMG_SECONDS, QEMU_IMG_SECONDS))

    try:
        asked = subprocess.run(
            [qemu_img, "info", "--output=json", "-f", "qcow2", "--", str(path)],
            capture_output=True,
            timeout=QEMU_IMG_SECONDS,
            preexec_fn=leash,
        )
    except subprocess.TimeoutExpired:
        raise ImageError(
            f"{shown} could not be checked within {QEMU_IMG_SECONDS} s: it is damaged."
        ) from None
    if asked.returncode:
        said = asked.stderr.decode(errors="replace").strip().replace(str(path), shown)
        raise ImageError(f"{shown} is damaged: {said}")
    info = json.loads(asked.stdout)
    details = (info.get("format-specific") or {}).get("data") or {}
    if "backing-filename" in info or "full-backing-filename" in info or "data-file" in details:
        raise ImageError(f"{shown} names another file of this machine; only whole images can be imported.")
