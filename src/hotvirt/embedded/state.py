"""The state folder: where one-machine mode keeps everything, and who may use it.

A folder is ours when it has our `format` file. One `hotvirt up` at a time holds the flock on `lock`; the
kernel drops it with the process, however that ends, so there is nothing to clean up after a crash.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
MARKER = "hotvirt state folder, format {}\n"
SPACE_NEEDED = 128 << 20
"""Below this the API's database could not be trusted to take its next writes."""
HARMLESS = {"lost+found"}


class StateError(Exception):
    """The folder cannot be used; the message says why and what to do."""


class AlreadyRunning(StateError):
    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(
            f"Hotvirt already runs on {path} (process {pid}). Stop it with: hotvirt down --state-dir {path}"
        )
        self.pid = pid


def default_state_dir() -> Path:
    if named := os.environ.get("HOTVIRT_STATE_DIR"):
        return Path(named).absolute()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state").absolute() / "hotvirt"


@dataclass(frozen=True)
class Running:
    """What the running `hotvirt up` says about itself."""

    pid: int
    server: str
    ready: bool


@dataclass(frozen=True)
class StateDir:
    path: Path

    @property
    def marker(self) -> Path:
        return self.path / "format"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.path / "pki"

    @property
    def database(self) -> Path:
        return self.path / "api.db"

    @property
    def socket(self) -> Path:
        return self.path / "api.sock"

    @property
    def images(self) -> Path:
        return self.path / "images"

    @property
    def log(self) -> Path:
        return self.path / "hotvirt.log"

    @property
    def audit_log(self) -> Path:
        return self.path / "audit.log"

    def exists(self) -> bool:
        """It is there and ours (a folder of somebody else's is a StateError)."""
        try:
            found = self.marker.read_text()
        except (FileNotFoundError, NotADirectoryError):
            self._refuse_foreign()
            return False
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(f"The state folder {self.path} cannot be read: {error}") from error
        if found == MARKER.format(FORMAT):
            return True
        if found.startswith("hotvirt state folder, format "):
            raise StateError(
                f"The state folder {self.path} was written by another version of Hotvirt ({found.strip()}; "
                f"this one reads format {FORMAT}). Use that version, or another folder with --state-dir."
            )
        raise StateError(self._foreign())

    def _foreign(self) -> str:
        return (
            f"The folder {self.path} is not empty and is not Hotvirt's. "
            "Choose another with --state-dir, or empty it first."
        )

    def _refuse_foreign(self) -> None:
        try:
            content = {entry.name for entry in self.path.iterdir()}
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise StateError(f"{self.path} is not a folder. Choose another with --state-dir.") from None
        except OSError as error:
            raise StateError(f"The state folder {self.path} cannot be read: {error}") from error
        if content - HARMLESS:
            raise StateError(self._foreign())

    def prepare(self) -> None:
        """Make it, or see that it is ours and has room. Leaves nothing behind when it refuses."""
        self._check_space()
        if self.exists():
            return
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.marker, MARKER.format(FORMAT).encode(), 0o644)
        except OSError as error:
            raise StateError(f"The state folder {self.path} cannot be made: {error.strerror}.") from error

    def _check_space(self) -> None:
        parent = self.path
        while not parent.exists() and parent != parent.parent:
            parent = parent.parent
        try:
            free = shutil.disk_usage(parent).free
        except OSError as error:
            raise StateError(f"The state folder {self.path} cannot be made: {error.strerror}.") from error
        if free < SPACE_NEEDED:
            raise StateError(
                f"The disk of {self.path} is full: {free >> 20} MiB are free, Hotvirt needs "
                f"{SPACE_NEEDED >> 20} MiB to start. Free some space, or choose another place by --state-dir."
            )

    @contextmanager
    def locked(self) -> Iterator[StateLock]:
        """Hold the folder; raises AlreadyRunning with the process that has it."""
        fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise StateError(f"The lock {self.lock} cannot be taken: {error.strerror}.") from error
                raise AlreadyRunning(self.path, _said(fd).get("pid", 0)) from None
            lock = StateLock(fd)
            lock.say(server="", ready=False)
            yield lock
            os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def running(self) -> Running | None:
        """The `hotvirt up` that has the folder now."""
        try:
            fd = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            said = _said(fd)
            return Running(said.get("pid", 0), said.get("server", ""), said.get("ready", False))
        else:
            return None
        finally:
            os.close(fd)


class StateLock:
    """The held lock. What is written in it tells others whom they meet."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, *, server: str, ready: bool) -> None:
        text = json.dumps({"pid": os.getpid(), "server": server, "ready": ready}).encode()
        # One write of a shorter or longer text over the old one, padded: a reader never sees half of each.
        os.pwrite(self._fd, text.ljust(256), 0)


def _said(fd: int) -> dict[str, Any]:
    try:
        said = json.loads(os.pread(fd, 4096, 0))
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def write_atomically(path: Path, content: bytes, mode: int) -> None:
    """The file has the old content or the new, with its rights from the start, also after a power cut."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(content)
            file.flush()
            os.fsync(fd)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
