"""Who wrote what: one JSON line for each write, in a file that cannot grow without end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from hotvirt.api.meta import now_micro

from .call import SAFE, Call
from .log import logger

LARGEST: Final = 16 * 1024 * 1024
"""When the file is larger it becomes FILE.1, and the FILE.1 before it goes."""


class Audit:
    def __init__(
        self,
        path: Path | None,
        on_record: Callable[[dict[str, Any]], None] | None = None,
        largest: int = LARGEST,
    ) -> None:
        self._path = path
        self._on_record = on_record
        self._largest = largest
        self._file: IO[bytes] | None = None
        self._size = 0

    def request(self, call: Call, code: int) -> None:
        if call.verb in SAFE or (self._path is None and self._on_record is None):
            return
        record: dict[str, Any] = {
            "time": now_micro(),
            "user": call.user.name,
            "verb": call.verb,
            "resource": call.kind.group_resource,
            "subresource": call.subresource,
            "namespace": call.namespace,
            "name": call.name,
            "code": code,
        }
        if self._on_record is not None:
            self._on_record(record)
        if self._path is not None:
            self._append(msgspec.json.encode(record) + b"\n")

    def _append(self, line: bytes) -> None:
        assert self._path is not None
        try:
            if self._file is None or self._size + len(line) > self._largest:
                self._open(self._path)
            assert self._file is not None
            self._file.write(line)
            self._size += len(line)
        except OSError as error:
            # A full disk must not stop the API: the record is lost, and the log says so.
            logger.warning("The audit log %s cannot be written: %s", self._path, error)
            self._file = None

    def _open(self, path: Path) -> None:
        if self._file is not None:
            self._file.close()
        if path.exists() and path.stat().st_size >= self._largest // 2:
            path.replace(path.with_name(path.name + ".1"))
        self._file = path.open("ab", buffering=0)
        self._size = path.stat().st_size

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
