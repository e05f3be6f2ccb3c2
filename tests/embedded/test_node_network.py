"""The guest's network in a real network namespace: tap, rules, DHCP, and nothing left behind."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hotvirt.node import network
from hotvirt.plan.machine import Port


class Namespace:
    """A network namespace with an interface that has the default route, as a Pod's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.run("ip", "netns", "add", name, inside=False)
        for line in (
            "link set lo up",
            "link add eth0 mtu 1420 type veth peer name other",
            "link set other up",
            "address add 10.99.0.2/24 dev eth0",
            "link set eth0 up",
            "route add default via 10.99.0.1",
        ):
            self.run("ip", *line.split())
        self.descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)

    def run(self, *command: str, inside: bool = True) -> str:
        prefix = ["ip", "netns", "exec", self.name] if inside else []
        return subprocess.run([*prefix, *command], check=True, capture_output=True, text=True).stdout

    def close(self) -> None:
        os.close(self.descriptor)
        self.run("ip", "netns", "del", self.name, inside=False)


@pytest.fixture
def pod() -> Iterator[Namespace]:
    made = Namespace(f"hotvirt-test-{os.getpid()}")
    yield made
    made.close()


async def make(pod: Namespace, ports: Sequence[Port] = ()) -> network.GuestNetwork:
    return await network.make_guest_network(pod.descriptor, ports)


async def test_the_tap_is_there_as_long_as_somebody_holds_it(pod: Namespace) -> None:
    made = await make(pod)
    shown = pod.run("ip", "address", "show", network.TAP)
    assert "10.0.2.1/24" in shown and "mtu 1420" in shown
    assert made.mtu == 1420
    assert not Path(f"/sys/class/net/{network.TAP}").exists(), "not in our own network"
    made.dhcp.close()
    os.close(made.tap)
    assert network.TAP not in pod.run("ip", "link")


async def test_an_agent_that_died_half_way_is_followed_by_another(pod: Namespace) -> None:
    for _ in range(3):
        made = await make(pod)
        made.dhcp.close()
        os.close(made.tap)
    made = await make(pod)
    with pytest.raises(network.NetworkError, match="busy"):
        await make(pod)  # and two at a time are not possible
    made.dhcp.close()
    os.close(made.tap)


async def test_everything_goes_to_the_guest_and_leaves_with_the_pods_address(pod: Namespace) -> None:
    made = await make(pod)
    rules = pod.run("nft", "list", "ruleset")
    assert 'iifname "eth0" dnat to 10.0.2.2' in rules
    assert 'ip saddr 10.0.2.2 oifname != "tap0" masquerade' in rules
    assert pod.run("cat", "/proc/sys/net/ipv4/ip_forward").strip() == "1"
    made.dhcp.close()
    os.close(made.tap)


async def test_declared_ports_are_all_that_is_forwarded(pod: Namespace) -> None:
    ports = (Port(port=80), Port(port=443), Port(port=53, protocol="UDP"))
    made = await make(pod, ports)
    rules = pod.run("nft", "list", "ruleset")
    assert 'iifname "eth0" tcp dport { 80, 443 } dnat to 10.0.2.2' in rules
    assert "udp dport 53 dnat to" in rules or "udp dport { 53 } dnat to" in rules
    assert 'iifname "eth0" dnat' not in rules
    made.dhcp.close()
    os.close(made.tap)


async def test_the_dhcp_socket_can_be_opened_beside_a_running_machine(pod: Namespace) -> None:
    made = await make(pod)
    made.dhcp.close()  # as when the agent ends; the machine holds the tap
    endpoint, mtu = await network.open_dhcp_socket(pod.descriptor)
    assert endpoint.getsockname() == ("0.0.0.0", 67) and mtu == 1420
    assert endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") == b"tap0"
    endpoint.close()
    os.close(made.tap)


def test_our_own_network_is_known_as_such(pod: Namespace) -> None:
    assert network.open_namespace(os.getpid()) is None
    command = ["ip", "netns", "exec", pod.name, "sh", "-c", "echo inside; cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == b"inside\n"
        found = network.open_namespace(holder.pid)
        holder.stdin.close()
    assert found is not None
    assert os.fstat(found).st_ino == os.fstat(pod.descriptor).st_ino
    os.close(found)


async def test_a_failure_inside_reaches_the_caller(pod: Namespace) -> None:
    with pytest.raises(ZeroDivisionError):
        await network.inside(pod.descriptor, lambda: 1 // 0)
    with pytest.raises(network.NetworkError, match="cannot enter"):
        nothing = os.open("/dev/null", os.O_RDONLY)
        try:
            await network.inside(nothing, lambda: None)
        finally:
            os.close(nothing)


async def test_a_name_that_would_be_read_as_rules_is_refused(pod: Namespace) -> None:
    for line in ("link set eth0 down", 'link set eth0 name x"};drop', 'link set x"};drop up'):
        pod.run("ip", *line.split())
    pod.run("ip", "route", "add", "default", "via", "10.99.0.1")
    with pytest.raises(network.NetworkError, match="a name that cannot be used"):
        await make(pod)
