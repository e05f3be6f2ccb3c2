"""Certificates change under a real API server that never stops asking: no request is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hotvirt.api.resources import APISERVICES, SECRETS, VMS
from hotvirt.cluster.controller import ControllerProcess
from hotvirt.cluster.lifetimes import Lifetimes
from hotvirt.cluster.settings import ControllerSettings
from hotvirt.kube.client import Client
from hotvirt.kube.config import load_kubeconfig
from hotvirt.kube.errors import ApiError
from hotvirt.plan.platform import Platform

from .control_plane import ControlPlane
from .test_processes import GROUP, vm

SHORT = Lifetimes(ca=timedelta(seconds=18), serving=timedelta(seconds=9), overlap=timedelta(seconds=3))
CHANGES = 3
CHANGED_WITHIN = 120.0


@dataclass
class Asked:
    answered: int = 0
    refused: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def running(plane: ControlPlane) -> AsyncIterator[None]:
    settings = ControllerSettings(
        identity="short-lived",
        platform=Platform(),
        address="127.0.0.1",
        port=plane.port,
        health_port=0,
        drain=0.0,
        lifetimes=SHORT,
    )
    stopping = asyncio.Event()
    access = load_kubeconfig(plane.kubeconfig_of("hotvirt-controller"))
    task = asyncio.create_task(ControllerProcess(settings, access).run(stopping))
    try:
        yield
    finally:
        stopping.set()
        await task


async def ask_on(client: Client, asked: Asked) -> None:
    """Through the webhooks and the aggregated API, one after another, for ever."""
    while True:
        try:
            await client.create(VMS, vm("asked"), "default", dry_run=True)
            await client.request("GET", f"{GROUP}/version")
            asked.answered += 2
        except ApiError as error:
            asked.refused.append(str(error))


async def changes(client: Client) -> AsyncIterator[dict[str, str]]:
    """What the Secret holds, each time that it changes."""
    selector = "metadata.name=hotvirt-certificates"
    listed = await client.list(SECRETS, "kubevirt", field_selector=selector)
    async for event in client.watch(
        SECRETS, "kubevirt", resource_version=listed.resource_version, field_selector=selector
    ):
        if event.type == "MODIFIED" and event.object.get("data"):
            yield event.object["data"]


async def available(client: Client) -> None:
    """Wait until the API server takes the aggregated API for there."""
    name = "v1.subresources.kubevirt.io"
    listed = await client.list(APISERVICES, field_selector=f"metadata.name={name}")
    version = listed.resource_version
    if any(is_available(service) for service in listed.items):
        return
    async for event in client.watch(
        APISERVICES, resource_version=version, field_selector=f"metadata.name={name}"
    ):
        if event.type != "BOOKMARK" and is_available(event.object):
            return


def is_available(service: dict[str, Any]) -> bool:
    conditions = service.get("status", {}).get("conditions", [])
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)


async def test_certificates_change_and_no_request_is_refused(plane: ControlPlane) -> None:
    asked = Asked()
    shown: set[str] = set()
    authorities: set[str] = set()
    async with Client(load_kubeconfig(plane.target.kubeconfig)) as client:
        # What earlier replicas made lives long: from nothing, everything is short-lived.
        await client.patch(SECRETS, "hotvirt-certificates", {"data": None}, "kubevirt")
        async with running(plane), asyncio.timeout(CHANGED_WITHIN):
            asking: asyncio.Task[None] | None = None
            async for data in changes(client):
                if asking is None:
                    await available(client)
                    asking = asyncio.create_task(ask_on(client, asked))
                shown.add(data["tls.crt"])
                authorities.add(data["ca.key"])
                if len(shown) > CHANGES and len(authorities) > 2:
                    break
            assert asking is not None
            asking.cancel()
            await asyncio.wait([asking])
    assert asked.refused == []
    assert asked.answered > 100
