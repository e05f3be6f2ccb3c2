"""The guest's root file system, as the initramfs archive that the kernel unpacks into RAM."""

from __future__ import annotations

import gzip
import lzma
import re
import stat
import subprocess
from pathlib import Path

from .errors import BuildError
from .recipe import AGENT_BINARY


class Archive:
    """A writer of the `newc` cpio format, which needs no root to hold device nodes."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, bytes, tuple[int, int]]] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._entries

    def folder(self, path: str, mode: int = 0o755) -> None:
        if path not in self._entries:
            self._add(path, stat.S_IFDIR | mode, b"")

    def file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self._add(path, stat.S_IFREG | mode, content)

    def link(self, path: str, target: str) -> None:
        self._add(path, stat.S_IFLNK | 0o777, target.encode())

    def character_device(self, path: str, major: int, minor: int) -> None:
        self._add(path, stat.S_IFCHR | 0o600, b"", (major, minor))

    def _add(self, path: str, mode: int, content: bytes, device: tuple[int, int] = (0, 0)) -> None:
        parent = path.rpartition("/")[0]
        if parent:
            self.folder(parent)
        self._entries[path] = (mode, content, device)

    def pack(self) -> bytes:
        parts = []
        for inode, (path, (mode, content, device)) in enumerate(sorted(self._entries.items()), start=1):
            parts.append(_newc(inode, path, mode, content, device))
        parts.append(_newc(0, "TRAILER!!!", 0, b"", (0, 0)))
        return b"".join(parts)


def _newc(inode: int, path: str, mode: int, content: bytes, device: tuple[int, int]) -> bytes:
    name = path.encode() + b"\0"
    numbers = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % number for number in numbers)
    return _padded(header + name) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


class KernelModules:
    """The modules of one kernel package: where each is, what it needs, and what is built in."""

    def __init__(self, tree: Path) -> None:
        folders = [*tree.glob("lib/modules/*"), *tree.glob("usr/lib/modules/*")]
        if len(folders) != 1:
            raise BuildError(f"the packages hold {len(folders)} kernels, not one; run again with --refresh")
        self._folder = folders[0]
        self.release = self._folder.name
        self._files = {_module_name(path): path for path in self._folder.rglob("*.ko*")}
        builtin = (self._folder / "modules.builtin").read_text().split()
        self._builtin = {_module_name(Path(path)) for path in builtin}

    def add_to(self, archive: Archive, wanted: list[str]) -> None:
        """Put the modules and all they need into the archive, with the index that modprobe reads."""
        index: dict[str, list[str]] = {}
        queue = list(wanted)
        while queue:
            name = queue.pop()
            if name in index or name in self._builtin:
                continue
            content = self._read(name)
            depends = re.search(rb"\0depends=([^\0]*)\0", content)
            needs = depends[1].decode().replace("-", "_").split(",") if depends and depends[1] else []
            index[name] = needs
            queue += needs
            archive.file(f"lib/modules/{self.release}/{name}.ko", content)
        lines = [f"{name}.ko: {' '.join(self._files_needed(name, index))}\n" for name in sorted(index)]
        archive.file(f"lib/modules/{self.release}/modules.dep", "".join(lines).encode())
        loadable = [name for name in wanted if name in index]
        archive.file("etc/modules", "".join(f"{name}\n" for name in loadable).encode())

    def _files_needed(self, name: str, index: dict[str, list[str]]) -> list[str]:
        """What a module needs, direct needs first, as depmod writes it: modprobe loads from the end."""
        found: list[str] = []
        for need in index[name]:
            for file in (f"{need}.ko", *self._files_needed(need, index)) if need in index else ():
                if file in found:
                    found.remove(file)
                found.append(file)
        return found

    def _read(self, name: str) -> bytes:
        path = self._files.get(name)
        if path is None:
            raise BuildError(
                f"kernel {self.release} has no module {name}: take it out of guestimage/recipe.py"
            )
        content = path.read_bytes()
        return lzma.decompress(content) if path.suffix == ".xz" else content


def _module_name(path: Path) -> str:
    return path.name.partition(".")[0].replace("-", "_")


def build(tree: Path, rootfs: Path, modules: list[str]) -> bytes:
    """The compressed initramfs, from the unpacked packages and our own files in `rootfs`."""
    archive = Archive()
    for folder in ("dev", "mnt", "proc", "root", "run", "sys", "var/log", "var/run"):
        archive.folder(folder)
    archive.folder("tmp", 0o1777)
    archive.character_device("dev/console", 5, 1)
    for folder in ("bin", "sbin", "usr/sbin"):
        archive.link(folder, "/usr/bin")  # so that every script finds its commands, wherever it looks
    archive.link("init", "usr/bin/busybox")
    for path in sorted(rootfs.rglob("*")):
        name = str(path.relative_to(rootfs))
        if path.is_symlink():
            archive.link(name, str(path.readlink()))
        elif path.is_file():
            archive.file(name, path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)
    _add_busybox(archive, tree)
    _add_agent(archive, tree)
    KernelModules(tree).add_to(archive, modules)
    return gzip.compress(archive.pack(), compresslevel=6, mtime=0)


def _add_busybox(archive: Archive, tree: Path) -> None:
    """busybox and a link for each of its commands, where our own files have no command of that name."""
    binary = next(path for path in (tree / "bin/busybox", tree / "usr/bin/busybox") if path.exists())
    archive.file("usr/bin/busybox", binary.read_bytes(), 0o755)
    listed = subprocess.run([binary, "--list"], capture_output=True, text=True, check=True)
    for command in listed.stdout.split():
        if f"usr/bin/{command}" not in archive:
            archive.link(f"usr/bin/{command}", "busybox")


def _add_agent(archive: Archive, tree: Path) -> None:
    """The guest agent and the libraries that its dynamic linker asks for."""
    agent = tree / AGENT_BINARY
    archive.file(f"usr/bin/{agent.name}", agent.read_bytes(), 0o755)
    folders = [tree / prefix / "x86_64-linux-gnu" for prefix in ("lib", "usr/lib")]
    linker = next(path for path in (folder / "ld-linux-x86-64.so.2" for folder in folders) if path.exists())
    library_path = ":".join(str(folder) for folder in folders)
    command = [str(linker), "--library-path", library_path, "--list", str(agent)]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        raise BuildError(f"the guest agent's libraries cannot be listed: {listed.stderr or listed.stdout}")
    for library in re.findall(r"=> (\S+)", listed.stdout):
        archive.file(f"lib/x86_64-linux-gnu/{Path(library).name}", Path(library).read_bytes(), 0o755)
    archive.file("lib64/ld-linux-x86-64.so.2", linker.read_bytes(), 0o755)
