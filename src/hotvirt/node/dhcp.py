"""A DHCP server for one guest behind one tap: it has one address to give, for ever.

The socket is opened inside the Pod's network namespace; once open it works from anywhere. Every message is
from the guest: what is not a well-formed request of this guest's card is ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import struct
from dataclasses import dataclass

SERVER_PORT, CLIENT_PORT = 67, 68
MAX_MESSAGE = 1500
_COOKIE = b"\x63\x82\x53\x63"
_FIXED = 240
_INFINITE = 0xFFFFFFFF

DISCOVER, OFFER, REQUEST, DECLINE, ACK, NAK, RELEASE, INFORM = range(1, 9)
_MASK, _ROUTER, _DNS, _HOSTNAME, _DOMAIN, _MTU, _BROADCAST = 1, 3, 6, 12, 15, 26, 28
_REQUESTED, _LEASE, _TYPE, _SERVER, _RENEWAL, _REBINDING, _SEARCH = 50, 51, 53, 54, 58, 59, 119
_END, _PAD = 255, 0


@dataclass(frozen=True)
class Lease:
    """What the guest is told."""

    mac: str
    address: str
    prefix: int
    gateway: str
    hostname: str = ""
    servers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    mtu: int = 0


def options_of(message: bytes) -> dict[int, bytes]:
    """The options of a message; empty when it is not one."""
    found: dict[int, bytes] = {}
    if len(message) < _FIXED or message[236:240] != _COOKIE:
        return found
    at = _FIXED
    while at < len(message) and message[at] != _END:
        if message[at] == _PAD:
            at += 1
            continue
        if at + 2 > len(message):
            break
        length = message[at + 1]
        found[message[at]] = message[at + 2 : at + 2 + length]
        at += 2 + length
    return found


def answer(message: bytes, lease: Lease) -> bytes | None:
    """The reply to a guest's message, None where there is nothing to say."""
    options = options_of(message)
    kind = options.get(_TYPE, b"")
    mac = bytes.fromhex(lease.mac.replace(":", ""))
    if message[:1] != b"\1" or len(kind) != 1 or message[28:34] != mac:
        return None
    server = options.get(_SERVER)
    if server is not None and server != _packed(lease.gateway):
        return None  # it chose another server
    if kind[0] == DISCOVER:
        return _reply(message, OFFER, lease, _configuration(lease, with_address=True))
    if kind[0] == REQUEST:
        wanted = options.get(_REQUESTED) or message[12:16]
        if wanted not in (_packed(lease.address), b"\0\0\0\0"):
            return _reply(message, NAK, lease, b"")
        return _reply(message, ACK, lease, _configuration(lease, with_address=True))
    if kind[0] == INFORM:
        return _reply(message, ACK, lease, _configuration(lease, with_address=False), address=False)
    return None


def _reply(message: bytes, kind: int, lease: Lease, options: bytes, *, address: bool = True) -> bytes:
    given = lease.address if address and kind != NAK else "0.0.0.0"
    # op, hardware type and address length, hops; the transaction id and flags go back as they came
    head = struct.pack("!BBBB4sH2s", 2, 1, 6, 0, message[4:8], 0, message[10:12])
    head += message[12:16] + _packed(given) + _packed(lease.gateway) + bytes(4) + message[28:44]
    head += bytes(192) + _COOKIE
    head += _option(_TYPE, bytes([kind])) + _option(_SERVER, _packed(lease.gateway))
    return (head + options + bytes([_END])).ljust(300, b"\0")


def _configuration(lease: Lease, *, with_address: bool) -> bytes:
    network = ipaddress.ip_network(f"{lease.address}/{lease.prefix}", strict=False)
    out = b""
    if with_address:
        out += _option(_LEASE, struct.pack("!I", _INFINITE))
        out += _option(_RENEWAL, struct.pack("!I", _INFINITE)) + _option(
            _REBINDING, struct.pack("!I", _INFINITE)
        )
    out += _option(_MASK, _packed(str(network.netmask)))
    out += _option(_BROADCAST, _packed(str(network.broadcast_address)))
    out += _option(_ROUTER, _packed(lease.gateway))
    if lease.servers:
        out += _option(_DNS, b"".join(_packed(server) for server in lease.servers[:4]))
    if lease.hostname:
        out += _option(_HOSTNAME, lease.hostname.encode("ascii", "ignore"))
    if lease.search:
        out += _option(_DOMAIN, lease.search[0].encode("ascii", "ignore"))
        out += _option(_SEARCH, _search_list(lease.search))
    if lease.mtu:
        out += _option(_MTU, struct.pack("!H", min(lease.mtu, 65535)))
    return out


def _search_list(names: tuple[str, ...]) -> bytes:
    out = b""
    for name in names[:6]:
        labels = [label.encode("ascii", "ignore")[:63] for label in name.strip(".").split(".") if label]
        encoded = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
        if len(out) + len(encoded) <= 255:
            out += encoded
    return out


def _option(number: int, value: bytes) -> bytes:
    value = value[:255]
    return bytes([number, len(value)]) + value


def _packed(address: str) -> bytes:
    return ipaddress.IPv4Address(address).packed


class DhcpServer:
    """Answers one guest on a socket that is bound to its tap."""

    def __init__(self, endpoint: socket.socket, lease: Lease) -> None:
        self.lease = lease
        self._endpoint = endpoint
        endpoint.setblocking(False)
        asyncio.get_running_loop().add_reader(endpoint, self._serve)

    def _serve(self) -> None:
        try:
            message = self._endpoint.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            self.close()  # the tap went away with its machine
            return
        reply = answer(message, self.lease)
        if reply is None:
            return
        # What cannot be sent now (the card is down, the queue full) is lost as any datagram: the guest asks
        # again. It has no address yet: everybody behind the tap is that guest.
        with contextlib.suppress(OSError):
            self._endpoint.sendto(reply, ("255.255.255.255", CLIENT_PORT))

    def close(self) -> None:
        if self._endpoint.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._endpoint)
            self._endpoint.close()
