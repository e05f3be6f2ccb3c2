"""Consoles between a controller and a node agent, over real TLS: who is let in, and who is believed."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hotvirt.api import names
from hotvirt.cluster.certificates import Shown
from hotvirt.cluster.console import ClusterStreams, ConsoleServer, Stream
from hotvirt.cluster.lifetimes import Certificates, Lifetimes, due
from hotvirt.kube.client import Client
from hotvirt.kube.x509 import CLIENT, fingerprint, make, name, server_context

from .tiny_api import TinyApi, config_map

NODE = "node-a"
OPENED: ContextVar[asyncio.Event] = ContextVar("opened")
"""Set each time that the server of this test opens anew."""


def new_certificates() -> Certificates:
    return due(None, Lifetimes(), datetime.now(UTC))


def shown(held: Certificates) -> Shown:
    return Shown(held.serving.certificate_pem, held.serving.key_pem, held.bundle)


@dataclass
class Given:
    """A source of certificates that the test holds."""

    shown: Shown | None

    async def run(self, changed: Callable[[], None]) -> None:
        changed()


async def echo_console(namespace: str, machine: str) -> Stream:
    """A machine whose console says its name and gives back what is typed."""
    if machine != "web":
        raise LookupError(f"{namespace}/{machine} does not run on this node")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{namespace}/{machine}\n".encode())
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    stream = await asyncio.open_connection(*server.sockets[0].getsockname())
    server.close()
    return stream


@asynccontextmanager
async def consoles(held: Certificates) -> AsyncIterator[tuple[TinyApi, Client, ConsoleServer]]:
    """An agent's console server on an API that knows one machine and the agent's Lease."""
    api = TinyApi()
    OPENED.set(asyncio.Event())
    async with api.running() as config, Client(config) as client:
        await api.put("configmaps", config_map(names.CA_CONFIGMAP, names.NAMESPACE))
        await api.put("virtualmachineinstances", machine("web"))
        await api.put("virtualmachineinstances", machine("other"))
        server = ConsoleServer(client, NODE, "127.0.0.1", 0, echo_console)
        running = asyncio.create_task(server.run(OPENED.get().set))
        try:
            await trust(api, server, held)
            await tell(api, server)
            yield api, client, server
        finally:
            running.cancel()
            await asyncio.wait([running])


def machine(machine: str) -> dict[str, Any]:
    return {"metadata": {"name": machine, "namespace": "shop"}, "status": {"nodeName": NODE}}


async def trust(api: TinyApi, server: ConsoleServer, held: Certificates) -> None:
    ca = {"ca.crt": held.bundle.decode()}
    await api.put("configmaps", config_map(names.CA_CONFIGMAP, names.NAMESPACE, **ca))
    async with asyncio.timeout(60):
        while server.trusted != held.bundle:
            OPENED.get().clear()
            await OPENED.get().wait()


async def tell(api: TinyApi, server: ConsoleServer, pinned: str | None = None, port: int = 0) -> None:
    annotations = {
        names.ANNOTATION_CONSOLE_ADDRESS: f"127.0.0.1:{port or server.port}",
        names.ANNOTATION_CONSOLE_CERTIFICATE: pinned or server.fingerprint,
    }
    lease = {"name": f"hotvirt-node-{NODE}", "namespace": names.NAMESPACE, "annotations": annotations}
    await api.put("leases", {"metadata": lease})


async def test_bytes_go_both_ways() -> None:
    held = new_certificates()
    async with consoles(held) as (_, client, _server):
        reader, writer = await ClusterStreams(client, Given(shown(held))).open_console("shop", "web")
        assert await reader.readline() == b"shop/web\n"
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        writer.write_eof() if writer.can_write_eof() else writer.close()


async def test_a_machine_that_is_not_there_is_told_in_the_agents_words() -> None:
    held = new_certificates()
    async with consoles(held) as (_, client, _server):
        with pytest.raises(LookupError, match="shop/other does not run on this node"):
            await ClusterStreams(client, Given(shown(held))).open_console("shop", "other")


async def test_whoever_answers_with_another_certificate_is_sent_nothing() -> None:
    held = new_certificates()
    async with consoles(held) as (api, client, server):
        await tell(api, server, "0" * 64)
        with pytest.raises(ConnectionError, match="not its agent"):
            await ClusterStreams(client, Given(shown(held))).open_console("shop", "web")


async def test_a_client_of_another_ca_is_refused() -> None:
    held, stranger = new_certificates(), new_certificates()
    async with consoles(held) as (_, client, _server):
        with pytest.raises(OSError):
            await ClusterStreams(client, Given(shown(stranger))).open_console("shop", "web")


async def test_a_client_of_the_same_ca_with_another_name_is_refused() -> None:
    held = new_certificates()
    pair = make(held.ca, name("a"), timedelta(days=1), datetime.now(UTC), [CLIENT], ["a.shop.svc"])
    other = Shown(pair.certificate_pem, pair.key_pem, held.bundle)
    async with consoles(held) as (_, client, _server):
        with pytest.raises(OSError):
            await ClusterStreams(client, Given(other)).open_console("shop", "web")


async def test_a_new_ca_counts_at_once_and_the_old_one_no_longer() -> None:
    held, renewed = new_certificates(), new_certificates()
    async with consoles(held) as (api, client, server):
        await trust(api, server, renewed)
        reader, writer = await ClusterStreams(client, Given(shown(renewed))).open_console("shop", "web")
        assert await reader.readline() == b"shop/web\n"
        writer.close()
        with pytest.raises(OSError):
            await ClusterStreams(client, Given(shown(held))).open_console("shop", "web")


@pytest.mark.parametrize("said", [b"x" * (1 << 20), b"[1]\n", b"no json\n", b""])
async def test_an_agent_that_answers_with_rubbish_is_told_as_no_answer(said: bytes) -> None:
    held = new_certificates()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(said)
        writer.close()

    async with consoles(held) as (api, client, server):
        context = server_context(held.serving.certificate_pem, held.serving.key_pem)
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as rubbish:
            certificate = ssl.PEM_cert_to_DER_cert(held.serving.certificate_pem.decode())
            await tell(api, server, fingerprint(certificate), rubbish.sockets[0].getsockname()[1])
            with pytest.raises(ConnectionError, match="gave no answer"):
                await ClusterStreams(client, Given(shown(held))).open_console("shop", "web")


async def test_a_node_without_an_agent_is_told() -> None:
    held = new_certificates()
    async with consoles(held) as (api, client, _):
        await api.remove("leases", names.NAMESPACE, f"hotvirt-node-{NODE}")
        with pytest.raises(LookupError, match="no agent"):
            await ClusterStreams(client, Given(shown(held))).open_console("shop", "web")


async def test_nobody_without_a_certificate() -> None:
    held = new_certificates()
    async with consoles(held) as (_, _client, server):
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with pytest.raises(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
            writer.write(b'{"namespace": "shop", "name": "web"}\n')
            if not await reader.read(1):
                raise ConnectionResetError
