"""Unix sockets in a folder that a tenant's Pod can write to: found through the folder's descriptor, links
refused.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct


class NoSocket(ConnectionError):
    """There is no such socket, or nobody listens on it."""


async def connect(folder: int, name: str, *, timeout: float = 5.0) -> socket.socket:
    """A connected, non-blocking socket. A link, or anything else that is not a socket, is refused."""
    try:
        file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise NoSocket(f"{name}: {error.strerror}") from error
    try:
        if not stat.S_ISSOCK(os.fstat(file).st_mode):
            raise NoSocket(f"{name} is not a socket")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            # Through the open file: what was checked is what is connected to, and the path is short.
            async with asyncio.timeout(timeout):
                await asyncio.get_running_loop().sock_connect(connection, f"/proc/self/fd/{file}")
        except (OSError, TimeoutError) as error:
            connection.close()
            raise NoSocket(f"nobody listens on {name}: {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection
    finally:
        os.close(file)


def peer(connection: socket.socket) -> tuple[int, int]:
    """(process id, user id) of whoever listens at the other end."""
    pid, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
