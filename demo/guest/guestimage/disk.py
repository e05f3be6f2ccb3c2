"""The bootable disk: an MBR, one FAT partition, syslinux in it. mtools and syslinux write it without root."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from .errors import BuildError
from .recipe import DISK_MIB, PARTITION_START_MIB

SECTOR = 512
MIB = 1024 * 1024
BOOT_CODE = Path("/usr/lib/SYSLINUX/mbr.bin")  # where Debian's syslinux package has it
BOOTABLE, FAT16_LBA = 0x80, 0x0E
# Instead of a cylinder: "too large, use the sector numbers", which every BIOS since 1996 does.
USE_LBA = b"\xfe\xff\xff"
TOOLS = ("mformat", "mcopy", "syslinux", "dpkg-deb", "apt-get")


def require_tools() -> None:
    missing = [
        tool for tool in ("mformat", "mcopy", "syslinux", "dpkg-deb", "apt-get") if not shutil.which(tool)
    ]
    if missing or not BOOT_CODE.exists():
        lacking = ", ".join(missing) or str(BOOT_CODE)
        raise BuildError(f"the host lacks {lacking}; run: apt-get install mtools syslinux")


def write(disk: Path, kernel: Path, initrd: Path, kernel_arguments: str) -> None:
    """Make a raw disk that boots this kernel with BIOS."""
    start, end = PARTITION_START_MIB * MIB // SECTOR, DISK_MIB * MIB // SECTOR
    with disk.open("wb") as file:
        file.truncate(DISK_MIB * MIB)
        file.write(BOOT_CODE.read_bytes()[:440])
        file.seek(446)
        file.write(struct.pack("<B3sB3sII", BOOTABLE, USE_LBA, FAT16_LBA, USE_LBA, start, end - start))
        file.seek(510)
        file.write(b"\x55\xaa")
    partition = f"{disk}@@{PARTITION_START_MIB}M"
    sectors = ["-T", str(end - start), "-H", str(start), "-h", "64", "-s", "32"]
    _run("mformat", "-i", partition, *sectors, "-v", "HOTVIRT", "::")
    _run("syslinux", "--install", "--offset", str(start * SECTOR), str(disk))
    settings = disk.with_name("syslinux.cfg")
    settings.write_text(
        "SERIAL 0 115200\nDEFAULT demo\nPROMPT 0\nTIMEOUT 0\n"
        f"LABEL demo\n  KERNEL /vmlinuz\n  INITRD /initrd\n  APPEND {kernel_arguments}\n"
    )
    _run("mcopy", "-i", partition, str(settings), str(kernel), str(initrd), "::/")
    settings.unlink()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
