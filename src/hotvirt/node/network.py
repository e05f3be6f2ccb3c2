"""The guest's network card inside its Pod's network namespace.

A tap with the gateway's address, rules that send every port (or the declared ones) of the Pod's address to
the guest and masquerade what the guest sends. The tap lives as long as somebody holds it: first we, then
the hypervisor. So an agent that dies half-way leaves nothing that the next one would trip over.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hotvirt.hypervisor.qemu.command import GATEWAY_ADDRESS, GUEST_ADDRESS
from hotvirt.node.dhcp import SERVER_PORT
from hotvirt.plan.machine import Port

T = TypeVar("T")
TAP = "tap0"
PREFIX = 24
TOOL_TIMEOUT = 20.0

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_SIOCGIFMTU = 0x8921
_libc = ctypes.CDLL(None, use_errno=True)


class NetworkError(RuntimeError):
    """The guest's network could not be made; the message says what failed."""


@dataclass(frozen=True)
class GuestNetwork:
    """What the hypervisor and the DHCP server need; descriptors belong to the caller."""

    tap: int
    dhcp: socket.socket
    mtu: int

    def close(self) -> None:
        os.close(self.tap)
        self.dhcp.close()


def open_namespace(pid: int) -> int | None:
    """The network namespace of a process; None when it is the one we are in ourselves.

    The node's own is refused: a guest's network takes over what arrives in its namespace.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NetworkError(f"cannot find the network of process {pid}: {error.strerror}") from error
    found = os.fstat(descriptor)
    if _is_namespace_of("self", found):
        os.close(descriptor)
        return None
    if _is_namespace_of("1", found):
        os.close(descriptor)
        raise NetworkError("the Pod is in its node's own network: a machine needs a network of its own")
    return descriptor


def _is_namespace_of(process: str, found: os.stat_result) -> bool:
    try:
        its = Path(f"/proc/{process}/ns/net").stat()
    except PermissionError:  # not root: then the network of a Pod cannot be entered anyway
        return False
    return os.path.samestat(its, found)


async def inside(
    namespace: int, work: Callable[[], T], discard: Callable[[T], None] = lambda result: None
) -> T:
    """Run `work` in a thread of its own that has entered the namespace, and ends with it.

    What it opens stays usable everywhere; what it starts runs inside. `discard` gets a result that nobody
    waits for any more.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    mine = os.dup(namespace)

    def tell(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            if result is not None:
                discard(result)
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # there is a result where there is no error

    def body() -> None:
        try:
            if _libc.setns(mine, _CLONE_NEWNET):
                number = ctypes.get_errno()
                raise NetworkError(f"cannot enter the Pod's network: {os.strerror(number)}")
            result = work()
        except BaseException as error:  # whatever it is, the waiting side gets it
            loop.call_soon_threadsafe(tell, None, error)
        else:
            loop.call_soon_threadsafe(tell, result, None)
        finally:
            os.close(mine)

    # Not from a pool: a thread that has entered a namespace must never do anybody else's work.
    threading.Thread(target=body, name="pod-network", daemon=True).start()
    return await done


async def make_guest_network(namespace: int, ports: Sequence[Port]) -> GuestNetwork:
    # A tap that stayed open here would be busy for whoever tries next.
    return await inside(namespace, lambda: _make(ports), GuestNetwork.close)


async def open_dhcp_socket(namespace: int) -> tuple[socket.socket, int]:
    """For a machine that runs already; with the network's MTU."""
    return await inside(namespace, lambda: (_dhcp_socket(), _mtu(_uplink())))


def _make(ports: Sequence[Port]) -> GuestNetwork:
    uplink = _uplink()
    mtu = _mtu(uplink)
    tap = _open_tap()
    try:
        _run(
            ["ip", "-batch", "-"],
            f"address replace {GATEWAY_ADDRESS}/{PREFIX} dev {TAP}\nlink set {TAP} mtu {mtu} up\n",
        )
        # In this thread /proc/sys/net is that of the namespace.
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        _run(["nft", "-f", "-"], ruleset(uplink, ports))
        return GuestNetwork(tap, _dhcp_socket(), mtu)
    except BaseException:
        os.close(tap)
        raise


def ruleset(uplink: str, ports: Sequence[Port]) -> str:
    """Everything that arrives for the Pod goes to the guest, or what arrives on the declared ports."""
    if ports:
        forwards = "\n".join(
            f'iifname "{uplink}" {protocol} dport {{ {numbers} }} dnat to {GUEST_ADDRESS}'
            for protocol in ("tcp", "udp", "sctp")
            if (numbers := _numbers(ports, protocol))
        )
    else:
        forwards = f'iifname "{uplink}" dnat to {GUEST_ADDRESS}'
    return f"""
        table ip hotvirt {{}}
        delete table ip hotvirt
        table ip hotvirt {{
            chain prerouting {{
                type nat hook prerouting priority dstnat;
                {forwards}
            }}
            chain postrouting {{
                type nat hook postrouting priority srcnat;
                ip saddr {GUEST_ADDRESS} oifname != "{TAP}" masquerade
            }}
        }}
    """


def _numbers(ports: Sequence[Port], protocol: str) -> str:
    return ", ".join(sorted({str(port.port) for port in ports if port.protocol.lower() == protocol}))


def _uplink() -> str:
    """The Pod's own interface: the one with the default route."""
    for line in Path("/proc/thread-self/net/route").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) > 1 and fields[1] == "00000000":
            return plain_name(fields[0])
    return "eth0"


def plain_name(interface: str) -> str:
    """It goes into the rules, and whoever owns the namespace named it."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,15}", interface):
        raise NetworkError(f"the Pod's interface has a name that cannot be used: {interface!r}")
    return interface


def _mtu(interface: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16si12x", interface.encode(), 0)
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFMTU, request)
        except OSError:
            return 1500
    mtu: int = struct.unpack_from("16si", answer)[1]
    return mtu


def _open_tap() -> int:
    try:
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise NetworkError(f"cannot open /dev/net/tun: {error.strerror}. Load the module tun") from error
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    try:
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", TAP.encode(), flags))
    except OSError as error:
        os.close(tap)
        raise NetworkError(f"cannot make {TAP} in the Pod's network: {error.strerror}") from error
    return tap


def _dhcp_socket() -> socket.socket:
    endpoint = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, TAP.encode() + b"\0")
        endpoint.bind(("", SERVER_PORT))
    except OSError as error:
        endpoint.close()
        raise NetworkError(f"cannot serve DHCP on {TAP}: {error.strerror}") from error
    return endpoint


def _run(argv: list[str], stdin: str) -> None:
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=TOOL_TIMEOUT)
    except OSError as error:
        raise NetworkError(f"cannot run {argv[0]}: {error.strerror}. Install it on this node") from error
    except subprocess.TimeoutExpired:
        raise NetworkError(f"{argv[0]} did not end within {TOOL_TIMEOUT:g} s") from None
    if done.returncode:
        raise NetworkError(f"{' '.join(argv)} failed: {done.stderr.strip()[:500]}")
