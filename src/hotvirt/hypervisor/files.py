"""The files of one machine inside its Pod: where each disk lies, and how it is opened.

The launcher prepares them before it becomes the hypervisor: copies-on-write over container disks, empty
disks, the cloud-init image. Standard library only. Every path goes through `HOTVIRT_CONTAINER_ROOT` where
there is no mount namespace (one-machine mode).
"""

from __future__ import annotations

import binascii
import os
import socket
import stat
import sys

from hotvirt.hypervisor.iso import iso_image
from hotvirt.hypervisor.qemu import images

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hotvirt.plan.machine import Disk, Machine, Source

RUN_DIR = "/var/run/hotvirt"
SCRATCH_DIR = "/var/run/hotvirt-scratch"
IMAGES_DIR = "/var/run/hotvirt-images"
CLAIMS_DIR = "/var/run/hotvirt-claims"
SECRETS_DIR = "/var/run/hotvirt-secrets"
ROOT_VARIABLE = "HOTVIRT_CONTAINER_ROOT"
MACHINE_VARIABLE = "HOTVIRT_MACHINE"

# Names in the run folder, beside the hypervisor's own.
LAUNCHER_SOCKET = "launcher.sock"
CONSOLE_SOCKET = "console.sock"
MACHINE_FILE = "machine.json"
ALIVE_FILE = "alive"
ENDED_FILE = "ended"

_EFI_FIRMWARE = (
    # (code, variables) of Debian's ovmf and of Fedora's edk2-ovmf
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
)
_EFI_SECURE = (
    ("/usr/share/OVMF/OVMF_CODE_4M.ms.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"),
    ("/usr/share/OVMF/OVMF_CODE.secboot.fd", "/usr/share/OVMF/OVMF_VARS.ms.fd"),
    ("/usr/share/edk2/ovmf/OVMF_CODE.secboot.fd", "/usr/share/edk2/ovmf/OVMF_VARS.secboot.fd"),
)


class FilesError(ValueError):
    """The machine's files are not as they must be; the message says what to do."""


class DiskFile:
    """How one disk is opened."""

    def __init__(
        self,
        path: str,
        format: str = "raw",
        *,
        backing: str = "",
        backing_format: str = "",
        device: bool = False,
        readonly: bool = False,
        direct: bool = False,
        backing_direct: bool = False,
    ) -> None:
        self.path = path
        self.format = format
        self.backing = backing
        self.backing_format = backing_format
        self.device = device
        self.readonly = readonly
        self.direct = direct
        self.backing_direct = backing_direct


class Files:
    """Everything on disk that the command line names."""

    def __init__(self) -> None:
        self.disks: dict[str, DiskFile] = {}
        self.kernel = ""
        self.initrd = ""
        self.efi_code = ""
        self.efi_vars = ""
        self.notes: list[str] = []  # what a person should know: shown in the log and kept in machine.json


def container_path(path: str) -> str:
    return os.environ.get(ROOT_VARIABLE, "") + path


def prepare(machine: Machine) -> Files:
    """Make what has to be made and find the rest. Safe to repeat."""
    files = Files()
    for disk in machine.disks:
        if disk.source is None:
            continue
        file = _disk_file(disk, disk.source, machine)
        file.readonly = file.readonly or disk.readonly or disk.source.readonly or disk.kind == "cdrom"
        wants_direct = disk.cache in ("", "none")
        file.direct = wants_direct and _can_be_direct(file.path)
        # What the page cache holds of a shared image counts as this Pod's memory, and would keep it from
        # shrinking.
        file.backing_direct = bool(wants_direct and file.backing and _can_be_direct(file.backing))
        if wants_direct and not file.direct:
            files.notes.append(
                f"disk {disk.name}: its file system cannot bypass the page cache; cache=writeback is used"
            )
        files.disks[disk.name] = file
    if machine.kernel is not None:
        files.kernel = _inside_image("kernel", machine.kernel.kernel_path, "the kernel of kernelBoot")
        if machine.kernel.initrd_path:
            files.initrd = _inside_image("kernel", machine.kernel.initrd_path, "the initrd of kernelBoot")
    if machine.firmware.kind == "efi":
        files.efi_code, files.efi_vars = _efi(machine.firmware.secure_boot)
    return files


def _disk_file(disk: Disk, source: Source, machine: Machine) -> DiskFile:
    scratch = container_path(SCRATCH_DIR)
    if source.kind == "containerDisk":
        base = _container_disk(source)
        base_format = images.image_format(base)
        if disk.kind == "cdrom":
            return DiskFile(base, base_format, readonly=True)
        overlay = f"{scratch}/disk-{source.volume}.qcow2"
        images.create_overlay(overlay, base, base_format)
        return DiskFile(overlay, "qcow2", backing=base, backing_format=base_format)
    if source.kind == "emptyDisk":
        path = f"{scratch}/empty-{source.volume}.qcow2"
        images.create_empty(path, source.capacity)
        return DiskFile(path, "qcow2")
    if source.kind == "cloudInit":
        path = f"{scratch}/cloud-init-{source.volume}.iso"
        _write(path, cloud_init_image(source, machine))
        return DiskFile(path, "raw", readonly=True)
    return _claim(source)


def _container_disk(source: Source) -> str:
    if source.path:
        return _inside_image(source.volume, source.path, f"the disk of the container disk {source.volume}")
    folder = f"{container_path(IMAGES_DIR)}/{source.volume}/disk"
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError:
        names = []
    if len(names) != 1:
        found = f"it has {len(names)}" if names else "it has none"
        raise FilesError(
            f"container disk {source.volume}: the image must have exactly one file in disk/, {found}. "
            "Build it that way, or name the file in containerDisk.path"
        )
    return _inside_image(source.volume, "disk/" + names[0], f"the disk of the container disk {source.volume}")


def _inside_image(volume: str, path: str, what: str) -> str:
    """A regular file within an image volume; links that lead out of it are refused."""
    folder = os.path.realpath(f"{container_path(IMAGES_DIR)}/{volume}")
    real = os.path.realpath(folder + os.path.normpath("/" + path.lstrip("/")))
    if not real.startswith(folder + "/"):
        raise FilesError(f"{what} is {path!r}, which leads out of its image")
    try:
        mode = os.stat(real).st_mode
    except OSError as error:
        raise FilesError(f"{what} is not there: {path!r} is not in the image ({error.strerror})") from error
    if not stat.S_ISREG(mode):
        raise FilesError(f"{what} is not a regular file: {path!r}")
    return real


def _claim(source: Source) -> DiskFile:
    path = os.path.realpath(f"{container_path(CLAIMS_DIR)}/{source.volume}")
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise FilesError(
            f"the claim of volume {source.volume} is not mounted in this Pod ({error.strerror})"
        ) from error
    if stat.S_ISBLK(mode):
        return DiskFile(path, "raw", device=True)
    if not stat.S_ISDIR(mode):
        return DiskFile(path, "raw")
    image = path + "/disk.img"
    try:
        mode = os.lstat(image).st_mode
    except OSError as error:
        raise FilesError(
            f"the claim of volume {source.volume} has no disk.img ({error.strerror}). "
            "Fill it with a DataVolume, or put a raw image of that name into it"
        ) from error
    if not stat.S_ISREG(mode):
        raise FilesError(f"disk.img in the claim of volume {source.volume} is not a regular file")
    # Always raw: a guest could write any header into its own disk, and a format guessed from it could open
    # host files.
    return DiskFile(image, "raw")


def _can_be_direct(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return False
    os.close(descriptor)
    return True


def _efi(secure: bool) -> tuple[str, str]:
    for code, variables in _EFI_SECURE if secure else _EFI_FIRMWARE:
        if os.path.exists(code) and os.path.exists(variables):
            own = container_path(SCRATCH_DIR) + "/efi-vars.fd"
            if not os.path.exists(own):
                with open(variables, "rb") as file:
                    _write(own, file.read())
            return code, own
    raise FilesError(
        "the machine asks for EFI"
        + (" with secure boot" if secure else "")
        + ", and there is no OVMF firmware here: "
        "install the package ovmf, or ask for firmware.bootloader.bios"
    )


def cloud_init_image(source: Source, machine: Machine) -> bytes:
    """The NoCloud volume: what cloud-init reads from a disk labelled cidata."""
    contents = {
        "meta-data": (
            f"instance-id: {machine.name}.{machine.namespace}\nlocal-hostname: {machine.hostname}\n"
        ).encode(),
        "user-data": source.user_data.encode() or binascii.a2b_base64(source.user_data_base64),
    }
    network = source.network_data.encode() or binascii.a2b_base64(source.network_data_base64)
    if source.user_data_secret:
        contents["user-data"] = _secret(source.volume, "userdata")
    if source.network_data_secret:
        network = _secret(source.volume, "networkdata")
    if network:
        contents["network-config"] = network
    return iso_image("cidata", contents)


def _secret(volume: str, key: str) -> bytes:
    """The secret is mounted as a folder named like the key it should have."""
    spellings = [key, key.replace("data", "Data")]
    folder = f"{container_path(SECRETS_DIR)}/{volume}/{key}"
    for name in spellings:
        try:
            with open(f"{folder}/{name}", "rb") as file:
                return file.read()
        except OSError:
            continue
    raise FilesError(f"the secret of cloud-init volume {volume} has no key {' or '.join(spellings)}")


def _write(path: str, data: bytes) -> None:
    unfinished = path + ".new"
    with open(unfinished, "wb") as file:
        file.write(data)
    os.rename(unfinished, path)


def listen(path: str) -> socket.socket:
    """A listening socket; whoever sees its name can connect, so it gets that name last."""
    unfinished = path + ".new"
    for old in (path, unfinished):
        try:
            os.unlink(old)
        except FileNotFoundError:
            continue
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(unfinished)
    os.chmod(unfinished, 0o600)
    listener.listen(16)
    os.rename(unfinished, path)
    return listener


def say(message: str) -> None:
    """A line for the Pod's log."""
    sys.stderr.write(f"hotvirt-launcher: {message}\n")
    sys.stderr.flush()
