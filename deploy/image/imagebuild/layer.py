"""One layer of an image: a set of files, written as the same bytes whenever the files are the same.

Everything belongs to root, has the one time that the build was given, and lies in the tar by name. Set-uid
bits are dropped: nothing in the images needs them.
"""

from __future__ import annotations

import fnmatch
import io
import os
import posixpath
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# Debian 12 has these names as links into /usr, its packages still use both.
MERGED = ("bin", "lib", "lib64", "sbin")


def merged(path: str) -> str:
    """The path as Debian has it on disk: `bin/ip` lies in `usr/bin`."""
    path = posixpath.normpath(path).lstrip("/")
    return f"usr/{path}" if path.split("/")[0] in MERGED else path


class Layer:
    """Files by their path without a leading slash."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[tarfile.TarInfo, bytes]] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._members))

    def content(self, path: str) -> bytes:
        return self._members[path][1]

    def add_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._add_folders(posixpath.dirname(path))
        self._put(path, tarfile.REGTYPE, mode, content=content)

    def add_link(self, path: str, target: str) -> None:
        self._add_folders(posixpath.dirname(path))
        self._put(path, tarfile.SYMTYPE, 0o777, target=target)

    def add_folder(self, path: str, mode: int = 0o755) -> None:
        self._add_folders(posixpath.dirname(path))
        self._put(path, tarfile.DIRTYPE, mode)

    def _add_folders(self, path: str) -> None:
        while path and path not in self._members:
            self._put(path, tarfile.DIRTYPE, 0o755)
            path = posixpath.dirname(path)

    def _put(self, path: str, kind: bytes, mode: int, content: bytes = b"", target: str = "") -> None:
        member = tarfile.TarInfo(path)
        member.type, member.mode, member.size, member.linkname = kind, mode & 0o1777, len(content), target
        self._members[path] = member, content

    def add_tar(self, stream: BinaryIO) -> None:
        """Take everything from a package's tar."""
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                self._add_member(archive, member)

    def _add_member(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = merged(member.name)
        if path in (".", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin"):
            return
        if member.isdir():
            if path not in self._members:
                self.add_folder(path, member.mode)
        elif member.islnk():
            original, content = self._members[merged(member.linkname)]
            self.add_file(path, content, original.mode)
        elif member.issym():
            # /sbin/ip that links to /bin/ip would in /usr take the place of the program, or point to itself
            target = merged(posixpath.join(posixpath.dirname(path), member.linkname))
            if path not in self._members and target != path:
                self.add_link(path, member.linkname)
        else:
            source = archive.extractfile(member)
            if source is not None:
                self.add_file(path, source.read(), member.mode)

    def without(self, patterns: list[str], but: str) -> Layer:
        """The files that no pattern matches, and those that `but` does; a folder stays for what is in it."""
        left_out = re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns))
        kept = re.compile(fnmatch.translate(but))
        layer = Layer()
        for path, (member, content) in sorted(self._members.items()):
            if left_out.match(path) and (member.isdir() or not kept.match(path)):
                continue
            layer._add_folders(posixpath.dirname(path))
            layer._members[path] = member, content
        return layer

    def add_tree(self, root: Path, under: str = "") -> None:
        """Take a folder of this machine as `under`."""
        for folder, names, files in os.walk(root):
            names.sort()
            here = Path(folder)
            for name in [*files, *(name for name in names if (here / name).is_symlink())]:
                file = here / name
                path = posixpath.join(under, file.relative_to(root).as_posix())
                if file.is_symlink():
                    self.add_link(path, str(file.readlink()))
                else:
                    executable = file.stat().st_mode & 0o100
                    self.add_file(path, file.read_bytes(), 0o755 if executable else 0o644)

    def unpack(self, root: Path) -> None:
        """Write the files below a folder of this machine, as whoever runs this."""
        for path, (member, content) in sorted(self._members.items()):
            file = root / path
            if member.isdir():
                file.mkdir(parents=True, exist_ok=True)
            elif member.issym():
                file.symlink_to(member.linkname)
            else:
                file.write_bytes(content)
                file.chmod(member.mode)

    def write(self, target: BinaryIO, epoch: int) -> None:
        with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for _, (member, content) in sorted(self._members.items()):
                member.mtime = epoch
                archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
