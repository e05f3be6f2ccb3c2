"""File events: a follower of a log or a waiter for an image sleeps until the kernel says that something
changed.

One descriptor serves everybody: the kernel gives a user 128 of them only, and there may be 1,000 Pods.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x002, 0x040, 0x080, 0x100, 0x200
_ONLY_FOLDERS, _NO_LINKS = 0x01000000, 0x02000000
_MASK = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_FOLDERS | _NO_LINKS
_IGNORED, _OVERFLOW = 0x8000, 0x4000
_HEADER = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)

Changed = Callable[[], None]


class Inotify:
    """Calls back, from the event loop, when something in a watched folder changed (not in folders below
    it).
    """

    def __init__(self) -> None:
        self._fd = -1
        self._watches: dict[int, list[Changed]] = {}

    def watch(self, folder: Path, changed: Changed) -> Callable[[], None]:
        """Start watching; the answer stops it."""
        if self._fd < 0:
            self._open()
        number: int = _libc.inotify_add_watch(self._fd, os.fsencode(folder), _MASK)
        if number < 0:
            raise _error(f"Cannot watch {folder}")
        self._watches.setdefault(number, []).append(changed)

        def stop() -> None:
            callbacks = self._watches.get(number, [])
            if changed in callbacks:
                callbacks.remove(changed)
                if not callbacks:
                    del self._watches[number]
                    _libc.inotify_rm_watch(self._fd, number)

        return stop

    def _open(self) -> None:
        self._fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _error("No inotify instance is left; raise fs.inotify.max_user_instances")
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        hit: dict[Changed, None] = {}
        offset = 0
        while offset < len(data):
            number, mask, _cookie, length = _HEADER.unpack_from(data, offset)
            offset += _HEADER.size + length
            if mask & _OVERFLOW:  # events were lost: everybody looks
                for callbacks in self._watches.values():
                    hit |= dict.fromkeys(callbacks)
            elif mask & _IGNORED:
                hit |= dict.fromkeys(self._watches.pop(number, []))
            else:
                hit |= dict.fromkeys(self._watches.get(number, []))
        for changed in hit:
            changed()

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._watches.clear()


def _error(message: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{message}: {os.strerror(number)}")
