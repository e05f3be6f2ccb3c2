"""The local image store: what a containerDisk or kernelBoot image name means on this machine.

    images/<encoded name>/image.json      what it is, and which folder has its content
    images/<encoded name>/rootfs-<id>/    the content as a Pod sees it: disk/<file>, or any files (kernelBoot)
    images/.changed                       touched after each change: whoever waits for an image watches it

An import is made aside, checked there (so that nobody can exchange the file after the check) and appears in
one step. Several processes may use the store at a time.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from .image_probe import COMPRESSED, Disk, ImageError, probe_disk

__all__ = ["Image", "ImageError", "ImageStore", "normalize"]

FICLONE = 0x40049409
COPY_BLOCK = 1 << 20
ENCODED_MAX = 200
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = (
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*(?::[0-9]+)?"
)
_NAME = re.compile(
    rf"(?P<path>(?:{_HOST}/)?{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?P<digest>@sha256:[0-9a-f]{64})?\Z"
)


@dataclass(frozen=True)
class Image:
    name: str
    kind: str
    """`disk` or `files`."""
    format: str
    digest: str
    size: int
    """Bytes that it takes on this machine."""
    virtual_size: int
    imported_at: str
    rootfs: str


def normalize(name: str) -> str:
    """The full name: `my/os` means `my/os:latest`. Raises ImageError for what is no image name."""
    match = _NAME.match(name) if len(name) <= 255 else None
    if match is None:
        raise ImageError(
            f"{name!r} is not an image name: write it like my/os:1 or registry:5000/team/os:devel "
            "(lower case letters, digits and . _ - between them)."
        )
    return name if match["tag"] or match["digest"] else f"{name}:latest"


class ImageStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, name: str) -> Image | None:
        try:
            return self._read(self._home(normalize(name)))
        except ImageError:
            return None

    def resolve(self, name: str) -> Path | None:
        """The folder with the image's content, or None when it is not here."""
        image = self.get(name)
        return self._home(image.name) / image.rootfs if image else None

    def remove(self, name: str) -> bool:
        """False when there is none of that name. Pods that use it keep their files."""
        home = self._home(normalize(name))
        with self._locked():
            if not (home / "image.json").exists():
                return False
            grave = self.folder / f".removed-{secrets.token_hex(8)}"
            home.rename(grave)
        shutil.rmtree(grave, ignore_errors=True)
        self._say_changed()
        return True

    def import_image(self, name: str, path: Path) -> Image:
        """Import a raw or qcow2 disk, a folder of files or a tar of them under this name, replacing what
        had it.
        """
        name = normalize(name)
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise ImageError(f"{path} cannot be read: {error.strerror}.") from error
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._aside() as aside:
            rootfs = aside / f"rootfs-{secrets.token_hex(6)}"
            try:
                disk, digest = self._fill(rootfs, path, mode)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise ImageError(
                        f"There is no room for {path} in {self.folder}: free some space first."
                    ) from error
                raise ImageError(f"{path} cannot be imported: {error.strerror or error}.") from error
            image = Image(
                name=name,
                kind="disk" if disk else "files",
                format=disk.format if disk else "",
                digest=f"sha256:{digest}",
                size=_bytes_on_disk(rootfs),
                virtual_size=disk.virtual_size if disk else 0,
                imported_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                rootfs=rootfs.name,
            )
            (aside / "image.json").write_text(json.dumps(asdict(image), indent=1))
            _sync(aside / "image.json")
            self._publish(aside, image)
        self._say_changed()
        return image

    def _fill(self, rootfs: Path, path: Path, mode: int) -> tuple[Disk | None, str]:
        if stat.S_ISDIR(mode):
            shutil.copytree(path, rootfs, symlinks=True)
            return None, self._check_files(rootfs, str(path))
        if not stat.S_ISREG(mode):
            raise ImageError(f"{path} is neither a file nor a folder.")
        if _is_tar(path):
            rootfs.mkdir(mode=0o755)
            _unpack(path, rootfs)
            return None, self._check_files(rootfs, str(path))
        (rootfs / "disk").mkdir(parents=True)
        copy = rootfs / "disk" / "disk.img"
        _refuse_early(path)
        _copy_sparse(path, copy)
        disk = probe_disk(copy, str(path))
        final = copy.with_name("disk.img" if disk.format == "raw" else f"disk.{disk.format}")
        copy.rename(final)
        final.chmod(0o444)
        _sync(final)
        return disk, _file_digest(final)

    @staticmethod
    def _check_files(rootfs: Path, shown: str) -> str:
        """Plain files, folders and links that stay inside; whatever lies in disk/ is a disk. Gives the
        digest of all.
        """
        digest = hashlib.sha256()
        files = 0
        for part in sorted(rootfs.rglob("*")):
            relative = part.relative_to(rootfs)
            if part.is_symlink():
                if not part.resolve().is_relative_to(rootfs.resolve()):
                    raise ImageError(f"{shown} has a link that leads out of it: {relative}.")
            elif part.is_file():
                files += 1
                if relative.parts[0] == "disk":
                    probe_disk(part, f"{shown}/{relative}")
                digest.update(f"{relative}\0{_file_digest(part)}\0".encode())
                part.chmod(0o555 if part.stat().st_mode & 0o111 else 0o444)
            elif part.is_dir():
                part.chmod(0o755)
            else:
                raise ImageError(f"{shown} has something that is neither file, folder nor link: {relative}.")
        if not files:
            raise ImageError(f"{shown} has no files in it.")
        return digest.hexdigest()

    def _publish(self, aside: Path, image: Image) -> None:
        home = self._home(image.name)
        with self._locked():
            if not home.exists():
                aside.rename(home)
                _sync(self.folder)
                return
            old = self._read(home)
            (aside / image.rootfs).rename(home / image.rootfs)
            (aside / "image.json").replace(home / "image.json")
            _sync(home)
        if old:
            shutil.rmtree(home / old.rootfs, ignore_errors=True)

    def _home(self, name: str) -> Path:
        encoded = quote(name, safe="")
        if len(encoded) > ENCODED_MAX:
            encoded = f"{encoded[:120]}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        return self.folder / encoded

    def _entries(self) -> list[Path]:
        try:
            return [entry for entry in self.folder.iterdir() if not entry.name.startswith(".")]
        except FileNotFoundError:
            return []

    @staticmethod
    def _read(home: Path) -> Image | None:
        try:
            return Image(**json.loads((home / "image.json").read_text()))
        except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
            return None

    @contextmanager
    def _aside(self) -> Iterator[Path]:
        """A folder to build in, gone afterwards whatever happens; also clears what a killed import left."""
        for left in self.folder.glob(".importing-*"):
            if not Path(f"/proc/{left.name.split('-')[1]}").exists():
                shutil.rmtree(left, ignore_errors=True)
        aside = self.folder / f".importing-{os.getpid()}-{secrets.token_hex(4)}"
        aside.mkdir(mode=0o755)
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _say_changed(self) -> None:
        (self.folder / ".changed").write_text(secrets.token_hex(4))

    def list(self) -> list[Image]:
        found = [self._read(entry) for entry in self._entries()]
        return sorted((image for image in found if image), key=lambda image: image.name)


def _refuse_early(path: Path) -> None:
    """Before copying gigabytes; the copy is checked again."""
    probe_disk(path, str(path))


def _is_tar(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(512)
    packed = any(head.startswith(magic) for magic, name, _ in COMPRESSED if name in ("gzip", "xz", "bzip2"))
    if not packed and head[257:262] != b"ustar":
        return False
    try:
        with tarfile.open(path) as archive:
            archive.next()
    except (tarfile.TarError, EOFError, OSError):
        return False
    return True


def _unpack(path: Path, rootfs: Path) -> None:
    free = shutil.disk_usage(rootfs).free
    with tarfile.open(path) as archive:
        try:
            for member in archive:
                free -= member.size
                if free < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                archive.extract(member, rootfs, filter="data")
        except (tarfile.TarError, EOFError) as error:
            raise ImageError(f"{path} cannot be unpacked: {error}.") from error
    if (rootfs / "manifest.json").exists() and any(rootfs.glob("*/layer.tar")):
        raise ImageError(
            f"{path} is a saved container image: import the disk file that lies in its disk/ folder."
        )


def _copy_sparse(source: Path, target: Path) -> None:
    """A clone where the file system can, else a copy that keeps holes."""
    with source.open("rb") as read, target.open("xb") as write:
        try:
            fcntl.ioctl(write.fileno(), FICLONE, read.fileno())
            return
        except OSError:
            size = os.fstat(read.fileno()).st_size
            write.truncate(size)
        for start, end in _extents(read.fileno(), size):
            os.lseek(read.fileno(), start, os.SEEK_SET)
            os.lseek(write.fileno(), start, os.SEEK_SET)
            while start < end:
                # Not copy_file_range: that one refuses to go from one file system to another.
                copied = os.sendfile(write.fileno(), read.fileno(), None, min(end - start, COPY_BLOCK * 64))
                if not copied:
                    raise ImageError(f"{source} became shorter while it was read.")
                start += copied


def _extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bytes_on_disk(folder: Path) -> int:
    return sum(part.lstat().st_blocks * 512 for part in folder.rglob("*") if part.is_file())


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
