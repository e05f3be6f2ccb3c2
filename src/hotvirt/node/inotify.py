"""Tells when something in a run folder changed: one inotify descriptor for all machines of the node."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable

_CREATE, _MOVED_TO, _DELETE_SELF, _ONLYDIR = 0x100, 0x080, 0x400, 0x01000000
_IGNORED, _OVERFLOW = 0x8000, 0x4000
_HEADER = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)

Changed = Callable[[], None]


class FolderWatch:
    """Calls back when a file appears in a watched folder. Made inside a running event loop."""

    def __init__(self) -> None:
        self._fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"no inotify: {os.strerror(number)}; raise fs.inotify.max_user_instances")
        self._callbacks: dict[int, Changed] = {}
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def watch(self, folder: int, changed: Changed) -> Callable[[], None]:
        """Watch an open folder; the answer stops it."""
        path = os.fsencode(f"/proc/self/fd/{folder}")
        number: int = _libc.inotify_add_watch(self._fd, path, _CREATE | _MOVED_TO | _DELETE_SELF | _ONLYDIR)
        if number < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"cannot watch a run folder: {os.strerror(code)}")
        self._callbacks[number] = changed

        def stop() -> None:
            if self._callbacks.get(number) is changed:
                del self._callbacks[number]
                _libc.inotify_rm_watch(self._fd, number)

        return stop

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        numbers: set[int] = set()
        at = 0
        while at < len(data):
            number, mask, _, length = _HEADER.unpack_from(data, at)
            at += _HEADER.size + length
            if mask & _OVERFLOW:
                numbers |= set(self._callbacks)  # some were lost: everybody looks again
            elif not mask & _IGNORED:
                numbers.add(number)
        for number in numbers:
            changed = self._callbacks.get(number)
            if changed is not None:
                changed()
