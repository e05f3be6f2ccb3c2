"""Disk images: what they are by their header, and copies-on-write over them.

Nothing a tenant wrote is trusted: the format is read from the header here, never guessed by QEMU, and an
image that points to other files is refused, because QEMU would open them. Standard library only: the
launcher runs it.
"""

from __future__ import annotations

import os
import struct

QEMU_IMG = "qemu-img"
_QCOW2_MAGIC = b"QFI\xfb"
_DATA_FILE_BIT = 1 << 2
_FOREIGN = {
    b"KDMV": "vmdk",
    b"vhdxfile": "vhdx",
    b"conectix": "vhd",
    b"QED\0": "qed",
    b"# Disk DescriptorFile": "vmdk",
    b"<<< Oracle VM VirtualBox Disk Image >>>": "vdi",
}


class ImageError(ValueError):
    """This image cannot be used; the message says what to do."""


def image_format(path: str) -> str:
    """`raw` or `qcow2`; refuses images that are something else or that reach for other files."""
    try:
        with open(path, "rb") as file:
            header = file.read(112)
    except OSError as error:
        raise ImageError(f"cannot read the image {path}: {error.strerror}") from error
    for magic, name in _FOREIGN.items():
        if header.startswith(magic):
            raise ImageError(
                f"{path} is a {name} image. Convert it first: qemu-img convert -O qcow2 {path} NEW"
            )
    if not header.startswith(_QCOW2_MAGIC):
        return "raw"
    if len(header) < 72:
        raise ImageError(f"{path} begins like a qcow2 image and ends within its header: copy it again")
    version, backing_offset = struct.unpack_from(">IQ", header, 4)
    if version not in (2, 3):
        raise ImageError(f"{path} is a qcow2 image of version {version}: only 2 and 3 are known")
    if backing_offset:
        raise ImageError(f"{path} has a backing file. Flatten it first: qemu-img convert -O qcow2 {path} NEW")
    if version == 3 and len(header) >= 80:
        (incompatible,) = struct.unpack_from(">Q", header, 72)
        if incompatible & _DATA_FILE_BIT:
            raise ImageError(
                f"{path} keeps its data in another file. "
                f"Flatten it first: qemu-img convert -O qcow2 {path} NEW"
            )
    return "qcow2"


def create_overlay(path: str, backing: str, backing_format: str) -> None:
    """A copy-on-write image over `backing`; there after the call, whole or not at all."""
    _create(path, ["-b", backing, "-F", backing_format])


def create_empty(path: str, size: int) -> None:
    _create(path, [], str(size))


def _create(path: str, options: list[str], *size: str) -> None:
    if os.path.exists(path):
        return
    unfinished = path + ".new"
    run([QEMU_IMG, "create", "-q", "-f", "qcow2", *options, unfinished, *size])
    os.rename(unfinished, path)


def run(argv: list[str]) -> None:
    """Run a helper to its end; its complaints go to our stderr. (subprocess costs milliseconds to import.)"""
    try:
        pid = os.posix_spawnp(argv[0], argv, os.environ)
    except OSError as error:
        raise ImageError(f"cannot start {argv[0]}: {error.strerror}. Is its package installed?") from error
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise ImageError(f"{' '.join(argv[:2])} ended with {code}: its message stands above")
