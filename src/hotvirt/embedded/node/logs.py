"""Reading what a container printed: the answer of `kubectl logs`, with its options.

The files are in CRI's format, `<time> <stream> <P|F> <text>`; P is a part of a line that goes on in the next
record. Reading never polls: a follower is woken by inotify and ends when the container has ended.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .inotify import Inotify

CURRENT = "0.log"
OLDER = "0.log.1"


LogRequest = Any
"""LogOptions, or what the API server makes of the query of `pods/log`."""


@dataclass(frozen=True)
class LogOptions:
    """As the query of `pods/log` has them."""

    follow: bool = False
    tail_lines: int | None = None
    since_seconds: int | None = None
    since_time: str | None = None
    timestamps: bool = False
    limit_bytes: int | None = None
    previous: bool = False
    stream: str = "All"

    @classmethod
    def of(cls, request: LogRequest | None) -> LogOptions:
        """From anything that has some of these attributes."""
        given = {name: getattr(request, name, None) for name in cls.__dataclass_fields__}
        return cls(**{name: value for name, value in given.items() if value is not None})

    def check(self) -> None:
        """Raises ValueError with a sentence for what makes no sense."""
        if self.previous:
            raise ValueError(
                "There is no log of a previous container: the containers of this Pod are never restarted."
            )
        for name, value, least in (
            ("limitBytes", self.limit_bytes, 1),
            ("tailLines", self.tail_lines, 0),
            ("sinceSeconds", self.since_seconds, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}.")
        if self.since_seconds is not None and self.since_time:
            raise ValueError("Only one of sinceSeconds and sinceTime may be given.")
        if self.stream not in ("All", "Stdout", "Stderr"):
            raise ValueError(f"stream must be All, Stdout or Stderr, not {self.stream!r}.")
        self.since()

    def since(self) -> str:
        """The earliest time that is shown, comparable with a record's; empty for all."""
        if self.since_seconds is not None:
            earliest = datetime.now(UTC).timestamp() - self.since_seconds
        elif self.since_time:
            earliest = datetime.fromisoformat(self.since_time.replace("Z", "+00:00")).timestamp()
        else:
            return ""
        return datetime.fromtimestamp(earliest, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


@dataclass(frozen=True)
class Record:
    time: str
    stream: str
    full: bool
    text: bytes

    @classmethod
    def parse(cls, line: bytes) -> Record | None:
        parts = line.split(b" ", 3)
        if len(parts) != 4:
            return None
        time, stream, tag, text = parts
        return cls(time.decode("ascii", "replace"), stream.decode("ascii", "replace"), tag == b"F", text)


class Renderer:
    """Turns records into the bytes a client sees, within `limitBytes`."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._since = options.since()
        self._left = options.limit_bytes
        self._line_start: dict[str, bool] = {}

    @property
    def exhausted(self) -> bool:
        return self._left is not None and self._left <= 0

    def wanted(self, record: Record) -> bool:
        return record.time >= self._since and self._options.stream in ("All", record.stream.capitalize())

    def render(self, record: Record) -> bytes:
        text = record.text + (b"\n" if record.full else b"")
        if self._options.timestamps and self._line_start.get(record.stream, True):
            text = record.time.encode() + b" " + text
        self._line_start[record.stream] = record.full
        if self._left is not None:
            text = text[: self._left]
            self._left -= len(text)
        return text


class _Reader:
    """Reads whole records from the older file, then from the current one, across rotations."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = self._open(OLDER)
        self._rest = b""

    def _open(self, name: str) -> int | None:
        try:
            return os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None

    def records(self) -> Iterator[Record]:
        """Everything that is there now; call again after a change."""
        while True:
            if self._file is None:
                self._file = self._open(CURRENT)
                if self._file is None:
                    return
            while data := os.read(self._file, 256 * 1024):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    if record := Record.parse(line):
                        yield record
            if not self._rotated(self._file):
                return
            if os.lseek(self._file, 0, os.SEEK_CUR) < os.fstat(self._file).st_size:
                continue  # a last write came between our read and the rename
            os.close(self._file)
            self._file = None
            self._rest = b""

    def _rotated(self, file: int) -> bool:
        try:
            current = (self._folder / CURRENT).stat()
        except FileNotFoundError:
            return False
        return not os.path.samestat(os.fstat(file), current)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _tail(records: list[Record], lines: int) -> list[Record]:
    """The records of the last so many lines; parts belong to the line they start."""
    at = len(records)
    while at > 0 and lines >= 0:
        if records[at - 1].full or at == len(records):
            lines -= 1
            if lines < 0:
                break
        at -= 1
    return records[at:]


async def read_log(
    folder: Path,
    options: LogOptions,
    inotify: Inotify,
    ended: Callable[[], bool],
    on_end: Callable[[Callable[[], None]], Callable[[], None]],
) -> AsyncIterator[bytes]:
    """The log in `folder`. `ended()` says whether the container has ended; `on_end(wake)` has `wake` called
    when that may have changed and returns how to stop that."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    renderer = Renderer(options)
    changed = asyncio.Event()
    stops: list[Callable[[], None]] = []
    if options.follow:
        stops = [inotify.watch(folder, lambda: changed.set()), on_end(changed.set)]
    reader = _Reader(folder)
    try:
        last_round = ended()
        backlog = [record for record in reader.records() if renderer.wanted(record)]
        if options.tail_lines is not None:
            backlog = _tail(backlog, options.tail_lines)
        while True:
            for chunk in _chunks(backlog, renderer):
                yield chunk
            if not options.follow or last_round or renderer.exhausted:
                return
            await changed.wait()
            changed.clear()
            last_round = ended()
            backlog = [record for record in reader.records() if renderer.wanted(record)]
    finally:
        reader.close()
        for stop in stops:
            stop()


def last_words(folder: Path, most_lines: int = 80, most_bytes: int = 2048) -> str:
    """The end of the log of a container that has ended: its termination message, with the kubelet's
    bounds.
    """
    reader = _Reader(folder)
    try:
        records = _tail(list(reader.records()), most_lines)
    finally:
        reader.close()
    renderer = Renderer(LogOptions())
    text = b"".join(renderer.render(record) for record in records)
    return text[-most_bytes:].decode("utf-8", "replace").strip()


def _chunks(records: list[Record], renderer: Renderer, size: int = 64 * 1024) -> Iterator[bytes]:
    chunk = bytearray()
    for record in records:
        if renderer.exhausted:
            break
        chunk += renderer.render(record)
        if len(chunk) >= size:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)
