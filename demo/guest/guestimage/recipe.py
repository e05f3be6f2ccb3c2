"""What goes into the demo guest: packages, kernel modules, kernel arguments, sizes.

The name of the cache folder is a hash of this folder's files, so a change here (or in `rootfs/`)
makes a new disk, and an unchanged recipe finds the old one without asking apt.
"""

from __future__ import annotations

from dataclasses import dataclass

ARCHITECTURE = "amd64"

# The guest's user space. Libraries are followed by their dependencies.
USERLAND = ("busybox-static", "qemu-guest-agent")

# From qemu-guest-agent's package only the program is taken, with the libraries that it is linked to.
AGENT_BINARY = "usr/sbin/qemu-ga"

DISK_MIB = 48
PARTITION_START_MIB = 1

MODULES = (
    # disks and CD-ROMs; the drivers of SCSI disks come before the bus, so that its scan finds them
    "sd_mod",
    "sr_mod",
    "virtio_blk",
    "virtio_scsi",
    # file systems of NoCloud volumes and of data disks (ext4 is built in)
    "isofs",
    "vfat",
    "nls_cp437",
    "nls_ascii",
    "nls_iso8859_1",
    # the power button
    "button",
    "evdev",
    # network, guest agent and console ports, memory, entropy
    "virtio_net",
    "virtio_console",
    "virtio_mem",
    "virtio_balloon",
    "virtio_rng",
    # last: every driver is waiting when the devices appear
    "virtio_pci",
)

KERNEL_ARGUMENTS = (
    "console=ttyS0,115200",
    # a disk is there when its module's load returns, so nothing in the guest polls for it
    "scsi_mod.scan=sync",
    # an emulated timer on a busy host may fail the kernel's check of it, and that is a panic
    "no_timer_check",
    # about a second of boot time under emulation
    "cryptomgr.notests",
    # no waiting for entropy
    "random.trust_cpu=on",
)


@dataclass(frozen=True)
class Flavour:
    """A kernel to boot, with the modules that only this kernel has."""

    kernel_package: str
    extra_modules: tuple[str, ...] = ()


FLAVOURS = {
    "cloud": Flavour("linux-image-cloud-amd64"),
    # boots slower, but has SATA: for guests with a SATA CD-ROM
    "generic": Flavour("linux-image-amd64", ("ahci", "ata_piix")),
}
