"""A TLS port whose certificate and CA can change while it is open.

A new context is a new server on the same socket: connections that wait to be accepted are never lost, and
those that are open stay as they are.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

HANDSHAKE_WITHIN = 10.0
BACKLOG = 1024


def open_socket(address: str, port: int) -> socket.socket:
    """Without an address: every one that the Pod has, of either family."""
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)


class Listener:
    def __init__(self, address: str, port: int, protocol: Callable[[], Any]) -> None:
        self._where = (address, port)
        self._protocol = protocol
        self._socket: socket.socket | None = None
        self._server: asyncio.AbstractServer | None = None

    @property
    def port(self) -> int:
        """The one that was given by the system, when 0 was asked for."""
        return int(self._socket.getsockname()[1]) if self._socket else self._where[1]

    @property
    def is_open(self) -> bool:
        return self._server is not None

    async def use(self, context: ssl.SSLContext) -> None:
        """Show this from now on; opens the port the first time."""
        if self._socket is None:
            self._socket = open_socket(*self._where)
        old = self._server
        self._server = await asyncio.get_running_loop().create_server(
            self._protocol,
            sock=self._socket.dup(),
            backlog=BACKLOG,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_WITHIN,
        )
        if old is not None:
            old.close()

    def close(self) -> None:
        """No new connections; those that are open stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
