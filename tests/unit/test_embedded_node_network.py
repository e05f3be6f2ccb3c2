"""The Pods' network: addresses that last, set-ups that may be repeated, and nothing left behind."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hotvirt.embedded.node.network import LOOPBACK_POOL, PodNetwork, run_tool, short

ONE, TWO = f"uid-of-one-{os.getpid()}", f"uid-of-two-{os.getpid()}"
"""They name links of this machine, where the same tests may run twice."""


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[PodNetwork]:
    made = PodNetwork(tmp_path, egress=False)
    yield made
    await made.keep_only([])


async def routes() -> str:
    return await run_tool("ip", "route")


async def test_a_pod_keeps_its_address(network: PodNetwork, tmp_path: Path) -> None:
    first, second = await network.add(ONE), await network.add(TWO)
    assert first.address != second.address
    assert await network.add(ONE) == first
    again = PodNetwork(tmp_path, egress=False)
    assert again.existing(ONE) == first
    assert await again.add(ONE) == first
    assert again.existing("nobody") is None


async def test_a_set_up_that_was_cut_short_is_finished(network: PodNetwork) -> None:
    sandbox = await network.add(ONE)
    if sandbox.namespace is None:
        assert ipaddress.ip_address(sandbox.address) in LOOPBACK_POOL
        return
    await run_tool("ip", "link", "del", f"hv{short(ONE)}")
    assert await network.add(ONE) == sandbox
    assert f"{sandbox.address} dev hv{short(ONE)}" in await routes()
    await run_tool("ip", "netns", "del", sandbox.namespace.name)
    sandbox.namespace.touch()  # as a kill in the middle of `ip netns add` leaves it
    assert await network.add(ONE) == sandbox
    inside = await run_tool("ip", "-n", sandbox.namespace.name, "-json", "addr", "show", "eth0")
    assert sandbox.address in [entry["local"] for entry in json.loads(inside)[0]["addr_info"]]


async def test_the_last_one_takes_everything_with_it(network: PodNetwork) -> None:
    sandbox = await network.add(ONE)
    other = await network.add(TWO)
    await network.remove(ONE)
    await network.remove(ONE)
    assert network.existing(ONE) is None and network.existing(TWO) == other
    if network.isolated:
        cidr = str(ipaddress.ip_network(f"{sandbox.address}/24", strict=False))
        assert f"unreachable {cidr}" in await routes() and sandbox.address not in await routes()
        await network.remove(TWO)
        assert cidr not in await routes()


async def test_instances_do_not_collide(network: PodNetwork, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = PodNetwork(tmp_path / "other", egress=False)
    first, second = await network.add(ONE), await other.add(TWO)
    try:
        assert first.address != second.address
        if network.isolated:
            ranges = [ipaddress.ip_network(f"{s.address}/24", strict=False) for s in (first, second)]
            assert ranges[0] != ranges[1]
    finally:
        await other.remove(TWO)


async def test_without_root_each_pod_has_a_loopback_address(tmp_path: Path) -> None:
    network = PodNetwork(tmp_path)
    network.reason = "Pods share the host's network: said by the test."
    sandboxes = [await network.add(f"uid-{number}") for number in range(50)]
    assert len({sandbox.address for sandbox in sandboxes}) == 50
    assert all(ipaddress.ip_address(s.address) in LOOPBACK_POOL and s.namespace is None for s in sandboxes)
    await network.keep_only(["uid-1"])
    assert network.existing("uid-1") == sandboxes[1] and network.existing("uid-2") is None


async def test_a_machine_that_does_not_let_us_is_as_without_root(
    network: PodNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root in a container often lacks the right: `ip` is there, and refuses."""
    refusing = tmp_path / "bin"
    refusing.mkdir()
    (refusing / "ip").write_text("#!/bin/sh\necho 'Operation not permitted' >&2; exit 2\n")
    (refusing / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", f"{refusing}:{os.environ['PATH']}")
    sandbox = await network.add(ONE)
    assert ipaddress.ip_address(sandbox.address) in LOOPBACK_POOL and sandbox.namespace is None
    assert network.reason.startswith("Pods share the host's network: ")
    monkeypatch.undo()
    assert await network.add(ONE) == sandbox
