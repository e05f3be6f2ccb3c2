"""The DHCP server of one guest."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotvirt.node import dhcp
from hotvirt.node.dhcp import ACK, DISCOVER, INFORM, NAK, OFFER, RELEASE, REQUEST, DhcpServer, Lease, answer

MAC = "02:00:00:00:00:01"
LEASE = Lease(
    mac=MAC,
    address="10.0.2.2",
    prefix=24,
    gateway="10.0.2.1",
    hostname="web",
    servers=("10.96.0.10", "1.1.1.1"),
    search=("shop.svc.cluster.local", "cluster.local"),
    mtu=1450,
)


def message(kind: int, mac: str = MAC, options: bytes = b"", client: str = "0.0.0.0") -> bytes:
    head = struct.pack("!BBBB4sHH", 1, 1, 6, 0, b"\x12\x34\x56\x78", 3, 0x8000)
    head += ipaddress.IPv4Address(client).packed + bytes(12)
    head += bytes.fromhex(mac.replace(":", "")).ljust(16, b"\0") + bytes(192)
    return head + b"\x63\x82\x53\x63" + bytes([53, 1, kind]) + options + b"\xff"


def option(number: int, address: str) -> bytes:
    return bytes([number, 4]) + ipaddress.IPv4Address(address).packed


def reply(request: bytes) -> tuple[bytes, dict[int, bytes]]:
    found = answer(request, LEASE)
    assert found is not None
    return found, dhcp.options_of(found)


def test_an_offer_has_all_that_a_guest_needs() -> None:
    whole, options = reply(message(DISCOVER))
    assert whole[0] == 2 and whole[4:8] == b"\x12\x34\x56\x78"
    assert options[53] == bytes([OFFER])
    assert whole[16:20] == ipaddress.IPv4Address("10.0.2.2").packed
    assert options[1] == bytes([255, 255, 255, 0])
    assert options[3] == options[54] == ipaddress.IPv4Address("10.0.2.1").packed
    assert options[6] == bytes([10, 96, 0, 10, 1, 1, 1, 1])
    assert options[12] == b"web" and options[15] == b"shop.svc.cluster.local"
    assert options[26] == struct.pack("!H", 1450)
    assert options[51] == b"\xff\xff\xff\xff", "for ever"
    assert options[119].startswith(b"\x04shop\x03svc\x07cluster\x05local\x00")
    assert len(whole) >= 300, "some clients drop shorter ones"


def test_the_right_request_is_granted_and_another_address_is_not() -> None:
    assert reply(message(REQUEST, options=option(50, "10.0.2.2")))[1][53] == bytes([ACK])
    assert reply(message(REQUEST, client="10.0.2.2"))[1][53] == bytes([ACK]), "a renewal"
    refused, options = reply(message(REQUEST, options=option(50, "192.168.1.7")))
    assert options[53] == bytes([NAK]) and refused[16:20] == bytes(4)


def test_who_asks_only_for_settings_gets_no_address() -> None:
    whole, options = reply(message(INFORM, client="10.0.2.2"))
    assert options[53] == bytes([ACK]) and whole[16:20] == bytes(4) and 51 not in options


@pytest.mark.parametrize(
    "request_",
    [
        message(DISCOVER, mac="02:00:00:00:00:99"),
        message(REQUEST, options=option(54, "10.0.2.77")),
        message(RELEASE),
        message(DISCOVER)[:200],
        b"",
    ],
)
def test_what_is_not_for_us_gets_no_answer(request_: bytes) -> None:
    assert answer(request_, LEASE) is None


@given(st.binary(max_size=600))
def test_no_bytes_of_a_guest_break_it(tail: bytes) -> None:
    answer(tail, LEASE)
    answer(message(DISCOVER)[:240] + tail, LEASE)


async def test_it_serves_from_the_loop_and_stops() -> None:
    served, guest = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sent: list[bytes] = []
    answered = asyncio.Event()

    class Endpoint(socket.socket):
        def sendto(self, data: bytes, *_: object) -> int:  # type: ignore[override]  # broadcast, in real life
            sent.append(data)
            answered.set()
            return len(data)

    endpoint = Endpoint(fileno=served.detach())
    server = DhcpServer(endpoint, LEASE)
    guest.send(message(DISCOVER))
    async with asyncio.timeout(60):
        await answered.wait()
    assert dhcp.options_of(sent[0])[53] == bytes([OFFER])
    server.close()
    server.close()
    guest.close()
    assert endpoint.fileno() == -1
