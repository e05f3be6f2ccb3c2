"""Hotvirt is upgraded and rolled back under its guests, and goes on answering meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hotvirt import __version__
from hotvirt.api.resources import VMS
from hotvirt.kube.client import Client
from hotvirt.kube.errors import ApiError
from tests.scenarios.guests import Guest
from tests.scenarios.place import demo_vm
from tests.targets.target import CHECKOUT

from .on_cluster import HOTVIRTS, OnCluster

NEXT = "next"
CHART = str(CHECKOUT / "deploy" / "chart" / "hotvirt")
RELEASE = ("hotvirt", "--namespace", HOTVIRTS, "--wait", "--timeout", "400s")
VERSION = "/apis/subresources.kubevirt.io/v1/version"


@pytest.mark.asyncio(loop_scope="session")
class Upgrade:
    @pytest.mark.timeout(1200)
    async def test_guests_and_their_owners_notice_nothing(
        self, place: OnCluster, main: Guest, helm: Path
    ) -> None:
        for image in ("controller", "launcher"):
            known = f"docker.io/hotvirt/{image}"
            run(place, "ctr", "images", "tag", "--force", f"{known}:{__version__}", f"{known}:{NEXT}")
        pod, vmi = await main.pod(), await main.vmi()
        process, agent = place.hypervisor(pod), agent_of(place)
        async with place.client() as client, asked(client, main.namespace) as refused:
            await helm_runs(
                place, helm, "upgrade", CHART, "--reset-then-reuse-values", "--set", f"image.tag={NEXT}"
            )
            assert agent_of(place) != agent
            await main.edit(5, None)
            await main.becomes(5, main.memory)
            await helm_runs(place, helm, "rollback")
            await main.edit(main.sockets, None)
            await main.becomes(main.sockets, main.memory)
        assert refused == []
        assert place.hypervisor(pod) == process
        assert (await main.pod())["metadata"]["uid"] == pod["metadata"]["uid"]
        assert (await main.vmi())["metadata"]["uid"] == vmi["metadata"]["uid"]


def agent_of(place: OnCluster) -> str:
    (agent,) = [
        each
        for each in place.get("pods", "-n", HOTVIRTS, "-l", "app.kubernetes.io/name=hotvirt-node")["items"]
        if "deletionTimestamp" not in each["metadata"]
    ]
    return str(agent["metadata"]["uid"])


async def helm_runs(place: OnCluster, helm: Path, verb: str, *more: str) -> None:
    await asyncio.to_thread(run, place, str(helm), verb, *RELEASE[:1], *more, *RELEASE[1:])


def run(place: OnCluster, *words: str) -> None:
    done = place.bed.run(*words)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


@asynccontextmanager
async def asked(client: Client, namespace: str) -> AsyncIterator[list[str]]:
    """Webhooks and the aggregated API are used all the time; what was refused."""
    refused: list[str] = []

    async def ask_on() -> None:
        while True:
            try:
                await client.create(VMS, demo_vm("asked", namespace), namespace, dry_run=True)
                await client.request("GET", VERSION)
            except ApiError as error:
                refused.append(str(error))
            await asyncio.sleep(0.05)  # a pace that leaves the machine to the cluster

    asking = asyncio.create_task(ask_on())
    try:
        yield refused
        assert not asking.done(), asking
    finally:
        asking.cancel()
        await asyncio.wait([asking])
