"""Certificates change under a real API server that never stops asking: no request is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hotvirt.api.resources import APISERVICES, SECRETS, VMS
from hotvirt.cluster.controller import ControllerProcess
from hotvirt.cluster.lifetimes import Lifetimes
from hotvirt.cluster.settings import ControllerSettings
from hotvirt.kube.client import Client
from hotvirt.kube.config import load_kubeconfig
from hotvirt.kube.errors import ApiError
from hotvirt.kube.x509 import CLIENT, SERVER, Pair, make, make_ca, name
from hotvirt.plan.platform import Platform
from tests.targets.target import wait_until

from .control_plane import ControlPlane, vm
from .test_processes import GROUP

NAME = "hotvirt-api.kubevirt.svc"
SHORT = Lifetimes(ca=timedelta(seconds=45), serving=timedelta(seconds=30), overlap=timedelta(seconds=6))
"""Every change leaves six seconds until something ends that is still in use: enough on a busy machine."""
PAUSE = 0.02
CHANGES = 3
ENOUGH = 100
CHANGED_WITHIN = 280.0


@dataclass
class Asked:
    answered: int = 0
    refused: list[str] = field(default_factory=list)
    enough: asyncio.Event = field(default_factory=asyncio.Event)


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
            if asked.answered > ENOUGH:
                asked.enough.set()
            await asyncio.sleep(PAUSE)  # as often as is of use: other tests need the processor too
        except ApiError as error:
            asked.refused.append(str(error))


async def reached(client: Client) -> None:
    """Wait until the API server asks the webhooks: nothing tells when it has read whom to trust."""
    async with asyncio.timeout(CHANGED_WITHIN):
        while True:
            try:
                await client.create(VMS, vm("asked"), "default", dry_run=True)
                return
            except ApiError:
                await asyncio.sleep(PAUSE)


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
    selector = "metadata.name=v1.subresources.kubevirt.io"
    listed = await client.list(APISERVICES, field_selector=selector)
    version = listed.resource_version
    if any(is_available(service) for service in listed.items):
        return
    async for event in client.watch(APISERVICES, resource_version=version, field_selector=selector):
        if event.type != "BOOKMARK" and is_available(event.object):
            return


def is_available(service: dict[str, Any]) -> bool:
    conditions = service.get("status", {}).get("conditions", [])
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)


@pytest.mark.timeout(600)
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
                    await reached(client)
                    asking = asyncio.create_task(ask_on(client, asked))
                shown.add(data["tls.crt"])
                authorities.add(data["ca.key"])
                if len(shown) > CHANGES and len(authorities) > 2:
                    break
            await asked.enough.wait()
            assert asking is not None
            assert not asking.done(), asking
            asking.cancel()
            await asyncio.wait([asking])
    assert asked.refused == []


def put_certificate(folder: Path, ca: Pair, number: int) -> bytes:
    """As the kubelet puts a Secret into a Pod: files behind a link, which is moved. Returns it in DER."""
    pair = make(ca, name(f"given-{number}"), timedelta(hours=1), datetime.now(UTC), [SERVER, CLIENT], [NAME])
    version = folder / f"..{number}"
    version.mkdir(parents=True)
    files = {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem, "ca.crt": ca.certificate_pem}
    for file, content in files.items():
        (version / file).write_bytes(content)
        link = folder / file
        if not link.is_symlink():
            link.symlink_to(f"..data/{file}")
    (folder / "..tmp").symlink_to(version.name)
    (folder / "..tmp").rename(folder / "..data")
    return ssl.PEM_cert_to_DER_cert(pair.certificate_pem.decode())


def shown_at(port: int, ca: Pair) -> bytes | None:
    """The certificate of whoever answers there, known by the CA and by its name."""
    context = ssl.create_default_context(cadata=ca.certificate_pem.decode())
    with (
        socket.create_connection(("127.0.0.1", port), 60) as connection,
        context.wrap_socket(connection, server_hostname=NAME) as secured,
    ):
        return secured.getpeercert(binary_form=True)


def test_a_given_certificate_is_shown_followed_and_made_known(plane: ControlPlane, tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    ca = make_ca(name("somebody-elses-ca"), timedelta(hours=1), datetime.now(UTC))
    first = put_certificate(folder, ca, 1)
    webhooks = (
        "get",
        "validatingwebhookconfiguration",
        "hotvirt",
        "-o",
        "jsonpath={.webhooks[*].clientConfig}",
    )
    before = plane.kubectl(*webhooks)
    given = {"HOTVIRT_CERTIFICATES": "given", "HOTVIRT_CERTIFICATES_FOLDER": str(folder)}
    with plane.controller("given", plane.port, **given) as controller:
        controller.wait_until_ready()
        assert shown_at(plane.port, ca) == first
        second = put_certificate(folder, ca, 2)
        wait_until(lambda: shown_at(plane.port, ca) == second, "the second certificate to be shown")
        published = ("get", "configmap", "hotvirt-ca", "-n", "kubevirt", "-o", "jsonpath={.data}")
        wait_until(
            lambda: json.loads(plane.kubectl(*published) or "{}") == {"ca.crt": ca.certificate_pem.decode()},
            "the node agents to be told of the CA",
        )
        assert plane.kubectl(*webhooks) == before, "that is the business of whoever gives the certificate"
