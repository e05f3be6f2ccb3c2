"""The hand-over to a launcher: the accelerator, and the network in the form that its Pod allows.

The launcher is in a tenant's Pod. Its socket is found without following links, and who listens there must be
a process of that Pod and own the socket file; the Pod's network namespace is that of the listening process.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotvirt.hypervisor import sockets
from hotvirt.hypervisor.driver import Driver
from hotvirt.hypervisor.files import LAUNCHER_SOCKET, MACHINE_FILE
from hotvirt.hypervisor.qemu.command import GATEWAY_ADDRESS, GUEST_ADDRESS
from hotvirt.node import network
from hotvirt.node.dhcp import Lease
from hotvirt.node.peers import Membership, peer_network
from hotvirt.plan.machine import Interface, Machine

MAX_RECORD = 1 << 20
# What a guest that names no ports gets where each port costs a socket of the host: the usual ones.
USUAL_TCP = ((1, 1023), (3000, 3999), (5000, 5999), (8000, 9999))
USUAL_UDP = ((53, 53), (123, 123), (500, 500), (1194, 1194), (4500, 4500), (5353, 5353), (51820, 51820))


class HandoverError(RuntimeError):
    """The launcher cannot be trusted or reached; the message says why."""


@dataclass(frozen=True)
class Given:
    """What a machine was given, and what stays with the agent: the socket that serves its DHCP."""

    accel: str
    network: dict[str, Any]
    dhcp: socket.socket | None = None
    lease: Lease | None = None


async def hand_over(
    folder: int, driver: Driver, machine: Machine, address: str, pod_uid: str, belongs: Membership
) -> Given:
    """Give the launcher in this run folder what it needs. `address` and `pod_uid` are the Pod's."""
    accel = await driver.accelerator()
    record = read_record(folder)
    connection = await sockets.connect(folder, LAUNCHER_SOCKET)
    descriptors: list[int] = []
    given: Given | None = None
    try:
        _, uid = sockets.peer(connection)
        owner = os.stat(LAUNCHER_SOCKET, dir_fd=folder, follow_symlinks=False).st_uid
        if uid != owner:
            raise HandoverError(f"{LAUNCHER_SOCKET} belongs to user {owner} and user {uid} listens on it")
        namespace = peer_network(connection, pod_uid, belongs)
        given = await _network_for(namespace, machine, address, record, accel, descriptors)
        version = await driver.version()
        message = json.dumps({"accel": accel, "network": given.network, "version": version}).encode() + b"\n"
        # A few hundred bytes into an empty socket: it cannot block.
        socket.send_fds(connection, [message], descriptors)
        return given
    except BaseException:
        if given is not None and given.dhcp is not None:
            given.dhcp.close()
        raise
    finally:
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)


async def _network_for(
    namespace: int | None,
    machine: Machine,
    address: str,
    record: dict[str, Any],
    accel: str,
    descriptors: list[int],
) -> Given:
    """Takes over `namespace`, the Pod's; None when that is our own too."""
    try:
        if not machine.interfaces:
            return Given(accel, {"kind": "none"})
        card = machine.interfaces[0]
        if namespace is None:
            return Given(accel, shared_network(card, address))
        made = await network.make_guest_network(namespace, card.ports)
    finally:
        if namespace is not None:
            os.close(namespace)
    descriptors.append(made.tap)
    if accel == "kvm" and os.access("/dev/vhost-net", os.R_OK | os.W_OK):
        try:
            descriptors.append(os.open("/dev/vhost-net", os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            made.dhcp.close()
            raise HandoverError(f"/dev/vhost-net cannot be opened: {error.strerror}") from error
    return Given(accel, {"kind": "tap"}, made.dhcp, lease_for(machine, record, made.mtu))


def shared_network(card: Interface, address: str) -> dict[str, Any]:
    """In the host's own network every forwarded port is a socket bound to the Pod's address."""
    if not shutil.which("passt"):
        return {"kind": "user", "address": address}
    lowest = 1 if os.geteuid() == 0 else _lowest_free_port()
    ports: dict[str, list[str]] = {"tcp": [], "udp": []}
    if card.ports:
        for port in card.ports:
            ports.setdefault(port.protocol.lower(), []).append(str(port.port))
    else:
        for protocol, usual in (("tcp", USUAL_TCP), ("udp", USUAL_UDP)):
            for first, last in usual:
                if last >= lowest:
                    ports[protocol].append(f"{max(first, lowest)}-{last}")
    return {"kind": "passt", "address": address, "tcp": ports["tcp"], "udp": ports["udp"]}


def _lowest_free_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    except (OSError, ValueError):
        return 1024


def lease_for(machine: Machine, record: dict[str, Any], mtu: int) -> Lease:
    names = record.get("dns")
    names = names if isinstance(names, dict) else {}
    return Lease(
        mac=machine.interfaces[0].mac,
        address=GUEST_ADDRESS,
        prefix=network.PREFIX,
        gateway=GATEWAY_ADDRESS,
        hostname=machine.hostname,
        servers=tuple(server for server in _texts(names.get("servers")) if _is_ipv4(server)),
        search=_texts(names.get("search")),
        mtu=mtu,
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(item[:253] for item in value[:6] if isinstance(item, str)) if isinstance(value, list) else ()


def _is_ipv4(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):
        return False
    return True


def read_record(folder: int) -> dict[str, Any]:
    """`machine.json`: what the launcher wrote down. It lies in the tenant's Pod: bounded, links refused."""
    try:
        file = os.open(
            MACHINE_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
    except OSError:
        return {}
    try:
        text = os.read(file, MAX_RECORD) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
